package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// One reply may ask for more calls than the worker does at once.
func TestWorkOfOneReplyIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run := r.start()
		calls := make([]events.Call, 40)
		for i := range calls {
			calls[i] = call(fmt.Sprint("c", i), "alpha")
		}
		r.Append(run, events.Planning, batch(calls...))
		var now, most atomic.Int64
		tools := handlers{
			effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					most.Store(max(most.Load(), now.Add(1)))
					time.Sleep(time.Second) // in the bubble
					now.Add(-1)
					return worker.Done(&events.ToolCallResult{ToolOutcome: *outcome(e.CallID)})
				}
			}),
			effects.KindJoin: always(&events.ToolSuccess{}),
		}
		r.spawn(tools, func(c *worker.Config) {
			c.Concurrency = 3
			c.Inboxes = []journal.Inbox{{States: []events.State{events.Acting, events.ParallelActing}, Pool: r.Memory(run).Tools["alpha"].Pool}}
		})
		r.AwaitState(run, events.Observing)
		require.EqualValues(t, 3, most.Load())
		require.Equal(t, len(calls), r.Count(run, events.TypeToolCallResult))
	})
}

// A call that was resumed before it was started belongs to the newer delivery,
// alone: the older one does not start it any more.
func TestResumedBeforeToolCallStarted(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		run := r.start()
		r.Append(run, events.Planning, single("a", "beta"))
		p, log := r.firstAppend(func() { r.Append(run, events.Control, &events.Resumed{}) }) // wins the race
		older := r.worker(p, handlers{effects.KindTool: startThenRun(h)}, func(c *worker.Config) {
			c.Store, c.Concurrency = r.NewStore(log), 1
		})
		r.Go(older.Run)
		<-h.began
		settled() // far longer than the ack wait: nobody else may conclude it
		require.Equal(t, []string{"Start", "LlmToolCall", "Resumed", "ToolCallStarted"}, r.Types(run))
		h.let <- worker.Done(&events.ToolSuccess{Outcome: outcome("a")})
		r.AwaitState(run, events.Observing)
		require.Equal(t, []string{"Start", "LlmToolCall", "Resumed", "ToolCallStarted", "ToolSuccess"}, r.Types(run))
		require.Empty(t, h.began, "it ran once")
	})
}

// Deliveries that came to nothing while the log was away count as one lost
// worker, and failures after them count as what they are.
func TestDeliveriesOfAnOutageCountOnce(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		back := time.Now().Add(20 * time.Second)
		log := &workertest.Log{OnRead: func(events.Run) error {
			if time.Now().Before(back) {
				return context.DeadlineExceeded
			}
			return nil
		}}
		failed := 0
		h := handlers{effects.KindPlan: work(func(context.Context) worker.Result {
			if failed++; failed <= 12 {
				return worker.Retry(events.LLMAttemptFailed{Kind: "rate_limited", Message: "slow down"}, time.Second)
			}
			return worker.Done(answer("at last"))
		})}
		r.onLog(h, log)
		run := r.start()
		mem := r.AwaitEnd(run)
		require.Equal(t, events.Done, mem.State)
		lost := 0
		for _, kind := range kinds(r.failures(run)) {
			if kind == codes.KindWorkerLost {
				lost++
			}
		}
		require.Equal(t, 1, lost)
		require.Len(t, r.failures(run), 13)
	})
}

// What has to be done on arrival is done before anything that is due, and until
// it succeeds the delivery comes again.
func TestArrivedComesFirst(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var tried, planned counter
		seen := make(chan uint64, 10)
		r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
			planned.add()
			return worker.Done(answer("done"))
		})}, func(c *worker.Config) {
			c.Arrived = func(run events.Run, mem *reducer.Memory) func(context.Context) error {
				if run.ID != mem.RunID {
					t.Errorf("asked for %s with the memory of %s", run.ID, mem.RunID)
				}
				seen <- mem.N
				return func(context.Context) error {
					if tried.add() < 4 {
						return errors.New("not yet")
					}
					if planned.get() > 0 {
						t.Error("the work was done before")
					}
					return nil
				}
			}
		})
		run := r.start()
		r.AwaitEnd(run)
		require.EqualValues(t, 1, <-seen)
		require.Equal(t, 4, tried.get())
		require.Equal(t, 1, planned.get())
	})
}
