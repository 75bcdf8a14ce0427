package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/stretchr/testify/require"
)

// A process that was frozen while it reflected goes on with a run that was handed over meanwhile, then dies.
func TestThawedLeader(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		slow := r.Journal.NewProcess()
		held, acting := make(chan struct{}), make(chan struct{})
		plan := worker.HandlerFunc(func(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
			said := []events.Payload{single("c1", "alpha"), single("c2", "alpha"), answer("It is done.")}[mem.Step]
			return func(context.Context) worker.Result { return worker.Done(said) }
		})
		reflecting := worker.HandlerFunc(func(events.Run, *reducer.Memory, effects.Effect) worker.Work {
			return func(context.Context) worker.Result { return worker.Done(&events.ReflectDone{Summary: "so far"}) }
		})
		observe := worker.HandlerFunc(func(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
			p := events.Payload(&events.Continue{})
			if mem.Step == 1 {
				p = &events.NeedsReflection{}
			}
			return func(context.Context) worker.Result { return worker.Done(p) }
		})
		hs := func(tool, reflect worker.Handler) handlers {
			return handlers{effects.KindPlan: plan, effects.KindReflect: reflect, effects.KindObserve: observe, effects.KindTool: tool}
		}
		slowly := worker.HandlerFunc(func(at events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
			prepared := reflecting.Prepare(at, mem, e)
			return func(ctx context.Context) worker.Result { <-held; return prepared(ctx) }
		})
		dies := worker.HandlerFunc(func(at events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
			if e.CallID == "c1" {
				return succeeds.Prepare(at, mem, e)
			}
			return func(ctx context.Context) worker.Result {
				close(acting)
				<-ctx.Done() // the process dies here
				return worker.Fail(ctx.Err())
			}
		})
		planning := []journal.Inbox{{States: []events.State{events.Planning, events.Reflecting}, Pool: events.DefaultPool}}
		frozen := frozenQueue{Queue: slow}
		store, crew := r.NewStore(slow), new(worker.Crew)
		for _, part := range [][]journal.Inbox{planning, inboxes()[1:2], inboxes()[2:]} {
			w := r.worker(slow, hs(dies, slowly), func(c *worker.Config) { c.Store, c.Crew, c.Inboxes, c.Queue = store, crew, part, frozen })
			r.GoOn(slow, w.Run)
		}
		settled()
		run := r.start()
		r.AwaitState(run, events.Reflecting)
		// Separate processes: planner and the rest. Their reflection takes longer.
		var asked counter
		later := make(chan struct{})
		long := worker.HandlerFunc(func(at events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
			prepared := reflecting.Prepare(at, mem, e)
			return func(ctx context.Context) worker.Result {
				select {
				case <-later:
				case <-ctx.Done():
				}
				return prepared(ctx)
			}
		})
		r.spawn(hs(succeeds, long), func(c *worker.Config) {
			c.Inboxes = planning
			c.HandOver = func(_ context.Context, at events.Run, n uint64) error {
				asked.add()
				r.Append(run, events.Control, &events.Resumed{Redrive: true})
				return nil
			}
		})
		r.spawn(hs(succeeds, long), func(c *worker.Config) { c.Inboxes = inboxes()[1:] })
		time.Sleep(5 * time.Minute) // in the bubble
		close(held)
		<-acting
		settled()
		slow.Kill()
		close(later)
		time.Sleep(2 * time.Hour) // in the bubble
		require.Equal(t, events.Done, r.Memory(run).State)
	})
}
