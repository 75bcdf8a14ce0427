package runstart

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// timerTries is how often to set a timer while the outcome is unknown.
const timerTries = 50

// Opening is the beginning of a run: a Start, or a Forked with the fold of its parent, and the
// first budget.
type Opening struct {
	First events.Payload
	// Rest are appended together with First, from control.
	Rest   []events.Payload
	Parent *runlog.Fold
	Budget *events.Budget
	// TraceParent is the W3C trace context of the first event; empty: that of the context,
	// if it has one.
	TraceParent string
	// Check, if not nil, may refuse the run right before the append. It gets the run's
	// memory, which has events if another process was faster.
	Check func(mem *reducer.Memory) error
}

// Open pins the transition table, sets the run's timer, appends its first event, and returns the run's state and number of
// events. If the append fails, the timer later finds no run and does nothing. Errors are those
// of Check and of the log, or a refusal.CodeTooLarge.
func (l *Launcher) Open(ctx context.Context, at events.Run, o Opening) (events.State, uint64, error) {
	store := l.cfg.Store
	run := store.Acquire(at)
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	first := l.cfg.FirstCheck
	if o.Budget != nil && o.Budget.MaxWallTime > 0 {
		first = min(first, time.Duration(o.Budget.MaxWallTime))
	}
	if err := l.SetCheck(ctx, at, store.Now().Add(first)); err != nil {
		return "", 0, err
	}
	if start, ok := o.First.(*events.Start); ok {
		start.TableHash = store.Pins(start)
	}
	if o.Parent != nil {
		run.Adopt(o.Parent)
	}
	_, err := run.Commit(ctx, runlog.Stamp{Source: l.cfg.Source, TraceParent: cmp.Or(o.TraceParent, tracecontext.From(ctx))}, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if o.Check != nil {
			if err := o.Check(mem); err != nil {
				return nil, err
			}
		}
		drafts := []runlog.Draft{{Origin: store.Machine().Table().Initial(), Payload: o.First}}
		for _, p := range o.Rest {
			drafts = append(drafts, runlog.Draft{Origin: events.Control, Payload: p})
		}
		return drafts, nil
	})
	if errors.Is(err, journal.ErrTooLarge) {
		return "", 0, refusal.Wrap(err, refusal.TooLarge, refusal.CodeTooLarge,
			"task, definition and tool schemas together are larger than %s", ports.LimitOf(err))
	}
	if err != nil {
		return "", 0, err
	}
	return run.Memory().State, run.Memory().N, nil
}

// SetCheck sets the run's timer, so that a gateway checks the run at the given time.
func (l *Launcher) SetCheck(ctx context.Context, run events.Run, at time.Time) error {
	data, err := json.Marshal(struct {
		At time.Time `json:"at,omitzero"`
	}{at})
	if err != nil {
		return err
	}
	return SetTimer(ctx, l.cfg.Timers, run, ports.TimerRun, at, data)
}

// SetTimer sets a timer of a run. It tries again while the outcome is unknown.
func SetTimer(ctx context.Context, timers journal.Timers, run events.Run, kind string, at time.Time, data []byte) (err error) {
	for range timerTries {
		err = timers.SetTimer(ctx, run, kind, at, data)
		if !errors.Is(err, journal.ErrUnknownOutcome) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Tombstone returns the tombstone of a purged run, or nil. A purge writes it long before it removes
// the first event.
func (l *Launcher) Tombstone(ctx context.Context, at events.Run) (*tombstones.Tombstone, error) {
	if l.cfg.Tombstones == nil {
		return nil, nil
	}
	stone, err := tombstones.Get(ctx, l.cfg.Tombstones, at)
	if errors.Is(err, journal.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &stone, nil
}
