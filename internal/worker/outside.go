package worker

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// errOutside says that the outcome of an effect comes from outside.
var errOutside = errors.New("the outcome comes from outside")

// Do does an effect of a run with the handler, without a delivery: its outcome came from
// outside. Nothing is done if the run, read to its head, does not want the effect or is
// paused. It returns when the outcome is in the log. An error is the log's, or that of a
// handler that failed, which the log has too; then the same may be done again. Whether the
// outcome in the log is this handler's, its caller looks up there. cause is the id of the
// event that the outcome answers.
func (w *Worker) Do(ctx context.Context, at events.Run, key, cause string, h Handler) error {
	run := w.cfg.Store.Acquire(at)
	defer w.cfg.Store.Release(run)
	began := false
	once := HandlerFunc(func(at events.Run, mem *reducer.Memory, e effects.Effect) Work {
		began = true
		return h.Prepare(at, mem, e)
	})
	for {
		run.Lock()
		err := run.Refresh(ctx)
		e, wanted := run.Effect(key)
		run.Unlock()
		if err != nil || !wanted || e.Held {
			return err
		}
		job := &delivery{
			w: w, d: noDelivery{}, run: run, n: e.Wake, cause: cause, borrowed: true, handler: once,
			subject: events.Subject{Run: at, To: e.State, Pool: events.DefaultPool},
		}
		// Work of another caller under the same key, or of a delivery, is waited for first.
		err = job.do(ctx, e)
		if _, later := delayed(err); began || ctx.Err() != nil || err != nil && !later {
			return err
		}
	}
}

// noDelivery stands for the delivery of work that has none.
type noDelivery struct{ journal.Delivery }

func (noDelivery) Attempt() int { return 0 }
