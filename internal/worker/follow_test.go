package worker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// observerSource is who signs what follows a result.
const observerSource = "moorebus/observer/1"

// follow decides as an observer does, and ends batches.
func follow(_ events.Run, _ *reducer.Memory, e effects.Effect) (events.Payload, string) {
	switch e.Kind {
	case effects.KindObserve:
		return &events.Continue{}, observerSource
	case effects.KindJoin:
		return &events.ToolSuccess{}, ""
	}
	return nil, ""
}

func following(c *worker.Config) { c.Follow = follow }

// asking calls the tools in its first reply, and answers then.
func asking(reply events.Payload) worker.Handler {
	return worker.HandlerFunc(func(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
		if mem.Step > 0 {
			reply = answer("It is done.")
		}
		return work(func(context.Context) worker.Result { return worker.Done(reply) }).Prepare(events.Run{}, mem, effects.Effect{})
	})
}

// blocked is work that no delivery gets done.
var blocked = work(func(ctx context.Context) worker.Result {
	<-ctx.Done()
	return worker.Fail(ctx.Err())
})

// What follows from a result is in the log without a delivery, as the observer would have
// appended it.
func TestFollow(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run := r.start()
		r.spawn(handlers{
			effects.KindPlan: asking(single("c", "beta")), effects.KindTool: always(&events.ToolSuccess{Outcome: outcome("c")}), effects.KindObserve: blocked,
		}, following)
		r.AwaitEnd(run)
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolSuccess", "Continue", "LlmFinalAnswer"}, r.Types(run))
		all := r.Events(run)
		require.Equal(t, observerSource, all[3].Source)
		require.Equal(t, all[2].ID, all[3].Cause)
		require.Equal(t, events.Observing, all[3].From)
	})
}

// The last result of a batch ends the batch, whose end is followed as well.
func TestFollowBatch(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run := r.start()
		r.spawn(handlers{
			effects.KindPlan: asking(batch(call("c", "beta"), call("d", "beta"))),
			effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					return worker.Done(&events.ToolCallResult{ToolOutcome: *outcome(e.CallID)})
				}
			}),
			effects.KindJoin: blocked, effects.KindObserve: blocked,
		}, following)
		r.AwaitEnd(run)
		require.Equal(t, []string{"Start", "LlmParallelToolCalls", "ToolCallResult", "ToolCallResult", "ToolSuccess", "Continue", "LlmFinalAnswer"}, r.Types(run))
		all := r.Events(run)
		require.Equal(t, "moorebus/test/1", all[4].Source)
		require.Equal(t, all[3].ID, all[4].Cause)
		require.Equal(t, all[4].ID, all[5].Cause)
	})
}

// What is not followed is left to its delivery.
func TestNotFollowed(t *testing.T) {
	byDelivery := func(r *rig, run events.Run) {
		r.T.Helper()
		r.AwaitType(run, events.TypeContinue)
		settled()
		require.Equal(r.T, 1, r.Count(run, events.TypeContinue))
		for _, e := range r.Events(run) {
			if e.Type() == events.TypeContinue {
				require.Equal(r.T, "moorebus/test/1", e.Source)
			}
		}
	}
	h := func(tool worker.Handler) handlers {
		return handlers{effects.KindPlan: asking(single("c", "beta")), effects.KindTool: tool, effects.KindObserve: always(&events.Continue{})}
	}
	success := always(&events.ToolSuccess{Outcome: outcome("c")})
	t.Run("in a paused run", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run := r.start()
			r.spawn(h(work(func(context.Context) worker.Result {
				r.Append(run, events.Control, &events.Paused{})
				return worker.Done(&events.ToolSuccess{Outcome: outcome("c")})
			})), following)
			byDelivery(r, run)
		})
	})
	t.Run("after a lost race", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run := r.start()
			var log workertest.Log
			log.OnAppend = func(ctx context.Context, at events.Run, last uint64, entries []journal.Entry) (uint64, error) {
				if r.Count(run, events.TypeToolSuccess) > 0 && r.Count(run, events.TypeUserMessage) == 0 {
					r.Append(run, events.Control, &events.UserMessage{MessageID: "m", Content: "wins the race"})
				}
				return log.Log.Append(ctx, at, last, entries...)
			}
			r.onLog(h(success), &log, following)
			byDelivery(r, run)
		})
	})
	t.Run("after a panic", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run := r.start()
			r.spawn(h(success), func(c *worker.Config) {
				c.Follow = func(events.Run, *reducer.Memory, effects.Effect) (events.Payload, string) { panic("no") }
			})
			byDelivery(r, run)
		})
	})
	t.Run("by a stand-in", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run := r.start()
			r.Append(run, events.Planning, single("c", "beta"))
			r.spawn(handlers{effects.KindTool: always(&events.ToolFailure{Outcome: &events.ToolOutcome{
				CallID: "c", Code: codes.NoActor, Observation: codes.ErrorPrefix + "no actor",
			}})}, following, func(c *worker.Config) { c.Origin, c.Inboxes = events.Control, inboxes()[2:] })
			r.AwaitState(run, events.Observing)
			settled()
			require.Zero(t, r.Count(run, events.TypeContinue))
		})
	})
	t.Run("in a step", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run := r.start()
			r.Append(run, events.Planning, single("c", "beta"))
			w := r.worker(r.Journal.NewProcess(), h(success), following, func(c *worker.Config) { c.Inboxes = inboxes()[2:] })
			require.NoError(t, w.Step(t.Context()))
			require.Equal(t, events.Observing, r.Memory(run).State)
		})
	})
}
