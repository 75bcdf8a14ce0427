package control_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// slow is a planner with one slot whose calls take this long, until it is killed.
func (r *timed) slow(call time.Duration) (kill func()) {
	r.T.Helper()
	p := r.Journal.NewProcess()
	w, err := worker.New(worker.Config{
		Role: "planner", Base: worker.Base{Instance: "1", Store: r.NewStore(p), Queue: p, Feed: p, Concurrency: 1},
		Inboxes: []journal.Inbox{{States: []events.State{events.Planning}, Pool: "default"}},
		Handlers: map[effects.Kind]worker.Handler{
			effects.KindPlan: worker.HandlerFunc(func(events.Run, *reducer.Memory, effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					select {
					case <-time.After(call):
					case <-p.Dead():
					}
					return worker.Done(answered("at last"))
				}
			}),
		},
	})
	require.NoError(r.T, err)
	r.Go(func(ctx context.Context) error {
		err := w.Run(ctx)
		select {
		case <-p.Dead():
			return nil // it ends as it can
		default:
			return err
		}
	})
	return p.Kill
}

// Queued work does not stall, however long the queue is.
func TestQueueIsNoStall(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		r.slow(25 * time.Minute)
		var runs []events.Run
		for range 12 {
			runs = append(runs, r.start(g, nil))
			sleep(time.Second)
		}
		sleep(6 * time.Hour)
		for i, run := range runs {
			require.Equal(t, events.Done, r.Memory(run).State, "run %d", i)
			require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run), "run %d", i)
			require.WithinDuration(t, r.Memory(runs[0]).Updated.Add(time.Duration(i)*25*time.Minute), r.Memory(run).Updated, time.Minute, "and keeps its turn")
		}
	})
}

// A short absence of the planner does not make a run stall whose work was queued for longer
// than a stall time.
func TestRestartIsNoStall(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		stop := r.slow(25 * time.Minute)
		var runs []events.Run
		for range 5 {
			runs = append(runs, r.start(g, nil))
			sleep(time.Second)
		}
		sleep(62 * time.Minute)
		stop()
		r.slow(25 * time.Minute)
		sleep(6 * time.Hour)
		for i, run := range runs {
			require.Equal(t, events.Done, r.Memory(run).State, "run %d", i)
			require.Zero(t, r.Count(run, events.TypeResumed), "run %d", i)
		}
	})
}

// Work that a check finds delivered for the first time may have been delivered just now.
func TestDeliveredBetweenChecksIsNoStall(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, p := r.serve(nil)
		run := r.start(g, nil)
		p.Kill()
		sleep(3*stall - time.Minute)
		r.slow(stall / 2)
		sleep(time.Second)
		r.serve(nil)
		sleep(stall)
		require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run))
	})
}

// Work may stay queued for longer than two stall times, and so may the work of a re-drive.
func TestOutageIsNoStall(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run, again := r.start(g, nil), r.start(g, nil)
		r.Append(again, events.Control, &events.Resumed{})
		sleep(10 * stall)
		r.slow(time.Minute)
		sleep(stall)
		require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run))
		require.Equal(t, []string{"Start", "Resumed", "LlmFinalAnswer"}, r.Types(again))
	})
}

// A delivery that is lost after it was queued is made up for too.
func TestStallAfterAQueue(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, nil)
		sleep(5*stall + stall/2)
		r.lose(events.Planning)
		lost := time.Now()
		sleep(5 * stall)
		require.Equal(t, []string{"Start", "Resumed", "Resumed", "FatalError"}, r.Types(run))
		all := r.Events(run)
		r.stalled(lost, all[1].Time) // the time counts from when it left the queue
		r.stalled(all[1].Time, all[2].Time)
		r.stalled(all[2].Time, all[3].Time)
	})
}

// A run whose first timer follows another stall time gets the stall time of the running
// gateways.
func TestStallTimeOfTheRole(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		command, err := control.New(control.Config{
			Base: worker.Base{Store: r.NewStore(r.Journal), Queue: r.Journal, Feed: r.Journal, Instance: "command"}, Timers: r.Journal, KV: r.Journal, StallAfter: time.Minute,
		})
		require.NoError(t, err)
		command.Admission = control.Unbounded{}
		r.serve(func(cfg *control.Config) { cfg.StallAfter = 5 * time.Minute })
		r.lose(events.Planning)
		run := r.start(command, nil)
		sleep(time.Hour)
		require.True(t, r.Events(run)[1].Time.Equal(r.Memory(run).Started.Add(time.Minute/4+5*time.Minute)))
	})
}

// mute is a queue that does not say what was delivered.
type mute struct {
	journal.Queue
	asked atomic.Int32
	says  atomic.Bool
}

func (m *mute) Undelivered(ctx context.Context, in journal.Inbox, shard int, seq uint64) (bool, error) {
	m.asked.Add(1)
	if !m.says.Load() {
		return false, errors.New("the bus does not say")
	}
	return m.Queue.Undelivered(ctx, in, shard, seq)
}

// While it is unknown whether a run has stalled, it is checked again soon, and its deadline
// holds.
func TestStallThatIsUnknown(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		var queue *mute
		g, _ := r.serve(func(cfg *control.Config) {
			queue = &mute{Queue: cfg.Queue}
			cfg.Queue = queue
		})
		r.lose(events.Planning)
		run, limited := r.start(g, nil), r.start(g, wallTime(5*time.Hour))
		sleep(6 * stall)
		require.Equal(t, []string{"Start"}, r.Types(run))
		require.Equal(t, []string{"Start", "BudgetExceeded"}, r.Types(limited))
		require.Greater(t, queue.asked.Load(), int32(100))
		require.Less(t, queue.asked.Load(), int32(2000))
		queue.says.Store(true)
		sleep(stall - time.Minute)
		require.Equal(t, []string{"Start"}, r.Types(run))
		sleep(2 * time.Minute)
		require.Equal(t, []string{"Start", "Resumed"}, r.Types(run))
	})
}

// A call whose pool has no actor waits as long as it takes, also if an actor took it before it
// died.
func TestACallWithoutAnActorIsNoStall(t *testing.T) {
	for _, state := range []string{"acting", "parallel_acting"} {
		inTime(t, func(t *testing.T, r *timed) {
			g, _ := r.serve(func(c *control.Config) { c.PoolWait = control.Unlimited })
			r.lose(events.Planning, events.Observing, events.Acting)
			run := r.start(g, nil)
			sleep(time.Minute)
			into[state](r, run)
			before := r.Types(run)
			sleep(5 * stall)
			require.Equal(t, before, r.Types(run))
			state, err := g.State(t.Context(), run.Namespace, run.ID, 0)
			require.NoError(t, err)
			require.Equal(t, &runs.WaitsFor{Pool: "default", Since: r.Memory(run).Updated}, state.WaitsFor)
			state, err = g.State(t.Context(), run.Namespace, run.ID, 1)
			require.NoError(t, err)
			require.Nil(t, state.WaitsFor, "an earlier moment waits for nobody")
		})
	}
}
