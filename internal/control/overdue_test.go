package control_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Stalled work is re-driven after the stall time, and once more after another one. After a third
// one the run ends. The log names what got no answer, and since when.
func TestStallIsDrivenTwiceAndThenEnded(t *testing.T) {
	for state, due := range map[string]string{
		"planning": "the delivery to planning", "observing": "the delivery to observing", "acting": "the delivery of call a (search) to pool default",
		"parallel_acting": "the delivery of call a (search) to pool default, the delivery of call b (search) to pool default",
	} {
		t.Run(state, func(t *testing.T) {
			inTime(t, func(t *testing.T, r *timed) {
				g, _ := r.serve(nil)
				r.lose(events.Planning, events.Observing, events.Acting)
				run := r.start(g, nil)
				sleep(25 * time.Minute)
				into[state](r, run)
				began := r.Memory(run).Updated
				n := len(r.Types(run))
				sleep(4 * stall)
				all := r.Events(run)
				require.Equal(t, []string{"Resumed", "Resumed", "FatalError"}, r.Types(run)[n:])
				what := "no answer since " + began.UTC().Format(time.RFC3339) + " to " + due
				for last := began; n < len(all); n++ {
					r.stalled(last, all[n].Time)
					last = all[n].Time
					if again, ok := all[n].Data.(*events.Resumed); ok {
						require.Equal(t, what, again.Reason)
						subject, err := events.ParseSubject(r.Records(run)[n].Subject)
						require.NoError(t, err)
						require.Equal(t, events.State(state), subject.To)
					}
				}
				require.Equal(t, &reducer.RunError{Code: "stalled", Message: what + ", which was driven again 2 times"}, r.Memory(run).Error)
				sleep(2 * stall)
				require.Zero(t, r.Journal.Timers())
			})
		})
	}
}

// Runs that are paused, that wait or that have ended do not stall.
func TestWhatWaitsDoesNotStall(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		r.lose(events.Planning)
		runs := map[string]events.Run{}
		for _, state := range []string{"planning, paused", "waiting_for_human", "waiting_for_user"} {
			runs[state] = r.start(g, func(a *events.Agent) { a.Mode = events.ModeChat })
			into[state](r, runs[state])
		}
		ended := r.start(g, nil)
		r.Append(ended, events.Planning, answered("that is all"))
		sleep(10 * 24 * time.Hour)
		for _, run := range runs {
			require.Len(t, r.Types(run), 2)
		}
		require.Len(t, r.Types(ended), 2)
		require.Equal(t, len(runs), r.Journal.Timers())

		// A run that continues after days can stall like any other.
		paused := runs["planning, paused"]
		r.Append(paused, events.Control, &events.Resumed{})
		resumed := r.Memory(paused).Updated
		sleep(3*stall + 3*stall/4 + time.Minute)
		require.Equal(t, []string{"Start", "Paused", "Resumed", "Resumed", "Resumed", "FatalError"}, r.Types(paused))
		r.stalled(resumed, r.Events(paused)[3].Time)
		r.stalled(r.Events(paused)[3].Time, r.Events(paused)[4].Time)
		r.stalled(r.Events(paused)[4].Time, r.at(paused, events.TypeFatalError))
	})
}

// A run with new events is left alone.
func TestProgressIsNoStall(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		r.lose(events.Planning)
		run := r.start(g, nil)
		for range 30 {
			sleep(50 * time.Minute)
			r.Append(run, events.Planning, &events.LLMAttemptFailed{Kind: "overloaded", Key: "plan/1"})
		}
		require.Zero(t, r.Count(run, events.TypeResumed))
		sleep(stall + stall/4)
		require.Equal(t, 1, r.Count(run, events.TypeResumed))
		r.Append(run, events.Planning, &events.LLMAttemptFailed{Kind: "overloaded", Key: "plan/1"})
		sleep(stall + stall/4 + time.Minute)
		require.Equal(t, 2, r.Count(run, events.TypeResumed), "it was driven with success")
		sleep(stall + stall/4)
		require.Equal(t, 3, r.Count(run, events.TypeResumed), "so this is the second time")
		sleep(stall + stall/4)
		require.Equal(t, events.Errored, r.Memory(run).State)
	})
}

// stalled checks that the work had rested for a stall time and at most a quarter more when it
// was re-driven or given up.
func (r *timed) stalled(since, at time.Time) {
	r.T.Helper()
	require.WithinRange(r.T, at, since.Add(stall), since.Add(stall+stall/4))
}

// lose acknowledges every delivery for the states without working on it.
func (r *timed) lose(states ...events.State) {
	r.T.Helper()
	for _, pool := range []string{"default", "web"} {
		r.Go(func(ctx context.Context) error {
			return r.Journal.Consume(ctx, journal.Inbox{States: states, Pool: pool}, 8, func(d journal.Delivery) { _ = d.Ack() })
		})
	}
}

// planner works on Planning: it dispatches calls and answers.
func (r *timed) planner(handlers map[effects.Kind]worker.Handler) (stop func()) {
	r.T.Helper()
	p := r.Journal.NewProcess()
	w, err := worker.New(worker.Config{
		Role: "planner", Base: worker.Base{Instance: "1", Store: r.NewStore(p), Queue: p, Feed: p}, Handlers: handlers,
		Inboxes: []journal.Inbox{{States: []events.State{events.Planning}, Pool: "default"}},
	})
	require.NoError(r.T, err)
	return r.Go(w.Run)
}

func always(p func(effects.Effect) events.Payload) worker.Handler {
	return worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
		return func(context.Context) worker.Result { return worker.Done(p(e)) }
	})
}

// A delivery that was acknowledged without work is made up for.
func TestRedriveMendsALostDelivery(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, nil)
		lost, stop := context.WithCancel(t.Context())
		err := r.Journal.Consume(lost, journal.Inbox{States: []events.State{events.Planning}}, 1, func(d journal.Delivery) {
			require.NoError(t, d.Ack())
			stop()
		})
		require.NoError(t, err)
		r.planner(map[effects.Kind]worker.Handler{
			effects.KindPlan: always(func(effects.Effect) events.Payload { return answered("at last") }),
		})
		sleep(stall - time.Second)
		require.Equal(t, []string{"Start"}, r.Types(run))
		sleep(stall/4 + 2*time.Second)
		require.Equal(t, []string{"Start", "Resumed", "LlmFinalAnswer"}, r.Types(run))
	})
}

// The delivery of a re-drive may be lost as well.
func TestSecondRedriveMendsALostRedrive(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, nil)
		lost, stop := context.WithCancel(t.Context())
		left := 2
		err := r.Journal.Consume(lost, journal.Inbox{States: []events.State{events.Planning}}, 1, func(d journal.Delivery) {
			require.NoError(t, d.Ack())
			if left--; left == 0 {
				r.planner(map[effects.Kind]worker.Handler{
					effects.KindPlan: always(func(effects.Effect) events.Payload { return answered("at last") }),
				})
				stop()
			}
		})
		require.NoError(t, err)
		sleep(2 * stall)
		require.Equal(t, []string{"Start", "Resumed", "Resumed", "LlmFinalAnswer"}, r.Types(run))
		require.Equal(t, events.Done, r.Memory(run).State)
	})
}

// Calls in an unserved pool are dispatched again twice, and not for ever.
func TestDispatchIsNoProgress(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		r.lose(events.Acting)
		run := r.start(g, nil)
		sleep(time.Second)
		reply := called("a", "b")
		reply.Calls[1].Name = "fetch"
		r.Append(run, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: reply})
		r.planner(map[effects.Kind]worker.Handler{
			effects.KindDispatch: always(func(e effects.Effect) events.Payload { return &events.ToolCallDispatched{CallID: e.CallID} }),
		})
		sleep(4 * stall)
		require.Equal(t, []string{
			"Start", "LlmParallelToolCalls", "ToolCallDispatched", "ToolCallDispatched",
			"Resumed", "ToolCallDispatched", "ToolCallDispatched", "Resumed", "ToolCallDispatched", "ToolCallDispatched", "FatalError",
		}, r.Types(run))
		require.Equal(t, "no answer since "+r.Events(run)[3].Time.Format(time.RFC3339)+" to the delivery of call a (search) to pool default, "+
			"the delivery of call b (fetch) to pool web, which was driven again 2 times", r.Memory(run).Error.Message)
	})
}

// An application's own table need not have the event of a re-drive.
func TestTableWithoutARedrive(t *testing.T) {
	spec := reducer.DefaultTable().Spec()
	spec.Stay = nil
	table, err := reducer.NewTable(spec)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		r := &timed{T: t, Bench: workertest.New(t, simtest.Options{}, reducer.NewMachine(reducer.MachineOptions{Table: table}))}
		g, _ := r.serve(nil)
		r.lose(events.Planning)
		run := r.start(g, wallTime(5*time.Hour+time.Minute))
		sleep(4*stall + time.Minute)
		require.Equal(t, []string{"Start"}, r.Types(run))
		require.Equal(t, 1, r.Journal.Timers())
		sleep(2 * stall)
		require.Equal(t, []string{"Start", "BudgetExceeded"}, r.Types(run))
	})
}

// countedTimers counts how often a timer is set.
type countedTimers struct {
	journal.Timers
	set atomic.Int32
}

func (c *countedTimers) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	c.set.Add(1)
	return c.Timers.SetTimer(ctx, run, kind, at, data)
}

// If a gateway's clock is behind that of the bus, its timers fire early. They are delayed, and
// not set again and again.
func TestTimersOfAClockThatIsBehind(t *testing.T) {
	const behind = 40 * time.Second
	inTime(t, func(t *testing.T, r *timed) {
		timers := &countedTimers{}
		g, _ := r.serve(func(cfg *control.Config) {
			timers.Timers, cfg.Timers = cfg.Timers, timers
			cfg.Store = runlog.New(runlog.Options{
				Log: cfg.Store.Log(), Machine: r.Machine, Clock: func() time.Time { return time.Now().Add(-behind) },
			})
		})
		asking, limited := r.start(g, nil), r.start(g, wallTime(20*time.Minute))
		deadline := r.ask(asking, 10*time.Minute, "a")
		r.ask(limited, 0, "a")
		sleep(30 * time.Minute)
		r.at(asking, events.TypeApprovalExpired)
		require.WithinDuration(t, deadline.Add(behind), r.Records(asking)[2].Stored, 2*time.Second, "when the gateway's time has come")
		require.Equal(t, 1, r.Count(limited, events.TypeBudgetExceeded))
		require.Less(t, timers.set.Load(), int32(10))
	})
}

// A client resumes a run, and only a dispatch follows, whose delivery is lost. A resume by a
// client is not a re-drive, even if its reason looks like one: the gateway re-drives the work
// itself before it gives up.
func TestAPersonsResumedIsNoRedrive(t *testing.T) {
	for name, by := range map[string]events.By{
		"nobody":   {},
		"somebody": {By: "jan", Reason: "look again"},
		"forged":   {By: "gateway/test", Reason: "no answer since 2026-01-02T03:04:05Z to the delivery of call a (search) to pool default"},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, r *timed) {
				g, _ := r.serve(nil)
				r.lose(events.Planning, events.Acting, events.ParallelActing)
				run := r.start(g, nil)
				calls := called("a", "b")
				calls.Calls[1].Name = "fetch" // of another pool
				r.Append(run, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: calls})
				sleep(stall / 2)
				_, err := g.Pause(t.Context(), run.Namespace, run.ID, by)
				require.NoError(t, err)
				_, err = g.Resume(t.Context(), run.Namespace, run.ID, by)
				require.NoError(t, err)
				r.Append(run, events.Planning, &events.ToolCallDispatched{CallID: "a"})
				last, n := r.Memory(run).Updated, len(r.Types(run))
				sleep(4 * stall)
				require.Equal(t, []string{"Resumed", "Resumed", "FatalError"}, r.Types(run)[n:])
				for _, e := range r.Events(run)[n:] {
					if driven, ok := e.Data.(*events.Resumed); ok {
						require.True(t, driven.Redrive)
					}
					r.stalled(last, e.Time)
					last = e.Time
				}
			})
		})
	}
}

// A resume by a client gives a run that was re-driven without success another chance.
func TestAResumedAfterTheRedrive(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		r.lose(events.Planning)
		run := r.start(g, nil)
		sleep(stall + stall/2)
		require.Equal(t, []string{"Start", "Resumed"}, r.Types(run))
		_, err := g.Pause(t.Context(), run.Namespace, run.ID, events.By{})
		require.NoError(t, err)
		_, err = g.Resume(t.Context(), run.Namespace, run.ID, events.By{})
		require.NoError(t, err)
		sleep(stall + stall/4 + time.Minute)
		require.Equal(t, []string{"Start", "Resumed", "Paused", "Resumed", "Resumed"}, r.Types(run))
		sleep(2 * (stall + stall/4))
		require.Equal(t, []string{"Start", "Resumed", "Paused", "Resumed", "Resumed", "Resumed", "FatalError"}, r.Types(run))
	})
}
