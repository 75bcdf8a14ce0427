package control_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// countedTimers counts how often one is set.
type countedTimers struct {
	journal.Timers
	set atomic.Int32
}

func (c *countedTimers) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	c.set.Add(1)
	return c.Timers.SetTimer(ctx, run, kind, at, data)
}

// Where a gateway's clock is behind the bus's, its timers fire before their time.
// They wait, and are not set again and again.
func TestTimersOfAClockThatIsBehind(t *testing.T) {
	const behind = 40 * time.Second
	inTime(t, func(t *testing.T, r *timed) {
		timers := &countedTimers{}
		g, _ := r.serve(func(cfg *control.Config) {
			timers.Timers, cfg.Timers = cfg.Timers, timers
			cfg.Store = runlog.New(runlog.Options{
				Log: cfg.Store.Log(), Machine: r.Machine, Clock: func() time.Time { return time.Now().Add(-behind) },
			})
		})
		asking, limited := r.start(g, nil), r.start(g, wallTime(20*time.Minute))
		deadline := r.ask(asking, 10*time.Minute, "a")
		r.ask(limited, 0, "a")
		sleep(30 * time.Minute)
		r.at(asking, events.TypeApprovalExpired)
		require.WithinDuration(t, deadline.Add(behind), r.Records(asking)[2].Stored, 2*time.Second, "when the gateway's time has come")
		require.Equal(t, 1, r.Count(limited, events.TypeBudgetExceeded))
		require.Less(t, timers.set.Load(), int32(10))
	})
}
