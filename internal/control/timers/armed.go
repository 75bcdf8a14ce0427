package timers

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// rearmEvery is how often a gateway looks whether the timers of open runs are there. Who may set any timer
// can remove all of them with one message: the server allows schedules only in streams that allow
// roll-ups. So what was removed is set again from the log.
const rearmEvery = 5 * time.Minute

// KeepArmed sets the missing timers of open runs at once and then every five minutes until ctx ends.
func (t *Timers) KeepArmed(ctx context.Context) error {
	armed, knows := t.Timers.(ports.ArmedTimers)
	if !knows {
		<-ctx.Done()
		return nil
	}
	for {
		n, err := t.arm(ctx, armed)
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

// arm sets what is missing if somebody removed all timers. It reads the log only then.
func (t *Timers) arm(ctx context.Context, of ports.ArmedTimers) (set int, err error) {
	if marked, err := of.Armed(ctx); marked || err != nil {
		return 0, err
	}
	if set, err = t.rearm(ctx, of); err != nil {
		return set, err
	}
	return set, of.MarkArmed(ctx)
}

// rearm sets the missing timers. That of the run is enough for approvals and calls of clients, too:
// it is set for the earliest of their deadlines.
func (t *Timers) rearm(ctx context.Context, of ports.ArmedTimers) (set int, err error) {
	open, err := t.Open(ctx)
	if err != nil {
		return 0, err
	}
	armed, err := of.ArmedTimers(ctx) // after the runs, so that a run that began meanwhile is not missing one
	if err != nil {
		return 0, err
	}
	now := t.a.Store.Now()
	for _, o := range open {
		kinds := []string{journal.TimerRun}
		if o.Outside {
			kinds = append(kinds, journal.TimerModel)
		}
		for _, kind := range kinds {
			if armed[ports.ArmedTimer{Namespace: o.Run.Namespace, Run: o.Run.ID, Kind: kind}] {
				continue
			}
			if err := launch.SetTimer(ctx, t.Timers, o.Run, kind, now, nil); err != nil {
				return set, err
			}
			set++
		}
	}
	return set, nil
}
