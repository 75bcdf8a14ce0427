package tool

import "context"

// Gate decides whether a tool may be called now. It is safe for concurrent use.
type Gate interface {
	// Enter lets a run begin that leave ends, with the run's failure or nil; or
	// it returns the failure that the call is answered with instead.
	Enter() (leave func(*Failure), refused *Failure)
}

// Down reports whether a failure is the tool's own rather than the call's: it did
// not answer, or was overloaded, or broke. Any other call would fail too.
func (f *Failure) Down() bool {
	return f.Passing || f.Code == CodeTimeout || f.Code == CodeUnreachable || f.Code == CodePanic
}

// gated runs the tool once if its gate lets it.
func (r *Registry) gated(ctx context.Context, t *registered, call Call) (string, *Failure) {
	if t.gate == nil {
		return r.attempt(ctx, t, call)
	}
	leave, refused := t.gate.Enter()
	if refused != nil {
		return "", refused
	}
	result, failure := r.attempt(ctx, t, call)
	leave(failure)
	return result, failure
}
