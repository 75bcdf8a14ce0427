package actor_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

func startWith(r *rig) *events.Start {
	start := reducertest.StartOf("do it", events.ModeTask)
	start.Tools = r.specs
	return start
}

func slow(text string) func(context.Context, tool.Call) (string, error) {
	return func(ctx context.Context, _ tool.Call) (string, error) {
		select {
		case <-time.After(100 * time.Millisecond):
			return text, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func TestParallelCallsRunAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.spawn([]tool.Tool{pure("a", "default", slow("1")), pure("b", "default", slow("2"))})
		began := time.Now()
		run := r.plan("a", "b")
		results := r.results(run)
		require.Less(t, time.Since(began), 180*time.Millisecond)
		require.Equal(t, reducer.ToolResult{
			ToolCall: reducer.ToolCall{ID: "c1", Name: "a", Arguments: "{}"},
			Success:  true, Observation: "SUCCESS: 1", Code: "ok", LatencyMS: 100,
		}, results["c1"])
		require.Equal(t, "SUCCESS: 2", results["c2"].Observation)
		quiet()
		require.Equal(t, []string{"Start", "LlmParallelToolCalls", "ToolCallResult", "ToolCallResult", "ToolSuccess"}, r.Types(run))
		success, ok := r.Events(run)[4].Data.(*events.ToolSuccess)
		require.True(t, ok)
		require.Nil(t, success.Outcome)
	})
}

func TestOneFailureStopsNoOther(t *testing.T) {
	fails := pure("fails", "default", func(context.Context, tool.Call) (string, error) { return "", errors.New("no") })
	panics := pure("panics", "default", func(context.Context, tool.Call) (string, error) { panic("no") })
	t.Run("some", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.spawn([]tool.Tool{fails, panics, pure("works", "default", slow("1"))})
			run := r.plan("fails", "works", "panics", "unknown")
			results := r.results(run)
			require.Len(t, results, 4)
			require.True(t, results["c2"].Success)
			require.Equal(t, []string{"tool_failed", "panic", "not_found"}, []string{results["c1"].Code, results["c3"].Code, results["c4"].Code})
			types := r.Types(run)
			require.Equal(t, "ToolSuccess", types[len(types)-1])
		})
	})
	t.Run("all", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			r.spawn([]tool.Tool{fails, panics})
			run := r.plan("fails", "panics", "fails")
			require.Len(t, r.results(run), 3)
			types := r.Types(run)
			require.Equal(t, "ToolFailure", types[len(types)-1])
		})
	})
}

// dispatcher sends the calls of a batch to their pools, as a planner does.
func (r *rig) dispatcher() {
	p := r.Journal.NewProcess()
	w, err := worker.New(worker.Config{
		Role: "planner", Base: worker.Base{Instance: "1", Store: r.NewStore(p), Queue: p, Feed: p},
		Inboxes: []journal.Inbox{{States: []events.State{events.Planning}, Pool: events.DefaultPool}},
		Handlers: map[effects.Kind]worker.Handler{
			effects.KindPlan: worker.HandlerFunc(func(events.Run, *reducer.Memory, effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					return worker.Done(&events.LLMParallelToolCalls{ToolCallReply: events.ToolCallReply{Confidence: 1, Calls: []events.Call{
						{ID: "c1", Name: "a", Arguments: "{}"}, {ID: "c2", Name: "b", Arguments: "{}"}, {ID: "c3", Name: "b", Arguments: "{}"},
					}}})
				}
			}),
			effects.KindDispatch: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(context.Context) worker.Result { return worker.Done(&events.ToolCallDispatched{CallID: e.CallID}) }
			}),
		},
	})
	require.NoError(r.T, err)
	r.Go(w.Run)
}

func TestSeveralPools(t *testing.T) {
	for _, last := range []string{"a", "b"} {
		t.Run("joined by the pool of "+last, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				let := make(chan struct{})
				waits := func(text string, wait bool) func(context.Context, tool.Call) (string, error) {
					return func(context.Context, tool.Call) (string, error) {
						if wait {
							<-let
						}
						return text, nil
					}
				}
				tools := []tool.Tool{pure("a", "one", waits("1", last == "a")), pure("b", "two", waits("2", last == "b"))}
				r.spawn(tools, func(c *actor.Config) { c.Pools, c.Instance = []string{"one"}, "one" })
				r.spawn(tools, func(c *actor.Config) { c.Pools, c.Instance = []string{"two"}, "two" })
				r.dispatcher()
				run := r.Start(startWith(r))
				synctest.Wait()
				close(let)
				require.Len(t, r.results(run), 3)
				quiet()
				all := r.Events(run)
				require.Equal(t, 3, r.Count(run, events.TypeToolCallDispatched))
				require.Equal(t, 3, r.Count(run, events.TypeToolCallResult))
				join := all[len(all)-1]
				require.Equal(t, events.TypeToolSuccess, join.Type())
				require.Equal(t, "moorebus/actor/"+map[string]string{"a": "one", "b": "two"}[last], join.Source)
				require.Zero(t, r.Count(run, events.TypeLLMAttemptFailed))
			})
		})
	}
}

// An actor's death costs only its own calls, and of those only the ones that
// have no result.
func TestKilledActorCostsItsOwnCalls(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began := make(chan string, 10)
		a := &fn{def: tool.Definition{Name: "a", Pool: "one", Effect: tool.Once}, run: says("1")}
		b := &fn{def: tool.Definition{Name: "b", Pool: "two", Effect: tool.Once}}
		b.run = func(ctx context.Context, c tool.Call) (string, error) {
			began <- c.ID
			if c.ID == "c2" {
				return "2", nil
			}
			<-ctx.Done()
			return "", ctx.Err()
		}
		tools := []tool.Tool{a, b}
		r.spawn(tools, func(c *actor.Config) { c.Pools = []string{"one"} })
		victim := r.spawn(tools, func(c *actor.Config) { c.Pools = []string{"two"} })
		r.dispatcher()
		run := r.Start(startWith(r))
		<-began
		<-began
		r.Await(run, func(mem *reducer.Memory) bool { return len(mem.ParallelResults) == 2 })
		victim.Kill()
		r.spawn(tools, func(c *actor.Config) { c.Pools = []string{"two"} })
		results := r.results(run)
		require.Equal(t, []string{"ok", "ok", "outcome_unknown"}, []string{results["c1"].Code, results["c2"].Code, results["c3"].Code})
		for _, id := range []string{"c1", "c2", "c3"} {
			require.Equal(t, 1, a.count(id)+b.count(id), id)
		}
		require.Equal(t, 1, r.Count(run, events.TypeLLMAttemptFailed), "one call was lost")
	})
}

// Calls of a reply that have their results are not run again, in one pool either.
func TestKilledActorOfABatchInOnePool(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began := make(chan string, 10)
		f := once("f", func(ctx context.Context, c tool.Call) (string, error) {
			began <- c.ID
			if c.ID != "c2" {
				return "done", nil
			}
			<-ctx.Done()
			return "", ctx.Err()
		})
		victim := r.spawn([]tool.Tool{f})
		run := r.plan("f", "f", "f")
		for range 3 {
			<-began
		}
		r.Await(run, func(mem *reducer.Memory) bool { return len(mem.ParallelResults) == 2 })
		victim.Kill()
		r.spawn([]tool.Tool{f})
		results := r.results(run)
		require.Equal(t, codes.OutcomeUnknown, results["c2"].Code)
		require.True(t, results["c1"].Success && results["c3"].Success)
		require.Equal(t, 1, f.count("c2"))
		require.Equal(t, 3, r.Count(run, events.TypeToolCallStarted))
	})
}

// A crash between the last result and the join is picked up by the delivery of
// that result.
func TestJoinAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.specs = []events.ToolSpec{{Name: "f", Effect: "pure", Pool: "default"}}
		run := r.plan("f", "f")
		for _, id := range []string{"c1", "c2"} {
			r.Append(run, events.ParallelActing, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: id, Observation: "ERROR: x"}})
		}
		f := pure("f", "default", says("never"))
		r.spawn([]tool.Tool{f})
		r.results(run)
		require.Equal(t, []string{"Start", "LlmParallelToolCalls", "ToolCallResult", "ToolCallResult", "ToolFailure"}, r.Types(run))
		require.Zero(t, f.count("c1")+f.count("c2"))
	})
}
