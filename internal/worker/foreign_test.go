package worker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// A worker without the run's graph does nothing to it, and leaves it to one that
// has it.
func TestRunOfAnotherTableIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		spec := reducer.DefaultSpec()
		spec.Rows = append(spec.Rows, reducer.Row{From: events.Planning, Event: events.TypeContinue, To: events.Acting})
		table, err := reducer.NewTable(spec)
		require.NoError(t, err)
		own := r.Machine
		r.Machine = reducer.NewMachine(reducer.MachineOptions{Table: table})
		r.Store = r.NewStore(r.Journal)

		p := r.Journal.NewProcess()
		stranger := r.worker(p, handlers{reducer.KindPlan: work(func(context.Context) worker.Result {
			t.Error("the stranger did the work")
			return worker.Done(answer("not its own"))
		})}, func(c *worker.Config) { c.Store = runlog.New(runlog.Options{Log: p, Machine: own}) })
		stop := r.Go(stranger.Run)
		run := r.start()
		settled()
		require.Equal(t, []string{"Start"}, r.Types(run))
		stop()

		r.spawn(handlers{reducer.KindPlan: always(answer("its own"))})
		require.Equal(t, "its own", *r.AwaitEnd(run).FinalAnswer)
	})
}
