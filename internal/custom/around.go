package custom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Wraps reports whether a built-in state has work that a handler can wrap or replace.
func Wraps(state events.State) bool {
	return slices.Contains([]events.State{
		events.Planning, events.Acting, events.ParallelActing, events.Observing, events.Reflecting, events.Paging,
	}, state)
}

// Around returns the [worker.Base.Wrap] that calls the handlers of built-in states. What a
// handler returns is appended by the role that owns the state, if it is legal there. If the
// handler fails because Next did, the failure counts as that of the state's own work.
//
// limit bounds the time that a handler takes before and after Next; 0 is the default.
func Around(states map[events.State]Handler, limit time.Duration) func(events.Run, *reducer.Memory, effects.Effect, worker.Work) worker.Work {
	if limit <= 0 {
		limit = timeout
	}
	return func(run events.Run, mem *reducer.Memory, e effects.Effect, prepared worker.Work) worker.Work {
		handler := states[mem.State]
		switch e.Kind {
		case effects.KindPlan, effects.KindReflect, effects.KindObserve, effects.KindPage, effects.KindTool:
		default:
			handler = nil
		}
		if handler == nil {
			return prepared
		}
		memory := mem.Clone()
		return func(ctx context.Context) worker.Result {
			ctx, cancel := context.WithCancelCause(ctx)
			a := &around{work: prepared, limit: limit, cancel: cancel, asks: make(chan struct{}), ends: make(chan worker.Result)}
			a.timer = time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
			a.ctx = ctx
			a.answers = call(ctx, handler, Visit{Run: run, Memory: memory, CallID: e.CallID, Next: a.next})
			return a.settle(ctx)
		}
	}
}

// around is one call of a handler around the work of a built-in state. The handler runs in
// its own goroutine. The worker's goroutine does the work when the handler asks for it,
// and appends what the work appends on its way.
type around struct {
	work    worker.Work
	limit   time.Duration
	timer   *time.Timer
	ctx     context.Context
	cancel  context.CancelCauseFunc
	answers <-chan answer
	// asks is sent to when the handler asks for the work, ends gets the work's end.
	asks  chan struct{}
	ends  chan worker.Result
	asked bool
	// end is the work's end, once the handler has it.
	end *worker.Result
}

// settle waits for the handler's answer, or does the work that it asks for.
func (a *around) settle(ctx context.Context) worker.Result {
	a.timer.Reset(a.limit)
	select {
	case answer := <-a.answers:
		return a.result(answer)
	case <-a.asks:
		a.timer.Stop()
		return a.work(ctx).Map(ctx, func(ctx context.Context, end worker.Result) worker.Result {
			a.end = &end
			select {
			case a.ends <- end:
			case <-a.ctx.Done():
			}
			return a.settle(ctx)
		})
	case <-a.ctx.Done():
		return a.result(late(a.answers, answer{err: fmt.Errorf("the handler still runs %s after its end: %w", grace, context.Cause(a.ctx))}))
	}
}

// result is what the handler's answer and the work's end come to.
func (a *around) result(got answer) worker.Result {
	a.timer.Stop()
	a.cancel(nil)
	if a.end == nil {
		if got.err != nil {
			return worker.Fail(got.err)
		}
		return worker.Done(got.payload)
	}
	own, failed := a.end.Outcome()
	switch {
	case got.err != nil && failed != nil, got.err == nil && got.payload == own:
		return *a.end
	case got.err != nil:
		return worker.Fail(got.err)
	}
	return a.end.WithOutcome(got.payload)
}

// next is the handler's Next.
func (a *around) next() (events.Payload, error) {
	if a.asked {
		return nil, errors.New("the handler has called Next already; it works once")
	}
	a.asked = true
	select {
	case a.asks <- struct{}{}:
	case <-a.ctx.Done():
		return nil, context.Cause(a.ctx)
	}
	select {
	case end := <-a.ends:
		return end.Outcome()
	case <-a.ctx.Done():
		return nil, context.Cause(a.ctx)
	}
}
