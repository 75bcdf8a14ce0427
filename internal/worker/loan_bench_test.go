package worker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
)

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
