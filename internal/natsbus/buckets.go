package natsbus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// createPool makes the buckets of a pool that are missing.
func (b *Bus) createPool(ctx context.Context, pool string) error {
	return errors.Join(
		b.createBucket(ctx, toolsConfig(pool, b.replicas)),
		b.createStore(ctx, resultsConfig(pool, b.replicas)),
	)
}

func (b *Bus) createBucket(ctx context.Context, cfg jetstream.KeyValueConfig) error {
	return b.guarded(ctx, "STREAM.CREATE."+kvStreamPrefix+cfg.Bucket, func(ctx context.Context) error {
		_, err := b.js.CreateKeyValue(ctx, cfg)
		if errors.Is(err, jetstream.ErrBucketExists) {
			return nil
		}
		return err
	})
}

func (b *Bus) createStore(ctx context.Context, cfg jetstream.ObjectStoreConfig) error {
	return b.guarded(ctx, "STREAM.CREATE."+objectStreamPrefix+cfg.Bucket, func(ctx context.Context) error {
		_, err := b.js.CreateObjectStore(ctx, cfg)
		if errors.Is(err, jetstream.ErrBucketExists) {
			return nil
		}
		return err
	})
}

// guarded runs a call of the client library and ends it at once when the bus
// refuses the API subject that it uses, or the question that the library asks
// before.
func (b *Bus) guarded(ctx context.Context, endpoint string, call func(context.Context) error) error {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	defer b.denied.watch(apiPrefix+endpoint, refuse)()
	defer b.denied.watch(apiPrefix+"INFO", refuse)()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return classify(err)
}
