package agui

import "context"

// Forget is one look for threads that ended long ago.
func (f *Face) Forget(ctx context.Context) error { return f.forget(ctx) }
