package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The timers of a run.
const (
	timerRun      = journal.TimerRun
	timerApproval = journal.TimerApproval
)

const (
	// timerRetry is the pause after a timer could not be dealt with.
	timerRetry = 2 * time.Second
	// timerEarly is the shortest pause after a timer that fired before its time.
	timerEarly = time.Second
	// startGrace is how long a start may be under way after it set its timer.
	startGrace = 2 * requestTimeout
)

// note is what a timer remembers of when it was set.
type note struct {
	// At is the time that it was set for.
	At time.Time `json:"at,omitzero"`
	// Seq is the record up to which the run was read: as long as it is the last one
	// there is nothing to be done before the deadline. 0 if there may be.
	Seq uint64 `json:"seq,omitempty"`
	// Deadline is when something is to be done though nothing happens; zero: never.
	Deadline time.Time `json:"deadline,omitzero"`
	// Watch is about the work that was due.
	Watch watch `json:"watch,omitzero"`
}

// setTimer sets a timer. One that may be stored or not is set again.
func (g *Gateway) setTimer(ctx context.Context, run events.Run, kind string, at time.Time, n note) error {
	n.At = at
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return launch.SetTimer(ctx, g.cfg.Timers, run, kind, at, data)
}

// arrived sets the timer of an approval before the delivery that asks for it is
// settled.
func (g *Gateway) arrived(run events.Run, mem *reducer.Memory) func(context.Context) error {
	at, waits := approvalDeadline(mem)
	if !waits {
		return nil
	}
	return func(ctx context.Context) error { return g.setTimer(ctx, run, timerApproval, at, note{}) }
}

// approvalDeadline returns when the approval that the run waits for expires;
// false if it waits for none, or for ever. A deadline that cannot be read never
// comes: it would reject a call for a clerical error.
func approvalDeadline(mem *reducer.Memory) (at time.Time, waits bool) {
	if mem.State != events.WaitingForHuman || len(Undecided(mem.PendingApproval)) == 0 {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339, mem.PendingApproval.Deadline)
	return at, err == nil
}

// watchTimers deals with timers that fire until ctx ends; one that is in work
// then gets the drain time.
func (g *Gateway) watchTimers(ctx context.Context) error {
	err := g.cfg.Timers.ConsumeTimers(ctx, g.cfg.Concurrency, func(d journal.TimerDelivery) {
		work, stop := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.Drain)
		defer stop()
		g.fired(work, d)
	})
	if err != nil {
		return fmt.Errorf("%s: timers: %w", role, err)
	}
	return nil
}

// fired deals with one timer. It is settled when what it was for is in the log
// and the next one is set, so that a gateway that dies in between loses nothing.
func (g *Gateway) fired(ctx context.Context, d journal.TimerDelivery) {
	t := d.Timer()
	var seen note
	_ = json.Unmarshal(t.Data, &seen) // one that remembers nothing has the run read
	if early := seen.At.Sub(g.store.Now()); early > 0 {
		// The bus's clock is ahead of this one: set for the same time again it would
		// fire at once.
		_ = d.Retry(max(early, timerEarly))
		return
	}
	err := g.attend(ctx, t, seen)
	var orphan *runlog.ParentGoneError
	if errors.As(err, &orphan) {
		g.cfg.Logger.Warn("a run waits until what it was forked from is in the log again", "run", t.Run.ID, "reason", err)
		err = g.setTimer(ctx, t.Run, t.Kind, g.store.Now().Add(g.cfg.StallAfter), seen)
	}
	var foreign *reducer.TableError
	if errors.As(err, &foreign) {
		g.cfg.Logger.Warn("a run waits for a gateway that has its graph", "run", t.Run.ID, "reason", err)
		err = g.setTimer(ctx, t.Run, t.Kind, g.store.Now().Add(g.lookAfter()), seen)
	}
	switch {
	case errors.Is(err, journal.ErrNotFound) && d.Attempt() == 1:
		_ = d.Retry(startGrace)
	case errors.Is(err, journal.ErrNotFound):
		_ = d.Ack() // the run was never started
	case err != nil:
		level := slog.LevelWarn
		if errors.Is(err, journal.ErrFull) {
			level = slog.LevelDebug // the bus says it, once
		}
		g.cfg.Logger.Log(ctx, level, "a timer comes again", "run", t.Run.ID, "timer", t.Kind, "reason", err)
		_ = d.Retry(timerRetry)
	default:
		_ = d.Ack()
	}
}

// attend does what is to be done about a run now, and sets its timer again. The
// error is ErrNotFound if there is no such run, or a *[runlog.ParentGoneError].
func (g *Gateway) attend(ctx context.Context, t journal.Timer, seen note) error {
	head, err := g.log.Head(ctx, t.Run)
	if err != nil {
		return err
	}
	if settled, err := g.attendHead(ctx, t, seen, head); settled || err != nil {
		return err
	}
	var calls bool
	var parent *events.Parent
	err = g.look(ctx, t.Run.Namespace, t.Run.ID, func(run *runlog.Run) error {
		var w watch
		if t.Kind == timerRun {
			w = g.inspect(ctx, t.Run, run.Memory(), seen.Watch)
		}
		err := g.commit(ctx, run, func(mem *reducer.Memory) ([]runlog.Draft, error) { return g.overdue(mem, w) })
		calls = run.Terminal() && len(run.Memory().Control.Calls) > 0
		if p := run.Memory().Control.Parent; p != nil && !run.Terminal() {
			parent = p
		}
		var refused *runlog.DraftError
		if errors.As(err, &refused) {
			// The application's own table does not have the event: to try again
			// would not help.
			g.cfg.Logger.Error("a run cannot be ended or driven", "run", t.Run.ID, "reason", err)
			return g.setTimer(ctx, t.Run, t.Kind, g.store.Now().Add(g.cfg.StallAfter), seen)
		}
		if err != nil {
			return err
		}
		return g.rearm(ctx, run, t.Kind, w)
	})
	if err == nil && parent != nil {
		err = g.forsake(ctx, t.Run, *parent)
	}
	if err == nil && calls {
		err = g.CancelChildren(ctx, t.Run.Namespace, t.Run.ID, events.By{By: g.source})
	}
	return err
}

// attendHead settles the timer of a run that is as it was when the timer was set, by
// its last record alone: there may be very many that wait for days. An end is never
// believed without its run: a worker may publish one that the run's state does not
// allow, and nobody else would see it.
func (g *Gateway) attendHead(ctx context.Context, t journal.Timer, seen note, head journal.Record) (settled bool, err error) {
	now := g.store.Now()
	if seen.Seq != head.Seq || !seen.Deadline.IsZero() && !now.Before(seen.Deadline) {
		return false, nil
	}
	return true, g.setTimer(ctx, t.Run, t.Kind, seen.atMost(now.Add(g.lookAfter())), seen)
}

// atMost returns a time, or the deadline if that is earlier.
func (n note) atMost(at time.Time) time.Time {
	if !n.Deadline.IsZero() && n.Deadline.Before(at) {
		return n.Deadline
	}
	return at
}

// disarm takes back the timers of a run that has ended, but for the one that
// fired. One that stays finds nothing to do.
func (g *Gateway) disarm(ctx context.Context, run events.Run, fired string) {
	for _, kind := range [...]string{timerRun, timerApproval} {
		if kind == fired {
			continue
		}
		if err := g.cfg.Timers.CancelTimer(ctx, run, kind); err != nil {
			g.cfg.Logger.Debug("a timer of a run that has ended stays", "run", run.ID, "timer", kind, "reason", err)
		}
	}
}
