package natsbus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// nats-server keeps the settings of a stream, and those of a consumer, in one file and their
// checksum in another. After a power loss between the two writes it leaves out the stream. So
// what is as it is declared is not written again.

// putStream creates a stream, or updates one that is not as it is declared. A stream that would be
// created is nil.
func (o *InitOptions) putStream(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	c := Change{Action: "create", Thing: "stream " + cfg.Name}
	stream, err := o.stream(ctx, js, cfg.Name)
	if err == nil {
		c.Action, c.Settings = "update", changed(stream.CachedInfo().Config, cfg)
	}
	switch {
	case err != nil && !errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, err
	case err == nil && len(c.Settings) == 0:
		return stream, nil
	case o.plan != nil:
		o.plan(c)
		return stream, nil
	}
	if stream == nil {
		if stream, err = js.CreateStream(ctx, cfg); !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return stream, err
		}
	}
	return js.UpdateStream(ctx, cfg)
}

// stream returns a stream that existed at the start.
func (o *InitOptions) stream(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	if !o.existing[name] {
		return nil, jetstream.ErrStreamNotFound
	}
	return js.Stream(ctx, name)
}

// putConsumer creates a consumer of a stream, or updates one that is not as it is declared.
func (o *InitOptions) putConsumer(ctx context.Context, stream jetstream.Stream, name string, cfg jetstream.ConsumerConfig) error {
	c := Change{Action: "create", Thing: "consumer " + cfg.Durable + " of " + name}
	consumer, err := consumerOf(ctx, stream, cfg.Durable)
	if err == nil {
		c.Action, c.Settings = "update", changed(consumer.CachedInfo().Config, cfg)
	}
	switch {
	case err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound):
		return err
	case err == nil && len(c.Settings) == 0:
		return nil
	case o.plan != nil:
		o.plan(c)
		return nil
	}
	_, err = stream.CreateOrUpdateConsumer(ctx, cfg)
	return err
}

// consumerOf returns a consumer. A stream that would be created, or just was, has none.
func consumerOf(ctx context.Context, stream jetstream.Stream, name string) (jetstream.Consumer, error) {
	if stream == nil || stream.CachedInfo().State.Consumers == 0 {
		return nil, jetstream.ErrConsumerNotFound
	}
	return stream.Consumer(ctx, name)
}
