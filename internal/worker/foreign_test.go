package worker_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
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
		r.leftAlone(reducer.MachineOptions{Table: table}, "Start")
	})
}

// A worker does the same that meets a version of a payload which it does not know.
func TestRunWithANewerVersionIsLeftAlone(t *testing.T) {
	same := func(old json.RawMessage) (json.RawMessage, error) { return old, nil }
	codec, err := events.NewCodec(events.TypeSpec{Type: events.TypeLLMThought, Upcasters: []events.Upcaster{same}})
	require.NoError(t, err)
	bubble(t, func(t *testing.T, r *rig) {
		r.leftAlone(reducer.MachineOptions{Codec: codec}, "Start", "LlmThought")
	})
}

// Deliveries that an older build gave back do not use up a run's attempts while it waits
// for a provider that is limited.
func TestDeliveriesGivenBackEndNoRun(t *testing.T) {
	before, err := reducer.DefaultTable().At(reducer.Revision - 1)
	require.NoError(t, err)
	bubble(t, func(t *testing.T, r *rig) {
		older := reducer.NewMachine(reducer.MachineOptions{Table: before})
		run := r.start()
		for range 2 * reducer.MaxWorkersLost {
			asked := make(chan struct{}, 1)
			_, stop := r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
				asked <- struct{}{}
				return worker.Retry(events.LLMAttemptFailed{Kind: events.KindRateLimited, NotAsked: true, Message: "wait"}, time.Second)
			})})
			select {
			case <-asked:
			case <-time.After(time.Hour):
				require.FailNow(t, "nobody asks any more", "%v", r.Memory(run).Error)
			}
			synctest.Wait()
			stop()
			met := &logged{}
			p := r.Journal.NewProcess()
			stop = r.Go(r.worker(p, nil, func(c *worker.Config) {
				c.Store = runlog.New(runlog.Options{Log: p, Machine: older})
				c.Logger = slog.New(slog.NewTextHandler(met, nil))
			}).Run)
			for met.count("run="+run.ID) == 0 {
				time.Sleep(100 * time.Millisecond) // in the bubble
			}
			stop()
		}
		require.Greater(t, r.Count(run, events.TypeLLMAttemptFailed), 3*reducer.MaxWorkersLost, "they alternate")
		r.spawn(handlers{effects.KindPlan: always(answer("It is done."))})
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
	})
}

// leftAlone has a run by a machine of the options, which a worker with the machine as
// it comes leaves to one that has theirs.
func (r *rig) leftAlone(o reducer.MachineOptions, types ...string) {
	own := r.Machine
	r.Machine = reducer.NewMachine(o)
	r.Store = r.NewStore(r.Journal)
	run := r.start()
	if len(types) > 1 {
		r.Append(run, events.Planning, &events.LLMThought{Reply: events.Reply{Content: "Let me see."}})
	}

	p := r.Journal.NewProcess()
	stranger := r.worker(p, handlers{effects.KindPlan: work(func(context.Context) worker.Result {
		// What it did under the delivery of an event that it knows cannot be appended.
		require.Greater(r.T, len(types), 1, "the stranger did the work")
		return worker.Done(answer("not its own"))
	})}, func(c *worker.Config) { c.Store = runlog.New(runlog.Options{Log: p, Machine: own}) })
	stop := r.Go(stranger.Run)
	settled()
	require.Equal(r.T, types, r.Types(run))
	stop()

	r.spawn(handlers{effects.KindPlan: always(answer("its own"))})
	mem := r.AwaitEnd(run)
	require.Equal(r.T, "its own", *mem.FinalAnswer)
	require.Nil(r.T, mem.Control.Poison)
}
