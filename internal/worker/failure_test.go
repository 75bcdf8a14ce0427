package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// broken are the ways in which a handler fails.
func broken() map[string]worker.Handler {
	return map[string]worker.Handler{
		"panic in Plan": worker.HandlerFunc(func(events.Run, *reducer.Memory, effects.Effect) worker.Work {
			panic("no plan")
		}),
		"nil work":      work(nil),
		"panic in Work": work(func(context.Context) worker.Result { panic(errors.New("no work")) }),
		"no outcome":    always(),
		"Fail":          work(func(context.Context) worker.Result { return worker.Fail(errors.New("broken")) }),
		"illegal outcome": always(&events.LLMToolCall{ToolCallReply: events.ToolCallReply{
			Calls: []events.Call{call("a", "alpha"), call("b", "alpha")},
		}}),
		"too large": always(answer(strings.Repeat("x", journal.MaxBody))),
		"half of a batch is illegal": always(&events.WorkingMemoryAdded{Entry: events.Entry{Value: "x"}},
			&events.LLMToolCall{}),
	}
}

func TestBrokenHandlerEndsTheRun(t *testing.T) {
	for name, h := range broken() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.spawn(handlers{effects.KindPlan: h})
				run := r.start()
				mem := r.AwaitEnd(run)
				require.Equal(t, events.Errored, mem.State)
				require.Equal(t, codes.AttemptsExhausted, mem.Error.Code)
				failed := r.failures(run)
				require.Equal(t, []string{"handler", "handler", "handler", "handler"}, kinds(failed))
				for _, f := range failed {
					require.Equal(t, "plan/1", f.Key, "the key never names the attempt")
					require.NotEmpty(t, f.Message)
				}
				requireGaps(t, r, run, 200*time.Millisecond, 400*time.Millisecond, 800*time.Millisecond, 1600*time.Millisecond)
				settled()
				require.Len(t, r.Records(run), 6, "nothing follows the end")
				r.Memory(run)
			})
		})
	}
}

// requireGaps checks the times between the events after the second one.
func requireGaps(t *testing.T, r *rig, run events.Run, gaps ...time.Duration) {
	t.Helper()
	all := r.Events(run)
	require.Len(t, all, len(gaps)+2)
	for i, gap := range gaps {
		require.Equal(t, gap, all[i+2].Time.Sub(all[i+1].Time).Round(time.Millisecond), "before event %d", i+3)
	}
}

func TestBrokenToolIsGivenUpAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.spawn(handlers{
			effects.KindPlan:    always(single("a", "beta")),
			effects.KindTool:    work(func(context.Context) worker.Result { panic("broken tool") }),
			effects.KindObserve: always(&events.CancelledRun{}), // illegal from observing: see below
		})
		run := r.start()
		at := r.AwaitState(run, events.Observing).N
		failure, ok := r.Events(run)[at-1].Data.(*events.ToolFailure)
		require.True(t, ok)
		require.Equal(t, codes.AttemptsExhausted, failure.Outcome.Code)
		require.True(t, strings.HasPrefix(failure.Outcome.Observation, codes.ErrorPrefix))
		require.Equal(t, []string{"handler", "handler", "handler", "handler"}, kinds(r.failures(run))[:4])
		// An event that may not come from here is the handler's failure too.
		mem := r.AwaitEnd(run)
		require.Equal(t, codes.AttemptsExhausted, mem.Error.Code)
	})
}

func TestBrokenCallOfABatchIsGivenUpAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.spawn(handlers{
			effects.KindPlan: always(batch(call("a", "gamma"), call("b", "gamma"))),
			effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					if e.CallID == "a" {
						panic("broken call")
					}
					return worker.Done(&events.ToolCallResult{ToolOutcome: *outcome(e.CallID)})
				}
			}),
			effects.KindJoin: always(&events.ToolSuccess{}),
		})
		run := r.start()
		mem := r.AwaitState(run, events.Observing)
		require.Len(t, mem.ParallelResults, 2)
		require.Equal(t, "b", mem.ParallelResults[0].ID)
		require.True(t, mem.ParallelResults[0].Success)
		require.Equal(t, codes.AttemptsExhausted, mem.ParallelResults[1].Code)
	})
}

func TestFailureThatPasses(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var tries counter
		r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
			if tries.add() < 4 {
				return worker.Fail(errors.New("not yet"))
			}
			return worker.Done(answer("It is done."))
		})})
		run := r.start()
		require.Equal(t, events.Done, r.AwaitEnd(run).State)
		require.Equal(t, 4, tries.get())
		require.Equal(t, []string{"handler", "handler", "handler"}, kinds(r.failures(run)))
	})
}

// A handler's message may be anything. It is logged shortened and as UTF-8.
func TestFailureMessagesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
			panic("\xff" + strings.Repeat("x\xfe", 2*journal.MaxBody))
		})})
		run := r.start()
		require.Equal(t, codes.AttemptsExhausted, r.AwaitEnd(run).Error.Code)
		failed := r.failures(run)
		require.Equal(t, []string{"handler", "handler", "handler", "handler"}, kinds(failed))
		require.Less(t, len(failed[0].Message), 20_000)
		require.True(t, utf8.ValidString(failed[0].Message))
	})
}

func TestRetryDelay(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var tries counter
		r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
			if tries.add() == 1 {
				return worker.Retry(events.LLMAttemptFailed{Kind: "rate_limited", Message: "slow down"}, 7*time.Minute)
			}
			return worker.Done(answer("It is done."))
		})})
		run := r.start()
		r.AwaitEnd(run)
		require.Equal(t, []string{"rate_limited"}, kinds(r.failures(run)))
		require.EqualValues(t, (7 * time.Minute).Milliseconds(), r.failures(run)[0].RetryAfterMS)
		requireGaps(t, r, run, 7*time.Minute)
	})
}

func TestLostWorker(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		started := make(chan struct{})
		hang := handlers{effects.KindPlan: work(func(ctx context.Context) worker.Result {
			started <- struct{}{}
			<-ctx.Done()
			return worker.Done(answer("too late"))
		})}
		run := r.start()
		for range 2 {
			p, _ := r.spawn(hang)
			<-started
			p.Kill()
		}
		r.spawn(handlers{effects.KindPlan: always(answer("It is done."))})
		mem := r.AwaitEnd(run)
		require.Equal(t, "It is done.", *mem.FinalAnswer)
		require.Equal(t, []string{"worker_lost", "worker_lost"}, kinds(r.failures(run)))
		for _, f := range r.failures(run) {
			require.Equal(t, "plan/1", f.Key)
		}
	})
}

// Logged failures are not counted again as lost workers.
func TestOnlyLostWorkersCountAsLost(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var tries counter
		hung := make(chan struct{})
		flaky := handlers{effects.KindPlan: work(func(ctx context.Context) worker.Result {
			switch tries.add() {
			case 3:
				hung <- struct{}{}
				<-ctx.Done()
			case 5:
				return worker.Done(answer("It is done."))
			}
			return worker.Retry(events.LLMAttemptFailed{Kind: "network", Message: "away"}, time.Second)
		})}
		run := r.start()
		first, _ := r.spawn(flaky)
		<-hung
		first.Kill()
		r.spawn(flaky)
		r.AwaitEnd(run)
		require.Equal(t, []string{"network", "network", "worker_lost", "network"}, kinds(r.failures(run)))
	})
}

func TestWorkersLostForEver(t *testing.T) {
	for _, state := range []events.State{events.Planning, events.Acting} {
		t.Run(string(state), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				started := make(chan struct{})
				deadly := work(func(ctx context.Context) worker.Result {
					started <- struct{}{}
					<-ctx.Done()
					return worker.Fail(ctx.Err())
				})
				h := handlers{effects.KindPlan: deadly}
				if state == events.Acting {
					h = handlers{effects.KindPlan: always(single("a", "alpha")), effects.KindTool: deadly}
				}
				run := r.start()
				for range 11 {
					p, _ := r.spawn(h)
					<-started
					p.Kill()
				}
				r.spawn(h)
				mem := r.AwaitState(run, events.Errored, events.Observing)
				require.Len(t, r.failures(run), 11)
				last := mem.Trace[len(mem.Trace)-1]
				if state == events.Acting {
					require.Equal(t, "ToolFailure", last.Event)
					require.Equal(t, codes.AttemptsExhausted, mem.Control.Last.Code)
				} else {
					require.Equal(t, codes.AttemptsExhausted, mem.Error.Code)
				}
			})
		})
	}
}

func TestNoHandler(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.spawn(handlers{})
		mem := r.AwaitEnd(r.start())
		require.Equal(t, codes.NoHandler, mem.Error.Code)
		require.Contains(t, mem.Error.Message, "planning")
	})
}

func TestEventWithoutRow(t *testing.T) {
	for _, p := range []events.Payload{&events.PageDone{}, &events.ToolSuccess{Outcome: outcome("a")}} {
		bubble(t, func(t *testing.T, r *rig) {
			r.spawn(handlers{effects.KindPlan: always(p)})
			run := r.start()
			mem := r.AwaitEnd(run)
			require.Equal(t, codes.InvalidTransition, mem.Error.Code)
			require.Contains(t, mem.Error.Message, string(events.TypeOf(p)))
			require.Len(t, r.Records(run), 2)
		})
	}
}

// A table of one's own may have no place for failures: then the first one ends
// the run, and nothing hangs.
func TestFailureWithoutRow(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Stay = nil
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	machine := reducer.NewMachine(reducer.MachineOptions{Table: table})
	for _, lost := range []bool{false, true} {
		bubble(t, func(t *testing.T, r *rig) {
			r.Machine = machine
			r.Store = r.NewStore(r.Journal)
			run := r.start()
			if lost {
				started := make(chan struct{})
				p, _ := r.spawn(handlers{effects.KindPlan: work(func(ctx context.Context) worker.Result {
					close(started)
					<-ctx.Done()
					return worker.Fail(ctx.Err())
				})})
				<-started
				p.Kill()
			}
			r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result { return worker.Fail(errors.New("broken")) })})
			mem := r.AwaitEnd(run)
			require.Equal(t, codes.InvalidTransition, mem.Error.Code)
		})
	}
}

func TestSafetyCap(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var id counter
		r.spawn(handlers{
			effects.KindPlan: work(func(context.Context) worker.Result {
				return worker.Done(single(fmt.Sprint("c", id.add()), "alpha"))
			}),
			effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					return worker.Done(&events.ToolSuccess{Outcome: outcome(e.CallID)})
				}
			}),
			effects.KindObserve: always(&events.Continue{}),
		})
		mem := r.AwaitEnd(r.start())
		require.Equal(t, codes.SafetyCap, mem.Error.Code)
		require.Equal(t, 5*15+3+1+1, mem.Control.SinceUser.Changes, "one over the cap, and the end")
	})
}

// A handler may end its goroutine, as FailNow does in a test.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	bubbleWith(t, simtest.Options{}, func(t *testing.T, r *rig) {
		var tries counter
		r.spawn(handlers{
			effects.KindPlan: always(batch(call("a", "gamma"), call("b", "gamma"))),
			effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					if e.CallID == "a" && tries.add() == 1 {
						runtime.Goexit()
					}
					return worker.Done(&events.ToolCallResult{ToolOutcome: *outcome(e.CallID)})
				}
			}),
			effects.KindJoin: always(&events.ToolSuccess{}),
		})
		run := r.start()
		mem := r.AwaitState(run, events.Observing)
		require.Len(t, mem.ParallelResults, 2)
		require.Equal(t, []string{"worker_lost"}, kinds(r.failures(run)))
	})
}

// A stand-in's failures are not the run's, so only its own log has them.
func TestFailuresOfAStandInAreLogged(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var tries counter
		var log lines
		r.spawn(handlers{effects.KindTool: work(func(context.Context) worker.Result {
			if tries.add() < 3 {
				return worker.Fail(errors.New("the bus is away"))
			}
			return worker.Done(&events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "a", Observation: "ERROR: nobody", Code: codes.NoActor}})
		})}, func(c *worker.Config) {
			c.Origin, c.Logger = events.Control, slog.New(slog.NewTextHandler(&log, nil))
			c.Inboxes = []journal.Inbox{{States: []events.State{events.Acting}, Pool: events.DefaultPool}}
		})
		run := r.start()
		r.Append(run, events.Planning, single("a", "alpha"))
		r.AwaitState(run, events.Observing)
		require.Empty(t, r.failures(run))
		require.Equal(t, 2, strings.Count(log.String(), "the bus is away"))
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), run.ID)
	})
}

// lines collects what is logged.
type lines struct {
	mu sync.Mutex
	strings.Builder
}

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(data)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.String()
}
