package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// onLog gives a worker a store on a log of the test's own.
func (r *rig) onLog(h handlers, log *workertest.Log, change ...func(*worker.Config)) {
	p := r.Journal.NewProcess()
	log.Log = p
	w := r.worker(p, h, append(change, func(c *worker.Config) { c.Store = r.NewStore(log) })...)
	r.Go(w.Run)
}

// three is a run of three transitions in one worker.
func three() handlers {
	return handlers{
		effects.KindPlan: worker.HandlerFunc(func(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
			step := mem.Step
			return func(context.Context) worker.Result {
				if step < 2 {
					return worker.Done(single(fmt.Sprint("c", step), "beta"))
				}
				return worker.Done(answer("It is done."))
			}
		}),
		effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
			return func(context.Context) worker.Result {
				return worker.Then(&events.ToolCallStarted{CallID: e.CallID}, func(context.Context) worker.Result {
					return worker.Done(&events.ToolSuccess{Outcome: outcome(e.CallID)})
				})
			}
		}),
		effects.KindObserve: always(&events.Continue{}),
	}
}

var threeTypes = []string{
	"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess", "Continue",
	"LlmToolCall", "ToolCallStarted", "ToolSuccess", "Continue", "LlmFinalAnswer",
}

func TestAppendsUnknownOutcome(t *testing.T) {
	for _, stored := range []bool{true, false} {
		t.Run(fmt.Sprintf("stored=%v", stored), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				log := &workertest.Log{}
				var mu sync.Mutex
				doubted := map[uint64]bool{}
				log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
					mu.Lock()
					first := !doubted[last]
					doubted[last] = true
					mu.Unlock()
					if !first {
						return log.Log.Append(ctx, run, last, entries...)
					}
					if stored {
						if _, err := log.Log.Append(ctx, run, last, entries...); err != nil {
							return 0, err
						}
					}
					return 0, journal.ErrUnknownOutcome
				}
				r.onLog(three(), log)
				run := r.start()
				r.AwaitEnd(run)
				settled()
				require.Equal(t, threeTypes, r.Types(run))
				r.Memory(run)
			})
		})
	}
}

// While the log is away no delivery gets a verdict. When the log is back the run goes on,
// and no event is there twice.
func TestOutage(t *testing.T) {
	for name, during := range map[string]func(log *workertest.Log, away func() error){
		"append": func(log *workertest.Log, away func() error) {
			log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
				if err := away(); err != nil {
					return 0, err
				}
				return log.Log.Append(ctx, run, last, entries...)
			}
		},
		"unknown outcome and nothing to read": func(log *workertest.Log, away func() error) {
			log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
				seq, err := log.Log.Append(ctx, run, last, entries...)
				if err == nil && away() != nil {
					err = journal.ErrUnknownOutcome
				}
				return seq, err
			}
			log.OnRead = func(events.Run) error { return away() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				log := &workertest.Log{}
				back := time.Now().Add(2 * time.Second)
				during(log, func() error {
					if time.Now().Before(back) {
						return context.DeadlineExceeded
					}
					return nil
				})
				r.onLog(three(), log)
				run := r.start()
				mem := r.AwaitEnd(run)
				require.Equal(t, events.Done, mem.State)
				settled()
				types := slices.DeleteFunc(r.Types(run), func(s string) bool { return s == "LlmAttemptFailed" })
				require.Equal(t, threeTypes, types)
				require.LessOrEqual(t, len(r.failures(run)), 1, "a worker that could not read counts as lost")
				r.Memory(run)
			})
		})
	}
}

// Results are kept while the log is away: a tool that must not run twice has a result
// nevertheless, and a model is not paid twice.
func TestResultsSurviveAnOutage(t *testing.T) {
	for name, lost := range map[string]bool{"not stored": false, "stored, but nobody says so": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := newHanging()
				log := &workertest.Log{}
				var away atomic.Bool
				log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
					if !away.Load() {
						return log.Log.Append(ctx, run, last, entries...)
					}
					if lost {
						_, _ = log.Log.Append(ctx, run, last, entries...)
						return 0, journal.ErrUnknownOutcome
					}
					return 0, errors.New("no connection")
				}
				log.OnRead = func(events.Run) error {
					if away.Load() {
						return errors.New("no connection")
					}
					return nil
				}
				run := r.start()
				r.Append(run, events.Planning, single("a", "beta"))
				r.onLog(handlers{effects.KindTool: startThenRun(h)}, log)
				<-h.began
				away.Store(true)
				h.let <- worker.Done(&events.ToolSuccess{Outcome: outcome("a")})
				time.Sleep(50 * time.Second) // in the bubble
				away.Store(false)
				r.AwaitState(run, events.Observing)
				settled()
				require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess"}, r.Types(run))
				require.Empty(t, h.began)
			})
		})
	}
}

// An intent whose append has an unknown outcome, during an outage, is found afterwards:
// the call runs once.
func TestIntentUnknownOutcomeThroughAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		log := &workertest.Log{}
		back := time.Now().Add(5 * time.Second)
		away := func() bool { return time.Now().Before(back) }
		log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
			seq, err := log.Log.Append(ctx, run, last, entries...)
			if err == nil && away() {
				err = journal.ErrUnknownOutcome
			}
			return seq, err
		}
		run := r.start()
		r.Append(run, events.Planning, single("a", "beta"))
		reads := 0
		log.OnRead = func(events.Run) error {
			if reads++; reads > 1 && away() {
				return errors.New("no connection")
			}
			return nil
		}
		r.onLog(handlers{effects.KindTool: startThenRun(h)}, log)
		<-h.began
		h.let <- worker.Done(&events.ToolSuccess{Outcome: outcome("a")})
		r.AwaitState(run, events.Observing)
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess"}, r.Types(run))
	})
}

// An outage that does not end is not waited for without a limit.
func TestOutageWithoutEnd(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		log := &workertest.Log{}
		log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
			if entries[0].Subject.To == events.Done {
				return 0, errors.New("this one is refused for ever")
			}
			return log.Log.Append(ctx, run, last, entries...)
		}
		r.onLog(handlers{effects.KindPlan: always(answer("It is done."))}, log)
		run := r.start()
		mem := r.AwaitEnd(run)
		require.Equal(t, codes.AttemptsExhausted, mem.Error.Code)
		require.Len(t, r.failures(run), 11)
	})
}

// Failures of planning do not count as lost workers of the effects that follow under the
// same delivery.
func TestDispatchAfterFailuresIsNotLost(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var tries counter
		r.spawn(handlers{
			effects.KindPlan: work(func(context.Context) worker.Result {
				if tries.add() < 3 {
					return worker.Retry(events.LLMAttemptFailed{Kind: "network", Message: "away"}, time.Second)
				}
				return worker.Done(batch(call("a", "alpha"), call("b", "gamma")))
			}),
			effects.KindDispatch: dispatching(),
			effects.KindTool:     newHanging(),
		})
		run := r.start()
		settled()
		require.Equal(t, []string{"network", "network"}, kinds(r.failures(run)))
		require.Equal(t, 2, r.Count(run, events.TypeToolCallDispatched))
	})
}

// A crash between the reply and the dispatch of its calls is counted, and the other calls
// are dispatched.
func TestDispatchAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		deadly := make(chan struct{})
		p, _ := r.spawn(handlers{
			effects.KindPlan: always(batch(call("a", "alpha"), call("b", "gamma"))),
			effects.KindDispatch: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(ctx context.Context) worker.Result {
					if e.CallID == "b" {
						close(deadly)
						<-ctx.Done()
					}
					return worker.Done(&events.ToolCallDispatched{CallID: e.CallID})
				}
			}),
		}, func(c *worker.Config) { c.Inboxes = inboxes()[:1] })
		run := r.start()
		<-deadly
		r.AwaitType(run, events.TypeToolCallDispatched)
		p.Kill()
		r.spawn(handlers{effects.KindDispatch: dispatching()}, func(c *worker.Config) { c.Inboxes = inboxes()[:1] })
		settled()
		require.Equal(t, []string{"Start", "LlmParallelToolCalls", "ToolCallDispatched", "LlmAttemptFailed", "ToolCallDispatched"}, r.Types(run))
	})
}

func dispatching() worker.Handler {
	return worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
		return func(context.Context) worker.Result { return worker.Done(&events.ToolCallDispatched{CallID: e.CallID}) }
	})
}

// A worker that goes on with its own events does not read the log.
func TestHotPathDoesNotRead(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		log := &workertest.Log{}
		r.onLog(three(), log)
		run := r.start()
		r.AwaitEnd(run)
		settled()
		require.Equal(t, 1, log.Reads(), "the run's beginning alone")
		require.Equal(t, len(threeTypes)-1, log.Appends())
	})
}

func TestWorkersOfOneStateShareWork(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		const runs = 60
		var mu sync.Mutex
		did := map[int]int{}
		planned := map[events.Run]int{}
		for i := range 3 {
			r.spawn(handlers{effects.KindPlan: worker.HandlerFunc(func(run events.Run, _ *reducer.Memory, _ effects.Effect) worker.Work {
				return func(ctx context.Context) worker.Result {
					mu.Lock()
					did[i]++
					planned[run]++
					mu.Unlock()
					time.Sleep(time.Second) // in the bubble: busy
					return worker.Done(answer("It is done."))
				}
			})}, func(c *worker.Config) { c.Concurrency = 4 })
		}
		began := time.Now()
		var all []events.Run
		for range runs {
			all = append(all, r.start())
		}
		for _, run := range all {
			require.Equal(t, events.Done, r.AwaitEnd(run).State)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, run := range all {
			require.Equal(t, 1, planned[run])
		}
		require.Equal(t, runs/12*time.Second, time.Since(began), "all slots of all workers were used")
		for i := range 3 {
			require.Equal(t, runs/3, did[i])
		}
	})
}

// Every kind of fault at once, with several workers: no event is lost or there
// twice, and the run gets to its end.
func TestFaultyBus(t *testing.T) {
	for seed := range uint64(30) {
		o := simtest.Options{Seed: seed, Shards: 2, Faults: simtest.Faults{
			Delay: 0.2, Duplicate: 0.3, Reorder: 0.3, LoseAck: 0.3, UnknownOutcome: 0.3, Lost: 0.3,
		}}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubbleWith(t, o, func(t *testing.T, r *rig) {
				for range 3 {
					r.spawn(three())
				}
				run := r.start()
				require.Equal(t, events.Done, r.AwaitEnd(run).State)
				settled()
				mem := r.Memory(run)
				require.Equal(t, "LlmFinalAnswer", mem.Trace[len(mem.Trace)-1].Event)
			})
		})
	}
}
