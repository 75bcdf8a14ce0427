package actor

import (
	"context"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/tool"
)

// maxAttachments bounds what one call may attach: more would not fit into its event.
const maxAttachments = 100

// keeper stores what one call's tool returns beside text, and remembers the references for
// the event.
type keeper struct {
	blobs journal.Blobs
	pool  string

	mu     sync.Mutex
	refs   []events.Ref
	closed bool
}

// under returns the context of the call's tool.
func (k *keeper) under(ctx context.Context) context.Context {
	if k.blobs == nil {
		return ctx
	}
	return tool.WithKeeper(ctx, k.keep)
}

// keep stores data in the pool's bucket.
func (k *keeper) keep(ctx context.Context, data []byte) (string, error) {
	if k.full() {
		return "", tool.Failf(tool.CodeFailed, "a call may return %d attachments at most", maxAttachments)
	}
	ref, err := k.blobs.PutBlob(ctx, k.pool, data)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed && !slices.Contains(k.refs, ref) {
		k.refs = append(k.refs, ref)
	}
	return ref.Bucket + "/" + ref.Key, nil
}

func (k *keeper) full() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed || len(k.refs) >= maxAttachments
}

// taken returns the references. Afterwards the tool can store nothing more.
func (k *keeper) taken() []events.Ref {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	return k.refs
}
