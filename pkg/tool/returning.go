package tool

import (
	"context"
	"time"
)

// Returning is a source that goes away and comes back, such as a server that is
// started again, and whose tools' names show that they are its own. Calls of them
// wait for it where it is away, instead of being told that there is no such tool.
type Returning interface {
	Source
	// Claims reports whether a tool of that name would be this source's.
	Claims(name string) bool
	// Patience is how long a call of a tool that is not there waits for the source.
	Patience() time.Duration
	// Up waits until the source is there and has put its tools, or ctx ends, and
	// then says why it is not.
	Up(ctx context.Context) error
}

// Await waits for a tool that is not there to come with its source, where it is a
// [Returning] one's that is away, for as long as that has patience. It returns nil
// where there is nothing to wait for: the tool is there, or its source is there
// without it, or nobody would have it. The failure is unreachable, or cancelled
// where ctx has ended; nothing was sent.
func (r *Registry) Await(ctx context.Context, name string) *Failure {
	if _, there := r.Lookup(name); there || !r.running.Load() {
		return nil
	}
	for _, source := range r.sources {
		s, ok := source.(Returning)
		if !ok || !s.Claims(name) {
			continue
		}
		waiting, stop := context.WithTimeout(ctx, s.Patience())
		defer stop()
		err := s.Up(waiting)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return notStarted(ctx)
		}
		f := Failf(CodeUnreachable, "the tool %q is not there: %s", name, toUTF8(err.Error()))
		f.NotSent = true
		return f
	}
	return nil
}
