package control

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// State is that of [runs.Editor], and says whether a call of the run waits for an actor now.
func (c *Controller) State(ctx context.Context, ns, id string, n uint64) (runs.RunState, error) {
	state, err := c.Editor.State(ctx, ns, id, n)
	if err == nil {
		state.Labels, err = c.labels(ctx, ns, id, state.Labels)
	}
	if err != nil || state.State != events.Acting && state.State != events.ParallelActing {
		return state, err
	}
	err = c.View(ctx, ns, id, func(run *runlog.Run) error {
		if mem := run.Memory(); mem.N == state.N {
			state.WaitsFor = c.waitsFor(mem, c.pools.Unserved(ctx))
		}
		return nil
	})
	return state, err
}

// waitsFor returns the first pool without actors that has a call of the run; nil: there is none.
func (c *Controller) waitsFor(mem *reducer.Memory, unserved map[string]time.Time) *runs.WaitsFor {
	if mem.Control.Paused {
		return nil
	}
	for _, e := range effects.Of(c.Table, mem) {
		call := mem.Call(e.CallID)
		if e.Kind != effects.KindTool || call == nil {
			continue
		}
		if since, is := unserved[call.Pool]; is {
			return runs.NewWaitsFor(call.Pool, since, mem.Updated)
		}
	}
	return nil
}
