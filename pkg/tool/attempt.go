package tool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
)

// pauses are those between the runs of one call.
var pauses = retry.Policy{First: 100 * time.Millisecond, Factor: 2, Max: 5 * time.Second}

// endGrace is how long a tool whose context has ended may take to clean up (to
// reap a process, to close a connection) before it is left to itself.
const endGrace = 400 * time.Millisecond

// ended is what one run of a tool came to.
type ended struct {
	result  string
	failure *Failure
}

// attempt runs the tool once within its timeout.
func (r *Registry) attempt(ctx context.Context, t *registered, call Call) (string, *Failure) {
	if ctx.Err() != nil {
		return "", notStarted(ctx)
	}
	runCtx, cancel := context.WithTimeout(ctx, t.def.Timeout)
	defer cancel()
	// Buffered, so that a tool that was left behind can still end.
	done := make(chan ended, 1)
	go r.contain(runCtx, t, call, done)
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
		return finish(ctx, runCtx, t, ended{failure: Failf(CodeFailed, "the tool did not end")})
	}
}

// contain runs the tool and sends exactly one ended, whatever the tool does.
func (r *Registry) contain(ctx context.Context, t *registered, call Call, done chan<- ended) {
	var e ended
	returned := false
	defer func() {
		v := recover()
		switch {
		case v == nil && !returned:
			e = ended{failure: Failf(CodePanic, "the tool %q ended its goroutine", call.Name)}
		case v != nil:
			r.logger.Error("tool panicked", "tool", call.Name, "run", call.Run, "call", call.ID,
				"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			e = ended{failure: Failf(CodePanic, "the tool %q panicked: %v", call.Name, v)}
		}
		done <- e
	}()
	result, err := t.run(ctx, call)
	// Inside the containment: the Error method is the tool's own code too.
	e = ended{result: result, failure: asFailure(err)}
	returned = true
}

// finish names the outcome of a run. A success stands even where the time was
// up meanwhile: what the tool did is done. A failure of a run whose context has
// ended is a consequence of that end.
func finish(parent, run context.Context, t *registered, e ended) (string, *Failure) {
	if e.failure == nil {
		return e.result, nil
	}
	if run.Err() == nil || e.failure.Code == CodePanic {
		return "", e.failure
	}
	f := Failf(CodeTimeout, "the tool %q did not finish within %s", t.def.Name, t.def.Timeout)
	if parent.Err() != nil {
		f = Failf(CodeCancelled, "the call was cancelled: %v", context.Cause(parent))
	}
	f.NotSent = e.failure.NotSent
	return "", f
}

func notStarted(ctx context.Context) *Failure {
	f := Failf(CodeCancelled, "the call was cancelled before it started: %v", context.Cause(ctx))
	f.NotSent = true
	return f
}

// cancelledAfter is the failure of a call that was cancelled between two runs.
func cancelledAfter(ctx context.Context, last *Failure) *Failure {
	f := Failf(CodeCancelled, "the call was cancelled (%v) after: %s", context.Cause(ctx), last.Message)
	f.NotSent = last.NotSent
	return f
}

// asFailure turns any error of a tool into a Failure of its own, with the
// outermost message and the innermost code.
func asFailure(err error) *Failure {
	if err == nil {
		return nil
	}
	var f *Failure
	if errors.As(err, &f) {
		if f == nil {
			return Failf(CodeFailed, "the tool failed without saying why")
		}
		out := *f
		out.Message = err.Error()
		if out.Code == "" {
			out.Code = CodeFailed
		}
		return &out
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Failf(CodeTimeout, "%s", err.Error())
	}
	return Failf(CodeFailed, "%s", err.Error())
}

// unanswered makes an unknown outcome of a failure that only says that no answer
// came, where the tool must not run twice and may have acted.
func unanswered(effect Effect, f *Failure) *Failure {
	if effect.Repeatable() || f.NotSent || f.Code != CodeTimeout && f.Code != CodeUnreachable {
		return f
	}
	out := *f
	out.Code = CodeOutcomeUnknown
	out.Message += "; it may or may not have taken effect"
	return &out
}

// mayRepeat decides whether a second run can help and can do no harm.
func mayRepeat(effect Effect, f *Failure) bool {
	passing := f.Passing || f.Code == CodeTimeout || f.Code == CodeUnreachable
	return passing && f.Code != CodeCancelled && f.RetryAfter <= pauses.Max && (effect.Repeatable() || f.NotSent)
}
