package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/runlog"
)

// run does work as soon as there is room for it.
func (w *Worker) run(ctx context.Context, work Work) Result {
	select {
	case w.working <- struct{}{}: // mostly, and the context needs no channel then
	default:
		select {
		case w.working <- struct{}{}:
		case <-ctx.Done():
			return Fail(ctx.Err()) // nobody wants it any more
		}
	}
	defer func() { <-w.working }()
	return recoverWork(ctx, work)
}

// recoverWork runs work and makes a panic a failure.
func recoverWork(ctx context.Context, work Work) (result Result) {
	defer func() {
		if p := recover(); p != nil {
			result = Fail(panicError(p))
		}
	}()
	return work(ctx)
}

// recoverPlan plans an effect and makes a panic a failure.
func recoverPlan(h Handler, run *runlog.Run, e effects.Effect) (work Work) {
	defer func() {
		if p := recover(); p != nil {
			err := panicError(p)
			work = func(context.Context) Result { return Fail(err) }
		}
	}()
	if work = h.Plan(run.ID, run.Memory(), e); work == nil {
		err := errors.New("the handler planned nothing")
		work = func(context.Context) Result { return Fail(err) }
	}
	return work
}

func panicError(p any) error {
	return fmt.Errorf("panic: %v\n%s", p, firstLines(debug.Stack(), 2000))
}

func firstLines(stack []byte, limit int) []byte { return stack[:min(len(stack), limit)] }
