package worker_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// crew runs a planner, an actor and an observer of one process, that lead runs together.
func (r *rig) crew(h handlers, change ...func(*worker.Config)) (p *simtest.Process, stop func()) {
	r.T.Helper()
	p = r.Journal.NewProcess()
	store, crew := r.NewStore(p), new(worker.Crew)
	parts := make([]func(context.Context) error, 0, 3)
	for role, inboxes := range map[string][]journal.Inbox{"planner": inboxes()[:1], "observer": inboxes()[1:2], "actor": inboxes()[2:]} {
		change := append([]func(*worker.Config){func(c *worker.Config) {
			c.Role, c.Store, c.Crew, c.Inboxes = role, store, crew, inboxes
		}}, change...)
		parts = append(parts, r.worker(p, h, change...).Run)
	}
	return p, r.GoOn(p, func(ctx context.Context) error { return worker.RunAll(ctx, parts...) })
}

// leading are handlers of a run with two calls.
func leading(tool worker.Handler) handlers {
	return handlers{
		effects.KindObserve: always(&events.Continue{}), effects.KindTool: tool,
		effects.KindPlan: worker.HandlerFunc(func(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
			said := []events.Payload{single("c1", "alpha"), single("c2", "alpha"), answer("It is done.")}[mem.Step]
			return func(context.Context) worker.Result { return worker.Done(said) }
		}),
	}
}

// succeeds is a tool.
var succeeds = worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
	return func(context.Context) worker.Result {
		return worker.Done(&events.ToolSuccess{Outcome: outcome(e.CallID)})
	}
})

// wakes returns the `<to>` of the run's records.
func (r *rig) wakes(run events.Run) string {
	var all []string
	for _, rec := range r.Records(run) {
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(r.T, err)
		all = append(all, string(s.To))
	}
	return strings.Join(all, " ")
}

// unled is the run of leading where each event has its own delivery.
const unled = "planning acting observing planning acting observing planning done"

// One delivery leads a run to its end. Its events are those of separate processes, but for whom they
// wake.
func TestLead(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		for _, follows := range []worker.Follow{nil, follow} {
			_, stop := r.crew(leading(succeeds), func(c *worker.Config) { c.Follow = follows })
			settled() // all of them are at work
			run := r.start()
			r.AwaitEnd(run)
			settled()
			stop()
			require.Equal(t, "planning none none none none none none done", r.wakes(run))
			all := r.Events(run)
			for i, role := range []string{"planner", "actor", "observer", "planner", "actor", "observer", "planner"} {
				require.Equal(t, "moorebus/"+role+"/1", all[i+1].Source)
				require.Equal(t, all[i].ID, all[i+1].Cause)
			}
			require.Zero(t, r.Journal.Outstanding())
		}
	})
}

// What is not led waits for its delivery.
func TestNotLed(t *testing.T) {
	for name, c := range map[string]struct {
		start  func(*events.Start)
		change func(r *rig, retire func(), c *worker.Config)
		wakes  string
	}{
		"a run of an earlier revision": {start: func(p *events.Start) { p.TableHash = older(7) }, wakes: unled},
		"what a role does not take": {change: func(_ *rig, _ func(), c *worker.Config) {
			c.Leads = func(_ *reducer.Memory, p events.Payload) bool { return events.TypeOf(p) != events.TypeLLMToolCall }
		}, wakes: unled},
		"a process that takes nothing more": {change: func(_ *rig, retire func(), c *worker.Config) {
			c.Wrap = func(_ events.Run, _ *reducer.Memory, e effects.Effect, prepared worker.Work) worker.Work {
				return func(ctx context.Context) worker.Result {
					if e.Kind == effects.KindTool {
						retire()
						time.Sleep(time.Millisecond) // in the bubble
					}
					return prepared(ctx)
				}
			}
		}, wakes: "planning none observing"},
		"a run that was paused": {change: func(r *rig, _ func(), c *worker.Config) {
			c.Wrap = func(run events.Run, _ *reducer.Memory, e effects.Effect, prepared worker.Work) worker.Work {
				return func(ctx context.Context) worker.Result {
					if e.CallID == "c1" {
						r.Append(run, events.Control, &events.Paused{})
					}
					return prepared(ctx)
				}
			}
		}, wakes: "planning none none observing planning"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				p := reducertest.StartOf("find it", events.ModeTask)
				if c.start != nil {
					c.start(p)
				}
				retired, retire := context.WithCancel(context.Background())
				r.crew(leading(succeeds), func(cfg *worker.Config) {
					if cfg.Retire = retired; c.change != nil {
						c.change(r, retire, cfg)
					}
				})
				settled() // all of them are at work
				run := r.Start(p)
				time.Sleep(time.Minute) // in the bubble
				require.Equal(t, c.wakes, r.wakes(run))
			})
		})
	}
}

// older is the hash of the table of an earlier revision.
func older(revision int) string {
	table, err := reducer.DefaultTable().At(revision)
	if err != nil {
		panic(err)
	}
	return table.Hash()
}

// A long call does not keep the slot in which the planner could work on another run. After it the run
// waits for a delivery, as that slot may be taken.
func TestLedCallLeavesItsSlot(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		long := worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
			return func(ctx context.Context) worker.Result {
				time.Sleep(time.Hour) // in the bubble
				return worker.Done(&events.ToolSuccess{Outcome: outcome(e.CallID)})
			}
		})
		r.crew(leading(long), func(c *worker.Config) { c.Concurrency = 1 })
		settled() // all of them are at work
		one, other := r.start(), r.start()
		time.Sleep(time.Minute) // in the bubble
		require.EqualValues(t, 2, r.Memory(one).N)
		require.EqualValues(t, 2, r.Memory(other).N)
		r.AwaitEnd(one)
		r.AwaitEnd(other)
		require.Contains(t, r.wakes(one)+r.wakes(other), "planning none observing")
		settled()
		require.Zero(t, r.Journal.Outstanding())
	})
}

// A process that does not serve the state of a run hands it over, and keeps the delivery until
// somebody else is responsible.
func TestHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p, _ := r.crew(leading(blocked))
		settled() // all of them are at work
		run := r.start()
		r.AwaitState(run, events.Acting)
		p.Kill()
		var asked counter
		r.spawn(leading(succeeds), func(c *worker.Config) {
			c.Inboxes = inboxes()[:1]
			c.HandOver = func(_ context.Context, at events.Run, n uint64) error {
				require.Equal(t, run, at)
				require.EqualValues(t, 1, n)
				if asked.add() == 3 {
					r.Append(run, events.Control, &events.Resumed{Redrive: true})
				}
				return nil
			}
		})
		r.spawn(leading(succeeds), func(c *worker.Config) { c.Inboxes = inboxes()[1:] })
		r.AwaitEnd(run)
		settled()
		require.Equal(t, 3, asked.get())
		require.Zero(t, r.Journal.Outstanding())
		require.Empty(t, r.failures(run))
	})
}

// Of two processes with the same delivery one goes on with the run, and the other one stops.
func TestOutrun(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		slow, calls := r.Journal.NewProcess(), counter{}
		held := make(chan struct{})
		tool := worker.HandlerFunc(func(at events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
			prepared := succeeds.Prepare(at, mem, e)
			return func(ctx context.Context) worker.Result {
				if calls.add() == 1 {
					<-held // without extending the delivery
				}
				return prepared(ctx)
			}
		})
		frozen := frozenQueue{Queue: slow}
		store, crew := r.NewStore(slow), new(worker.Crew)
		for _, part := range [][]journal.Inbox{inboxes()[:1], inboxes()[1:2], inboxes()[2:]} {
			w := r.worker(slow, leading(tool), func(c *worker.Config) { c.Store, c.Crew, c.Inboxes, c.Queue = store, crew, part, frozen })
			r.GoOn(slow, w.Run)
		}
		settled() // all of them are at work
		run := r.start()
		r.AwaitState(run, events.Acting)
		r.crew(leading(tool))
		r.AwaitEnd(run)
		close(held)
		synctest.Wait()
		require.Equal(t, 3, calls.get(), "each call once, and the one in hand")
		require.Equal(t, "worker_lost", strings.Join(kinds(r.failures(run)), " "))
		require.Zero(t, r.Journal.Outstanding())
	})
}

// frozenQueue delivers what is never extended.
type frozenQueue struct{ journal.Queue }

func (q frozenQueue) Consume(ctx context.Context, in journal.Inbox, slots int, handle func(journal.Delivery)) error {
	return q.Queue.Consume(ctx, in, slots, func(d journal.Delivery) { handle(frozenDelivery{d}) })
}

type frozenDelivery struct{ journal.Delivery }

func (frozenDelivery) Extend() error { return nil }
