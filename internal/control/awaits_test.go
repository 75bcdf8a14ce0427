package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
)

// waitsFor waits until a gateway says for which pool a run waits, and returns that. An empty pool:
// for none.
func (r *rig) waitsFor(c *control.Controller, id, pool string) (found *runs.WaitsFor) {
	r.T.Helper()
	require.Eventually(r.T, func() bool {
		state, err := c.State(r.T.Context(), "", id, 0)
		require.NoError(r.T, err)
		found = state.WaitsFor
		return found == nil && pool == "" || found != nil && found.Pool == pool
	}, patience, 10*time.Millisecond, "the run does not wait for %q", pool)
	return found
}

// listed returns the runs that a gateway lists with this filter, by their ids.
func (r *rig) listed(c *control.Controller, whom string) map[string]list.Run {
	r.T.Helper()
	page, err := c.Runs(r.T.Context(), "", list.Query{Filters: list.Filters{"waiting": whom}})
	require.NoError(r.T, err)
	all := map[string]list.Run{}
	for _, run := range page.Runs {
		all[run.RunID] = run
	}
	return all
}

// A run and the lists say which pool has no actor. So does a gateway that has just started, and a
// command, which looks once.
func TestRunsThatWaitForAnActor(t *testing.T) {
	t.Parallel()
	b := poolsBus(t)
	forever := func(c *control.Config) { c.PoolWait = control.Unlimited }
	r := newRig(t, b, forever)
	one := r.begin(calling("a", "far"))
	batch := r.begin(calling("a", "near"), calling("b", "far"))
	r.dispatch(batch, "a", "b")
	since := r.Fold(one).Updated

	again := newRig(t, b, forever)
	command, err := control.New(control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Instance: "command"}, Timers: b, KV: b,
	})
	require.NoError(t, err)
	for _, c := range []*control.Controller{r.control, again.control, command} {
		want := &runs.WaitsFor{Pool: "far", Since: since}
		require.Equal(t, want, r.waitsFor(c, one, "far"))
		r.waitsFor(c, batch, "near")
		for _, whom := range []string{"", "actor", "any"} {
			runs := r.listed(c, whom)
			require.Len(t, runs, 2)
			require.Equal(t, want, runs[one].WaitsFor)
			require.Equal(t, "near", runs[batch].WaitsFor.Pool)
			require.Equal(t, list.WaitingActor, runs[one].Waiting)
		}
		require.Empty(t, r.listed(c, "client"))
	}

	r.actor("near")
	r.waitsFor(r.control, batch, "far")
	require.Equal(t, "far", r.listed(r.control, "actor")[batch].WaitsFor.Pool)
	r.Happens(one, events.Control, &events.Paused{})
	r.waitsFor(r.control, one, "")
	require.NotContains(t, r.listed(r.control, "actor"), one)
	r.Happens(one, events.Control, &events.Resumed{})
	r.waitsFor(r.control, one, "far")
	require.Contains(t, r.listed(r.control, "actor"), one)
	r.actor("far")
	for _, id := range []string{one, batch} {
		r.arrives(id, events.Observing)
		r.waitsFor(r.control, id, "")
	}
	require.Empty(t, r.listed(r.control, "actor"))
}
