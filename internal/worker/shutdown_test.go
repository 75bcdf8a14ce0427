package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// running runs a worker until stop is called; ended has its error then.
func running(t *testing.T, w *worker.Worker) (stop func(), ended chan error) {
	ctx, stop := context.WithCancel(t.Context())
	ended = make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return stop, ended
}

func TestDrainLetsWorkFinish(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		w := r.worker(r.Journal.NewProcess(), handlers{effects.KindPlan: h}, func(c *worker.Config) { c.Drain = 10 * time.Second })
		run := r.start()
		stop, ended := running(t, w)
		<-h.began
		stop()
		late := r.start()
		time.Sleep(9 * time.Second) // in the bubble
		synctest.Wait()
		require.Empty(t, ended, "it waits for the work")
		h.let <- worker.Done(answer("It is done."))
		require.NoError(t, <-ended)
		require.Equal(t, events.Done, r.Memory(run).State)
		require.Equal(t, []string{"Start"}, r.Types(late))
		require.Empty(t, h.began, "nothing new was taken")
	})
}

func TestDrainHandsLongWorkBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		w := r.worker(r.Journal.NewProcess(), handlers{effects.KindPlan: h}, func(c *worker.Config) { c.Drain = 10 * time.Second })
		run := r.start()
		stop, ended := running(t, w)
		<-h.began
		next := newHanging()
		r.spawn(handlers{effects.KindPlan: next})
		began := time.Now()
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, 10*time.Second, time.Since(began))
		require.ErrorIs(t, <-h.ended, context.Canceled)
		<-next.began
		require.Equal(t, 10*time.Second, time.Since(began), "it was given back, not left to the ack wait")
		require.Equal(t, []string{"worker_lost"}, kinds(r.failures(run)), "and is counted")
		next.let <- worker.Done(answer("It is done."))
		require.Equal(t, "It is done.", *r.AwaitEnd(run).FinalAnswer)
	})
}

// Work that ignores the end of its context does not keep its process from ending.
func TestDeafWorkIsLeftBehind(t *testing.T) {
	planning := func(began, let chan struct{}) worker.Handler {
		return worker.HandlerFunc(func(events.Run, *reducer.Memory, effects.Effect) worker.Work {
			close(began)
			<-let
			return func(context.Context) worker.Result { return worker.Done(answer("Too late.")) }
		})
	}
	for name, handler := range map[string]func(began, let chan struct{}) worker.Handler{
		"work": func(began, let chan struct{}) worker.Handler {
			return work(func(context.Context) worker.Result { close(began); <-let; return worker.Done(answer("Too late.")) })
		},
		"planning":            planning,
		"planning, cancelled": planning, // the control event's look waits for the run
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				began, let := make(chan struct{}), make(chan struct{})
				defer close(let)
				w := r.worker(r.Journal.NewProcess(), handlers{effects.KindPlan: handler(began, let)}, func(c *worker.Config) { c.Drain = 5 * time.Second })
				run := r.start()
				stop, ended := running(t, w)
				<-began
				cancelled := name == "planning, cancelled"
				if cancelled {
					r.Append(run, events.Control, &events.CancelledRun{})
				}
				told := time.Now()
				stop()
				require.NoError(t, <-ended)
				require.Equal(t, 6*time.Second, time.Since(told))
				if cancelled {
					return
				}
				r.spawn(handlers{effects.KindPlan: always(answer("It is done."))})
				require.Equal(t, "It is done.", *r.AwaitEnd(run).FinalAnswer)
			})
		})
	}
}

// Neither does work under a loan.
func TestDeafLoanIsLeftBehind(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		began, let := make(chan struct{}), make(chan struct{})
		defer close(let)
		p := r.Journal.NewProcess()
		defer p.Kill()
		w := r.worker(p, handlers{effects.KindTool: work(func(context.Context) worker.Result {
			close(began)
			<-let
			return worker.Done(&events.ToolSuccess{Outcome: outcome("a")})
		})}, func(c *worker.Config) { c.Peers, c.Drain, c.Inboxes = p, 5*time.Second, inboxes()[1:2] })
		require.NoError(t, w.Offer(events.DefaultPool, []string{"alpha"}))
		stop, ended := running(t, w)
		synctest.Wait()
		r.start()
		lender := r.Journal.NewProcess()
		r.Go(r.worker(lender, handlers{effects.KindPlan: always(single("a", "alpha")), effects.KindTool: lending("alpha")}, func(c *worker.Config) { c.Peers = lender }).Run)
		<-began
		told := time.Now()
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, 6*time.Second, time.Since(told))
	})
}

// A worker that dies during its drain blocks nothing.
func TestKilledWorkerEnds(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		p := r.Journal.NewProcess()
		w := r.worker(p, handlers{effects.KindPlan: h})
		r.start()
		_, ended := running(t, w)
		<-h.began
		p.Kill()
		require.ErrorIs(t, <-ended, simtest.ErrCrashed)
		require.Error(t, <-h.ended)
	})
}

func TestLongWorkIsNotDeliveredAgain(t *testing.T) {
	bubbleWith(t, simtest.Options{AckWait: 15 * time.Second}, func(t *testing.T, r *rig) {
		h := newHanging()
		r.spawn(handlers{effects.KindPlan: h})
		r.spawn(handlers{effects.KindPlan: h})
		run := r.start()
		<-h.began
		settled() // an hour
		require.Empty(t, h.began)
		h.let <- worker.Done(answer("It is done."))
		r.AwaitEnd(run)
		settled()
		require.Empty(t, h.began)
		require.Empty(t, r.failures(run))
	})
}

// queue is a process whose queue a test interferes with.
type queue struct {
	*simtest.Process
	consume func(journal.Inbox) error
	ackWait func() error
}

func (q *queue) Consume(ctx context.Context, in journal.Inbox, slots int, handle func(journal.Delivery)) error {
	if q.consume != nil {
		if err := q.consume(in); err != nil {
			return err
		}
	}
	return q.Process.Consume(ctx, in, slots, handle)
}

func (q *queue) AckWait(ctx context.Context, in journal.Inbox) (time.Duration, error) {
	if q.ackWait != nil {
		if err := q.ackWait(); err != nil {
			return 0, err
		}
	}
	return q.Process.AckWait(ctx, in)
}

// While an inbox is not there yet nobody can say its ack wait: the worker waits
// with Consume instead of giving up.
func TestInboxThatIsMadeLater(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		made := make(chan struct{})
		missing := func() error {
			select {
			case <-made:
				return nil
			default:
				return journal.ErrNotReady
			}
		}
		p := r.Journal.NewProcess()
		q := &queue{Process: p, ackWait: missing, consume: func(journal.Inbox) error { <-made; return nil }}
		h := newHanging()
		w := r.worker(p, handlers{effects.KindPlan: h}, func(c *worker.Config) { c.Queue = q })
		r.Go(w.Run)
		run := r.start()
		settled()
		close(made)
		<-h.began
		settled()
		h.let <- worker.Done(answer("It is done."))
		r.AwaitEnd(run)
		require.Empty(t, r.failures(run), "it was kept alive")
	})
}

// If the ack wait is unknown, long work is extended anyway.
func TestUnknownAckWait(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p := r.Journal.NewProcess()
		q := &queue{Process: p, ackWait: func() error { return journal.ErrDenied }}
		h := newHanging()
		w := r.worker(p, handlers{effects.KindPlan: h}, func(c *worker.Config) { c.Queue = q })
		r.Go(w.Run)
		run := r.start()
		<-h.began
		settled()
		h.let <- worker.Done(answer("It is done."))
		r.AwaitEnd(run)
		require.Empty(t, r.failures(run))
	})
}

// An inbox that can never be consumed ends the worker, and the other inboxes'
// work is not waited for longer than on a shutdown.
func TestFinalErrorEndsTheWorker(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p := r.Journal.NewProcess()
		fail := make(chan struct{})
		q := &queue{Process: p, consume: func(in journal.Inbox) error {
			if in.States[0] != events.Observing {
				return nil
			}
			<-fail
			return journal.ErrDenied
		}}
		h := newHanging()
		w := r.worker(p, handlers{effects.KindPlan: h}, func(c *worker.Config) { c.Queue = q; c.Drain = 5 * time.Second })
		r.start()
		_, ended := running(t, w)
		<-h.began
		began := time.Now()
		close(fail)
		err := <-ended
		require.ErrorIs(t, err, journal.ErrDenied)
		require.ErrorContains(t, err, "observing")
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

func TestStepWorksOnExactlyOneDelivery(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		w := r.worker(r.Journal.NewProcess(), handlers{
			effects.KindPlan: three()[effects.KindPlan],
			effects.KindTool: worker.HandlerFunc(func(_ events.Run, _ *reducer.Memory, e effects.Effect) worker.Work {
				return func(context.Context) worker.Result {
					return worker.Done(&events.ToolSuccess{Outcome: outcome(e.CallID)})
				}
			}),
			effects.KindObserve: always(&events.Continue{}),
		})
		// Each of them waits in an inbox of its own.
		planning, acting, observing := r.start(), r.start(), r.start()
		r.Append(acting, events.Planning, single("a", "alpha"))
		r.Append(observing, events.Planning, single("a", "alpha"))
		r.Append(observing, events.Acting, &events.ToolSuccess{Outcome: outcome("a")})
		settle := func() int {
			settled()
			n := 0
			for _, run := range []events.Run{planning, acting, observing} {
				n += len(r.Records(run))
			}
			return n
		}
		before := settle()
		// Some deliveries are of the past and settled without an event.
		for range 12 {
			require.NoError(t, w.Step(t.Context()))
			after := settle()
			require.LessOrEqual(t, after-before, 1)
			before = after
		}
		require.Empty(t, r.failures(planning))
		require.Empty(t, r.failures(acting))
		require.Empty(t, r.failures(observing))
		require.Greater(t, before, 6+3)
	})
}

func TestStepWaits(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := newHanging()
		w := r.worker(r.Journal.NewProcess(), handlers{effects.KindPlan: h})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, w.Step(ctx), context.DeadlineExceeded)

		ended := make(chan error, 1)
		go func() { ended <- w.Step(t.Context()) }()
		settled()
		run := r.start()
		<-h.began
		settled() // longer than a turn and the drain time
		require.Empty(t, ended)
		h.let <- worker.Done(answer("It is done."))
		require.NoError(t, <-ended)
		require.Equal(t, []string{"Start", "LlmFinalAnswer"}, r.Types(run))
	})
}

func TestNewChecksItsConfig(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		good := worker.Config{
			Role: "test", Base: worker.Base{Instance: "1", Store: r.Store, Queue: r.Journal, Feed: r.Journal}, Inboxes: inboxes(),
		}
		for name, spoil := range map[string]func(*worker.Config){
			"Store":    func(c *worker.Config) { c.Store = nil },
			"Queue":    func(c *worker.Config) { c.Queue = nil },
			"Feed":     func(c *worker.Config) { c.Feed = nil },
			"Role":     func(c *worker.Config) { c.Role = "" },
			"Instance": func(c *worker.Config) { c.Instance = "" },
			"Inbox":    func(c *worker.Config) { c.Inboxes = nil },
		} {
			cfg := good
			spoil(&cfg)
			_, err := worker.New(cfg)
			require.ErrorContains(t, err, name)
		}
	})
}
