package natsbus

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// nats-server keeps the settings of a stream, and those of a consumer, in one file and their
// checksum in another. After a power loss between the two writes it leaves out the stream. So
// what is as it is declared is not written again.

// putStream creates a stream, or updates one that is not as it is declared.
func putStream(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	stream, err := js.Stream(ctx, cfg.Name)
	if err == nil && asDeclared(stream.CachedInfo().Config, cfg) {
		return stream, nil
	}
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, err
	}
	return js.CreateOrUpdateStream(ctx, cfg)
}

// putConsumer creates a consumer, or updates one that is not as it is declared.
func putConsumer(ctx context.Context, stream jetstream.Stream, cfg jetstream.ConsumerConfig) error {
	consumer, err := stream.Consumer(ctx, cfg.Durable)
	if err == nil && asDeclared(consumer.CachedInfo().Config, cfg) {
		return nil
	}
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return err
	}
	_, err = stream.CreateOrUpdateConsumer(ctx, cfg)
	return err
}

func asDeclared(has, wanted any) bool {
	a, err := json.Marshal(has)
	b, failed := json.Marshal(wanted)
	return err == nil && failed == nil && len(changed(a, b)) == 0
}
