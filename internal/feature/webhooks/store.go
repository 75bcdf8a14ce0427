package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/kv"
)

// What gateways know of webhooks are small values. A key is a kind and one to three more tokens.

// value returns what is kept under a key with its revision, or [journal.ErrNotFound].
func (h *Hooks) value(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	it, err := h.cfg.KV.Get(ctx, row.Bucket, key)
	return it.Value, it.Revision, about(key, err)
}

// values calls take for every key below a prefix, in no order.
func (h *Hooks) values(ctx context.Context, prefix string, take func(key string, value []byte, revision uint64)) error {
	for it, err := range h.cfg.KV.Each(ctx, row.Bucket, prefix+".>") {
		if err != nil {
			return about(prefix, err)
		}
		take(it.Key, it.Value, it.Revision)
	}
	return nil
}

// putValue replaces what has the revision, 0: nothing, and returns the new revision, or
// [journal.ErrConflict]. The value is forgotten after its lifetime; 0: never.
func (h *Hooks) putValue(ctx context.Context, key string, value []byte, revision uint64, lifetime time.Duration) (uint64, error) {
	revision, err := h.cfg.KV.Update(ctx, row.Bucket, kv.Item{Key: key, Value: value, Revision: revision, Lifetime: lifetime})
	return revision, about(key, err)
}

// deleteValue removes what has the revision, or returns [journal.ErrConflict].
func (h *Hooks) deleteValue(ctx context.Context, key string, revision uint64) error {
	return about(key, h.cfg.KV.Delete(ctx, row.Bucket, key, revision))
}

func about(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("webhooks: %s: %w", key, err)
}
