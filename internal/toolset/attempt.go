package toolset

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/tool"
)

// pauses separate the runs of one call.
var pauses = retry.Policy{First: 100 * time.Millisecond, Factor: 2, Max: 5 * time.Second}

// endGrace is how long a tool may clean up after its context has ended (reap a process,
// close a connection) before it is abandoned.
const endGrace = 400 * time.Millisecond

// ended is the result of one run of a tool.
type ended struct {
	result  string
	failure *tool.Failure
}

// attempt runs the tool once within its timeout.
func (r *Registry) attempt(ctx context.Context, t *registered, call tool.Call) (string, *tool.Failure) {
	if ctx.Err() != nil {
		return "", notStarted(ctx)
	}
	runCtx, cancel := context.WithTimeout(ctx, t.def.Timeout)
	defer cancel()
	done := make(chan ended, 1) // buffered, so that an abandoned tool can end
	go r.run(runCtx, t, call, done)
	select {
	case e := <-done:
		return finish(ctx, runCtx, t, e)
	case <-runCtx.Done():
	}
	grace := time.NewTimer(endGrace)
	defer grace.Stop()
	select {
	case e := <-done:
		return finish(ctx, runCtx, t, e)
	case <-grace.C:
		return finish(ctx, runCtx, t, ended{failure: tool.Failf(tool.CodeFailed, "the tool did not end")})
	}
}

// run runs the tool and sends exactly one result, even if the tool panics or ends its
// goroutine.
func (r *Registry) run(ctx context.Context, t *registered, call tool.Call, done chan<- ended) {
	var e ended
	returned := false
	defer func() {
		v := recover()
		switch {
		case v == nil && !returned:
			e = ended{failure: tool.Failf(codes.Panic, "the tool %q ended its goroutine", call.Name)}
		case v != nil:
			r.logger.Load().Error("tool panicked", "tool", call.Name, "run", call.Run, "call", call.ID,
				"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			e = ended{failure: tool.Failf(codes.Panic, "the tool %q panicked: %v", call.Name, v)}
		}
		done <- e
	}()
	result, err := t.Run(ctx, call)
	e = ended{result: result, failure: asFailure(err)} // here, since the tool's Error method may panic too
	returned = true
}

// finish chooses the outcome of a run. A success counts even after the deadline: the
// tool has done its work. A failure after the context has ended is a consequence of that.
func finish(parent, run context.Context, t *registered, e ended) (string, *tool.Failure) {
	if e.failure == nil {
		return e.result, nil
	}
	if run.Err() == nil || e.failure.Code == codes.Panic {
		return "", e.failure
	}
	f := tool.Failf(tool.CodeTimeout, "the tool %q did not finish within %s", t.def.Name, t.def.Timeout)
	if parent.Err() != nil {
		f = tool.Failf(codes.Cancelled, "the call was cancelled: %v", context.Cause(parent))
	}
	f.NotSent = e.failure.NotSent
	return "", f
}

func notStarted(ctx context.Context) *tool.Failure {
	f := tool.Failf(codes.Cancelled, "the call was cancelled before it started: %v", context.Cause(ctx))
	f.NotSent = true
	return f
}

// cancelledAfter is the failure of a call that was cancelled between two runs.
func cancelledAfter(ctx context.Context, last *tool.Failure) *tool.Failure {
	f := tool.Failf(codes.Cancelled, "the call was cancelled (%v) after: %s", context.Cause(ctx), last.Message)
	f.NotSent = last.NotSent
	return f
}

// asFailure converts any error of a tool into a new Failure, with the outermost message
// and the innermost code.
func asFailure(err error) *tool.Failure {
	if err == nil {
		return nil
	}
	var f *tool.Failure
	if errors.As(err, &f) {
		if f == nil {
			return tool.Failf(tool.CodeFailed, "the tool failed without saying why")
		}
		out := *f
		out.Message = err.Error()
		if out.Code == "" {
			out.Code = tool.CodeFailed
		}
		return &out
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return tool.Failf(tool.CodeTimeout, "%s", err.Error())
	}
	return tool.Failf(tool.CodeFailed, "%s", err.Error())
}

// unanswered turns a missing answer into an unknown outcome if the tool may have acted
// and must not run twice.
func unanswered(effect tool.Effect, f *tool.Failure) *tool.Failure {
	if effect.Repeatable() || f.NotSent || f.Code != tool.CodeTimeout && f.Code != tool.CodeUnreachable {
		return f
	}
	out := *f
	out.Code = codes.OutcomeUnknown
	out.Message += "; it may or may not have taken effect"
	return &out
}

// mayRepeat reports whether a second run can help and is harmless.
func mayRepeat(effect tool.Effect, f *tool.Failure) bool {
	passing := f.Passing || f.Code == tool.CodeTimeout || f.Code == tool.CodeUnreachable
	return passing && f.Code != codes.Cancelled && f.RetryAfter <= pauses.Max && (effect.Repeatable() || f.NotSent)
}
