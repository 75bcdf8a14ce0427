package mcptool

import (
	"context"
	"sync/atomic"
)

// sentKey is the key of a context's mark of what was sent.
type sentKey struct{}

// watchSent returns a context for one request of the SDK, and whether a message of
// it was given to the server by now, of which part may have arrived.
func watchSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := &atomic.Bool{}
	return context.WithValue(ctx, sentKey{}, sent), sent
}

// noteSent says that a message is about to be given to the server.
func noteSent(ctx context.Context) {
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}
