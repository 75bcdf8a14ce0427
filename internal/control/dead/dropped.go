package dead

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
)

// drop remembers the key of a dead run or message. It has no value.
func drop(ctx context.Context, store kv.Store, key string) error {
	if _, err := store.Put(ctx, buckets.Dropped, kv.Item{Key: key}); err != nil {
		return fmt.Errorf("drop %s: %w", key, err)
	}
	return nil
}

// dropped returns every key that was dropped, sorted; without the bucket there is none.
func dropped(ctx context.Context, store kv.Store) ([]string, error) {
	keys, err := store.Keys(ctx, buckets.Dropped, "*")
	if err != nil && !errors.Is(err, buckets.ErrMissing) {
		return nil, fmt.Errorf("list what was dropped: %w", err)
	}
	return keys, nil
}
