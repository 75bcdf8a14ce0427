package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// What has to be done on arrival is done before anything that is due, and until
// it succeeds the delivery comes again.
func TestArrivedComesFirst(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var tried, planned counter
		seen := make(chan uint64, 10)
		r.spawn(handlers{effects.KindPlan: work(func(context.Context) worker.Result {
			planned.add()
			return worker.Done(answer("done"))
		})}, func(c *worker.Config) {
			c.Arrived = func(run events.Run, mem *reducer.Memory) func(context.Context) error {
				if run.ID != mem.RunID {
					t.Errorf("asked for %s with the memory of %s", run.ID, mem.RunID)
				}
				seen <- mem.N
				return func(context.Context) error {
					if tried.add() < 4 {
						return errors.New("not yet")
					}
					if planned.get() > 0 {
						t.Error("the work was done before")
					}
					return nil
				}
			}
		})
		run := r.start()
		r.AwaitEnd(run)
		require.EqualValues(t, 1, <-seen)
		require.Equal(t, 4, tried.get())
		require.Equal(t, 1, planned.get())
	})
}
