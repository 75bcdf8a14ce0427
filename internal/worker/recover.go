package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/runlog"
)

// run does work as soon as a slot is free.
func (w *Worker) run(ctx context.Context, work Work) Result {
	select {
	case w.working <- struct{}{}: // mostly, and the context needs no channel then
	default:
		select {
		case w.working <- struct{}{}:
		case <-ctx.Done():
			return Fail(ctx.Err()) // it is no longer wanted
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

// recoverPrepare prepares an effect and makes a panic a failure.
func recoverPrepare(h Handler, run *runlog.Run, e effects.Effect) (work Work) {
	defer func() {
		if p := recover(); p != nil {
			err := panicError(p)
			work = func(context.Context) Result { return Fail(err) }
		}
	}()
	if work = h.Prepare(run.ID, run.Memory(), e); work == nil {
		err := errors.New("the handler planned nothing")
		work = func(context.Context) Result { return Fail(err) }
	}
	return work
}

func panicError(p any) error {
	stack := debug.Stack()
	return fmt.Errorf("panic: %v\n%s", p, stack[:min(len(stack), 2000)])
}
