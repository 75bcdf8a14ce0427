package timers

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/journal"
)

// rearmEvery is how often a gateway looks whether the timers of open runs are there. Who may set any timer
// can remove all of them with one message: the server allows schedules only in streams that allow
// roll-ups. So what was removed is set again from the log.
const rearmEvery = 5 * time.Minute

// Rearm sets the missing timers of open runs at once and then every five minutes until ctx ends.
func (t *Timers) Rearm(ctx context.Context) error {
	if t.Fleet == nil {
		<-ctx.Done()
		return nil
	}
	for {
		n, err := t.arm(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			t.Logger.Warn("which runs lack a timer is not known; it will be retried", "reason", err, "retry_in", rearmEvery)
		case n > 0:
			t.Logger.Warn("timers of runs were missing and are set again", "timers", n)
		}
		if !retry.Wait(ctx, rearmEvery) {
			return nil
		}
	}
}

// kept is the key under which gateways keep the place of the mark. It is not in the timers' stream:
// a user who may set a timer can make the server store another message there.
var kept = ports.RoleKey{Role: role, Name: "timers"}

const role = "gateway"

// mark is the message that goes with the timers when somebody removes them all.
type mark struct {
	Seq   uint64    `json:"seq"`
	Begun time.Time `json:"begun"`
}

// arm sets what is missing if somebody removed all timers. It reads the log only then. The mark is
// stored first: what is removed while timers are set is found missing the next time.
func (t *Timers) arm(ctx context.Context) (set int, err error) {
	oldest, begun, err := t.Fleet.OldestTimer(ctx)
	if err != nil {
		return 0, err
	}
	last, revision := t.readMark(ctx)
	if last.Seq > 0 && oldest <= last.Seq && begun.Equal(last.Begun) {
		return 0, nil
	}
	seq, err := t.Fleet.MarkTimers(ctx)
	if err != nil {
		return 0, err
	}
	if set, err = t.rearm(ctx); err != nil {
		return set, err
	}
	t.marked = mark{seq, begun}
	t.keepMark(ctx, revision)
	return set, nil
}

// readMark returns the mark that a gateway kept last, or this process's own.
func (t *Timers) readMark(ctx context.Context) (last mark, revision uint64) {
	value, revision, err := buckets.Position(ctx, t.KV, kept)
	if err != nil || json.Unmarshal(value, &last) != nil {
		return t.marked, revision
	}
	return last, revision
}

// keepMark keeps the mark for other gateways. Another one that kept its own meanwhile has set the
// same timers.
func (t *Timers) keepMark(ctx context.Context, revision uint64) {
	value, err := json.Marshal(t.marked)
	if err == nil {
		_, err = buckets.PutPosition(ctx, t.KV, kept, value, revision)
	}
	if err != nil && !errors.Is(err, journal.ErrConflict) {
		t.Logger.Warn("where the mark of the timers is could not be kept: the next gateway reads the log", "reason", err)
	}
}

// rearm sets the missing timers. That of the run is enough for approvals and calls of clients, too:
// it is set for the earliest of their deadlines.
func (t *Timers) rearm(ctx context.Context) (set int, err error) {
	open, err := t.Open(ctx)
	if err != nil {
		return 0, err
	}
	armed, err := t.Fleet.ArmedTimers(ctx) // after the runs, so that a run that began meanwhile is not missing one
	if err != nil {
		return 0, err
	}
	now := t.a.Store.Now()
	for _, o := range open {
		kinds := []string{ports.TimerRun}
		if o.Outside {
			kinds = append(kinds, ports.TimerModel)
		}
		for _, kind := range kinds {
			if armed[ports.ArmedTimer{Namespace: o.Run.Namespace, Run: o.Run.ID, Kind: kind}] {
				continue
			}
			if err := runstart.SetTimer(ctx, t.Timers, o.Run, kind, now, nil); err != nil {
				return set, err
			}
			set++
		}
	}
	return set, nil
}
