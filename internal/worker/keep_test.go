package worker_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// stepping calls a tool in each of three steps. It takes some time, so that a delivery comes
// before the next step.
func stepping(took func(step int) time.Duration) handlers {
	return handlers{
		effects.KindPlan: worker.HandlerFunc(func(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
			step := mem.Step
			return func(context.Context) worker.Result {
				if step == 3 {
					return worker.Done(answer("It is done."))
				}
				time.Sleep(took(step))
				return worker.Done(single("c"+strconv.Itoa(step), "beta"))
			}
		}),
		effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
			return func(context.Context) worker.Result {
				return worker.Done(&events.ToolSuccess{Outcome: outcome(e.CallID)})
			}
		}),
		effects.KindObserve: always(&events.Continue{}),
	}
}

func soon(int) time.Duration { return time.Millisecond }

// woken lists which states the results of a run's calls woke.
func (r *rig) woken(run events.Run) []events.State {
	var all []events.State
	for rec, err := range r.Journal.NewProcess().Read(context.Background(), run, 0) {
		require.NoError(r.T, err)
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(r.T, err)
		if s.From == events.Acting {
			all = append(all, s.To)
		}
	}
	return all
}

// requireKept checks that the run has ended as usual, which states its results woke, and that
// no delivery is left.
func (r *rig) requireKept(run events.Run, woken ...events.State) {
	r.T.Helper()
	r.AwaitEnd(run)
	synctest.Wait()
	require.Equal(r.T, woken, r.woken(run))
	require.Equal(r.T, 3, r.Count(run, events.TypeContinue))
	require.Zero(r.T, r.Journal.Outstanding())
}

// The first result of a run wakes the observer. Its delivery is kept, so that the others wake
// nobody.
func TestKeep(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began, run := time.Now(), r.start()
		r.spawn(stepping(soon), following)
		r.requireKept(run, events.Observing, events.Nobody, events.Nobody)
		require.Less(t, time.Since(began), runlog.KeepFor, "the end of the run ends it")
	})
}

// A delivery is kept for less than the ack wait.
func TestKeepEnds(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run := r.start()
		r.spawn(stepping(func(step int) time.Duration { return time.Duration(step) * runlog.KeepFor }), following)
		r.requireKept(run, events.Observing, events.Observing, events.Observing)
	})
}

// A short ack wait bounds it further.
func TestKeepEndsBeforeTheAckWait(t *testing.T) {
	bubbleWith(t, simtest.Options{AckWait: 300 * time.Millisecond}, func(t *testing.T, r *rig) {
		run := r.start()
		r.spawn(stepping(func(step int) time.Duration { return time.Duration(step) * 90 * time.Millisecond }), following)
		r.requireKept(run, events.Observing, events.Nobody, events.Observing)
	})
}

// Who ends in order keeps nothing.
func TestKeepUntilShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run := r.start()
		h, reached := stepping(soon), make(chan struct{})
		h[effects.KindPlan] = worker.HandlerFunc(func(_ events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
			if mem.Step == 0 {
				return asking(single("c0", "beta")).Prepare(run, mem, e)
			}
			return func(ctx context.Context) worker.Result {
				close(reached)
				<-ctx.Done()
				return worker.Fail(ctx.Err())
			}
		})
		_, stop := r.spawn(h, following, func(c *worker.Config) { c.Drain = time.Millisecond })
		<-reached
		synctest.Wait()
		require.Equal(t, 2, r.Journal.Outstanding(), "the model's, and the one that is kept")
		began := time.Now()
		stop()
		require.Less(t, time.Since(began), runlog.KeepFor)
		require.Equal(t, 1, r.Journal.Outstanding(), "the model's")
	})
}

// What is not followed up behind a result that woke nobody is done under the delivery that is
// kept.
func TestKeptIsLookedAt(t *testing.T) {
	// onQuiet calls then when the n-th append behind a result that wakes nobody is made; 0 is
	// that of the result.
	onQuiet := func(r *rig, n int, then func(log *workertest.Log, append func() (uint64, error)) (uint64, error)) *workertest.Log {
		log, seen := &workertest.Log{}, -1
		log.OnAppend = func(ctx context.Context, run events.Run, last uint64, entries []journal.Entry) (uint64, error) {
			if s := entries[0].Subject; seen >= 0 || s.From == events.Acting && s.To == events.Nobody {
				seen++
			}
			do := func() (uint64, error) { return log.Log.Append(ctx, run, last, entries...) }
			if seen == n {
				seen = 100
				return then(log, do)
			}
			return do()
		}
		return log
	}
	t.Run("after a lost race", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run := r.start()
			log := onQuiet(r, 1, func(_ *workertest.Log, do func() (uint64, error)) (uint64, error) {
				r.Append(run, events.Control, &events.UserMessage{MessageID: "m", Content: "wins the race"})
				return do()
			})
			r.onLog(stepping(soon), log, following)
			r.requireKept(run, events.Observing, events.Nobody, events.Observing)
		})
	})
	t.Run("in a paused run", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run := r.start()
			log := onQuiet(r, 1, func(_ *workertest.Log, do func() (uint64, error)) (uint64, error) {
				r.Append(run, events.Control, &events.Paused{})
				return do()
			})
			r.onLog(stepping(soon), log, following)
			r.AwaitType(run, events.TypePaused)
			synctest.Wait()
			require.Equal(t, events.Planning, r.Memory(run).State)
			r.Append(run, events.Control, &events.Resumed{})
			r.requireKept(run, events.Observing, events.Nobody, events.Observing)
		})
	})
	t.Run("after a panic", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run, asked := r.start(), 0
			r.spawn(stepping(soon), func(c *worker.Config) {
				c.Follow = func(at events.Run, mem *reducer.Memory, e effects.Effect) (events.Payload, string) {
					if e.Kind == effects.KindObserve {
						if asked++; asked == 2 {
							panic("no")
						}
					}
					return follow(at, mem, e)
				}
			})
			r.requireKept(run, events.Observing, events.Nobody, events.Observing)
		})
	})
	t.Run("after an append of unknown outcome", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			run := r.start()
			log := onQuiet(r, 0, func(_ *workertest.Log, do func() (uint64, error)) (uint64, error) {
				_, err := do()
				require.NoError(t, err)
				return 0, journal.ErrUnknownOutcome
			})
			r.onLog(stepping(soon), log, following)
			r.requireKept(run, events.Observing, events.Nobody, events.Observing)
		})
	})
	t.Run("when the outcome is known at last", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *rig) {
			began, run := time.Now(), r.start()
			log := onQuiet(r, 0, func(log *workertest.Log, do func() (uint64, error)) (uint64, error) {
				_, err := do()
				require.NoError(t, err)
				away := time.Now().Add(2 * runlog.KeepFor)
				log.OnRead = func(events.Run) error {
					if time.Now().Before(away) {
						return journal.ErrUnknownOutcome
					}
					return nil
				}
				return 0, journal.ErrUnknownOutcome
			})
			r.onLog(stepping(soon), log, following)
			r.AwaitEnd(run)
			synctest.Wait()
			require.Equal(t, 3, r.Count(run, events.TypeContinue))
			require.Greater(t, time.Since(began), worker.Outage.Budget, "the kept delivery is given back, not finished")
			require.Zero(t, r.Journal.Outstanding())
		})
	})
}

// A delivery that others may have got is not kept any longer.
func TestKeepWhatIsSole(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		run := r.start()
		r.spawn(stepping(soon), following, func(c *worker.Config) { c.Queue = shared{c.Queue} })
		r.requireKept(run, events.Observing, events.Observing, events.Observing)
	})
}

// shared hands out deliveries that others may have.
type shared struct{ journal.Queue }

func (s shared) Consume(ctx context.Context, in journal.Inbox, slots int, handle func(journal.Delivery)) error {
	return s.Queue.Consume(ctx, in, slots, func(d journal.Delivery) { handle(sharedDelivery{d}) })
}

type sharedDelivery struct{ journal.Delivery }

func (sharedDelivery) Sole() bool { return false }
