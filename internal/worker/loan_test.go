package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
)

// lending makes a handler that lends its effect under a name until somebody does it.
func lending(name string) worker.Handler {
	return work(func(context.Context) worker.Result {
		return worker.Lend(name, func(ctx context.Context, delay time.Duration, err error) worker.Result {
			if err != nil && ctx.Err() != nil {
				return worker.Held()
			}
			return worker.Elsewhere(max(delay, time.Second))
		})
	})
}

// TestLoanToItself: a worker whose offers are not what its handlers do is asked for its
// own effect. It does not wait for itself.
func TestLoanToItself(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p := r.Journal.NewProcess()
		told := make(chan error, 10)
		w := r.worker(p, handlers{effects.KindPlan: always(single("a", "alpha")), effects.KindTool: work(func(context.Context) worker.Result {
			return worker.Lend("alpha", func(_ context.Context, _ time.Duration, err error) worker.Result {
				told <- err
				return worker.Done(&events.ToolSuccess{Outcome: outcome("a")})
			})
		})}, func(c *worker.Config) { c.Peers = p })
		require.NoError(t, w.Offer(events.DefaultPool, []string{"alpha"}))
		r.Go(w.Run)
		synctest.Wait()
		began := time.Now()
		run := r.start()
		r.AwaitState(run, events.Observing)
		require.ErrorIs(t, <-told, ports.ErrNoPeer)
		require.Less(t, time.Since(began), time.Second)
	})
}

// BenchmarkDelivery is the loop's cost of one delivery in which nothing is lent, at a
// worker that could lend and at one that could not.
func BenchmarkDelivery(b *testing.B) {
	for name, lends := range map[string]bool{"alone": false, "with peers": true} {
		b.Run(name, func(b *testing.B) {
			r := &rig{workertest.New(b, simtest.Options{}, nil)}
			done := make(chan struct{}, b.N)
			h := work(func(context.Context) worker.Result {
				done <- struct{}{}
				return worker.Done(answer("It is done."))
			})
			p := r.Journal.NewProcess()
			w := r.worker(p, handlers{effects.KindPlan: h}, func(c *worker.Config) {
				c.Inboxes, c.Concurrency = inboxes()[:1], 4
				if lends {
					c.Peers = p
				}
			})
			var runs []events.Run
			for range b.N {
				runs = append(runs, r.start())
			}
			b.ReportAllocs()
			b.ResetTimer()
			ctx, stop := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			go func() { ended <- w.Run(ctx) }()
			for range runs {
				<-done
			}
			stop()
			require.NoError(b, <-ended)
		})
	}
}
