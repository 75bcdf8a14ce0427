package natsbus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// createPool makes the buckets of a pool that are missing.
func (b *Bus) createPool(ctx context.Context, pool string) error {
	b.pools.forget("")
	return errors.Join(
		b.createBucket(ctx, toolsConfig(pool, b.Replicas)),
		b.createStore(ctx, resultsConfig(pool, b.Replicas)),
	)
}

func (b *Bus) createBucket(ctx context.Context, cfg jetstream.KeyValueConfig) error {
	return b.Do(ctx, "STREAM.CREATE."+kvStreamPrefix+cfg.Bucket, func(ctx context.Context) error {
		_, err := b.JS.CreateKeyValue(ctx, cfg)
		if errors.Is(err, jetstream.ErrBucketExists) {
			return nil
		}
		return err
	})
}

func (b *Bus) createStore(ctx context.Context, cfg jetstream.ObjectStoreConfig) error {
	return b.Do(ctx, "STREAM.CREATE."+objectStreamPrefix+cfg.Bucket, func(ctx context.Context) error {
		_, err := b.JS.CreateObjectStore(ctx, cfg)
		if errors.Is(err, jetstream.ErrBucketExists) {
			return nil
		}
		return err
	})
}
