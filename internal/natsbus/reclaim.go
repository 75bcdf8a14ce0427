package natsbus

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A server that starts keeps the deliveries that were outstanding, and waits for each
// of them as if the process that held it could still settle it. Where that process
// is known to be gone, the ack wait is over: it is set so short for a moment that the
// server queues them again. They keep their count of deliveries, by which a lost
// worker is noticed. A delivery that is to come again after a delay comes up to one
// ack wait too early.
const (
	// reclaimWait is the ack wait of that moment.
	reclaimWait = time.Millisecond
	// reclaimTime is how long it lasts. The server looks over what is outstanding
	// 100 ms after the ack wait was changed.
	reclaimTime = 300 * time.Millisecond
	// metaAckWait has the ack wait that a consumer is to have again, so that a process
	// which dies at that moment leaves no consumer with the short one.
	metaAckWait = "moorebus_ack_wait"
	// ownStreamPrefix begins the names of the log's streams and of that of timers.
	ownStreamPrefix = "MOORE_"
)

// ackWaitOf is the ack wait of a consumer, or the one that it is to have again.
func ackWaitOf(cfg jetstream.ConsumerConfig) time.Duration {
	if wait, err := time.ParseDuration(cfg.Metadata[metaAckWait]); err == nil && wait > 0 {
		return wait
	}
	return cfg.AckWait
}

// reclaim has all outstanding deliveries of the bus come again at once, and empties
// the buckets of announcements and of what gateways remember of them.
func reclaim(ctx context.Context, js jetstream.JetStream) error {
	names := js.StreamNames(ctx)
	var held []heldConsumer
	for name := range names.Name() {
		switch {
		case name == kvStreamPrefix+providerBucket, name == kvStreamPrefix+offersBucket, strings.HasPrefix(name, kvStreamPrefix+toolsPrefix):
			stream, err := js.Stream(ctx, name)
			if err == nil {
				err = stream.Purge(ctx)
			}
			if err != nil {
				return fmt.Errorf("bucket %s: %w", strings.TrimPrefix(name, kvStreamPrefix), err)
			}
		case strings.HasPrefix(name, ownStreamPrefix):
			found, err := heldConsumers(ctx, js, name)
			if err != nil {
				return fmt.Errorf("consumers of %s: %w", name, err)
			}
			held = append(held, found...)
		}
	}
	if err := names.Err(); err != nil || len(held) == 0 {
		return err
	}
	for _, c := range held {
		if err := c.setAckWait(ctx, js, reclaimWait); err != nil {
			return err
		}
	}
	select {
	case <-time.After(reclaimTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, c := range held {
		if err := c.setAckWait(ctx, js, c.ackWait); err != nil {
			return err
		}
	}
	return nil
}

// heldConsumer is a consumer with deliveries that were not settled, or one that was
// left with a short ack wait.
type heldConsumer struct {
	stream  string
	cfg     jetstream.ConsumerConfig
	ackWait time.Duration
}

func heldConsumers(ctx context.Context, js jetstream.JetStream, name string) ([]heldConsumer, error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	var held []heldConsumer
	all := stream.ListConsumers(ctx)
	for info := range all.Info() {
		wait := ackWaitOf(info.Config)
		if info.Config.Durable != "" && (info.NumAckPending > 0 || wait != info.Config.AckWait) {
			held = append(held, heldConsumer{name, info.Config, wait})
		}
	}
	return held, all.Err()
}

// setAckWait changes the ack wait. One that is not the consumer's own is noted beside
// it.
func (c *heldConsumer) setAckWait(ctx context.Context, js jetstream.JetStream, wait time.Duration) error {
	cfg := c.cfg
	cfg.AckWait, cfg.Metadata = wait, map[string]string{}
	for key, value := range c.cfg.Metadata {
		if key != metaAckWait && !strings.HasPrefix(key, "_nats.") {
			cfg.Metadata[key] = value
		}
	}
	if wait != c.ackWait {
		cfg.Metadata[metaAckWait] = c.ackWait.String()
	}
	if _, err := js.UpdateConsumer(ctx, c.stream, cfg); err != nil {
		return fmt.Errorf("consumer %s of %s: %w", cfg.Durable, c.stream, err)
	}
	return nil
}
