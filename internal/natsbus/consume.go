package natsbus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natsbus/pull"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// prepareRetry is how often a worker asks again for a consumer that is missing.
const prepareRetry = time.Second

// Consume hands the inbox's deliveries of all shards to handle until ctx ends.
// A consumer that is missing is made, if the connection may; else Consume waits
// for it and names the command in the log.
func (b *Bus) Consume(ctx context.Context, inbox journal.Inbox, slots int, handle func(journal.Delivery)) error {
	if slots < 1 {
		return fmt.Errorf("consume: %d slots: at least one is needed", slots)
	}
	durables, err := checkInbox(inbox)
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	return b.pull(ctx, b.sources(durables), slots, func(d journal.Delivery) {
		if b.flushedDelivery(ctx, d.Record()) {
			handle(d)
		}
	})
}

// flushedDelivery returns true when a delivered record is on the disk. A delivery of which
// this is not known in time is not handed out, and comes again after the ack wait.
func (b *Bus) flushedDelivery(ctx context.Context, rec journal.Record) bool {
	shard, ok := b.shardIn(rec.Subject)
	if !ok {
		return true // it is not the log's
	}
	if err := b.prove(shard).wait(ctx, rec.Seq); err != nil {
		b.Log.Warn("a delivery is not handed out", "subject", rec.Subject, "reason", err)
		return false
	}
	return true
}

func (b *Bus) sources(durables []durable) []pull.Source {
	var all []pull.Source
	for shard := range b.shards {
		for _, d := range durables {
			stream := events.StreamName(shard)
			all = append(all, pull.Source{Stream: stream, Consumer: d.name, Prepare: func(ctx context.Context) error {
				return b.awaitConsumer(ctx, stream, d.name, createCommand(d), func() error { return b.createConsumer(ctx, shard, d) })
			}})
		}
	}
	return all
}

func (b *Bus) pull(ctx context.Context, sources []pull.Source, slots int, handle func(journal.Delivery)) error {
	err := pull.Run(ctx, b.Client, sources, slots, func(msg *nats.Msg) {
		d, err := newDelivery(b.NC, msg)
		if err != nil {
			b.Log.Warn("a delivery cannot be read", "reason", err)
			return
		}
		handle(d)
	})
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	return nil
}

func checkInbox(inbox journal.Inbox) ([]durable, error) {
	if inbox.Pool != "" && !events.ValidToken(inbox.Pool) {
		return nil, fmt.Errorf("pool %q is not a token of [a-z0-9][a-z0-9_-]{0,62}", inbox.Pool)
	}
	if err := checkStates(inbox.States); err != nil {
		return nil, err
	}
	durables := durablesOf(inbox)
	if len(durables) == 0 {
		return nil, errors.New("the inbox names no state")
	}
	return durables, nil
}

// AckWait returns how long a delivery of the inbox may go without Extend: the
// shortest of its consumers'.
func (b *Bus) AckWait(ctx context.Context, inbox journal.Inbox) (time.Duration, error) {
	durables, err := checkInbox(inbox)
	if err != nil {
		return 0, fmt.Errorf("ack wait: %w", err)
	}
	var shortest time.Duration
	for _, d := range durables {
		known, err := b.terms(ctx, d)
		if err != nil {
			return 0, err
		}
		if shortest == 0 || known.ackWait < shortest {
			shortest = known.ackWait
		}
	}
	return shortest, nil
}

// Limited reports whether the pool's calls are bounded. A change is seen after some seconds.
func (b *Bus) Limited(ctx context.Context, pool string) (bool, error) {
	known, err := b.terms(ctx, actingDurable(pool))
	return known.limited, err
}

// Undelivered reports whether a record still waits to be delivered for the first
// time. A consumer delivers new records in the order of the stream, also after
// MaxAckPending has kept some back.
func (b *Bus) Undelivered(ctx context.Context, inbox journal.Inbox, shard int, seq uint64) (bool, error) {
	durables, err := checkInbox(inbox)
	if err != nil {
		return false, fmt.Errorf("undelivered: %w", err)
	}
	if len(durables) != 1 || shard < 0 || shard >= b.shards {
		return false, fmt.Errorf("undelivered: record %d of shard %d in %d inboxes: want one of each", seq, shard, len(durables))
	}
	info, err := b.Consumer(ctx, events.StreamName(shard), durables[0].name)
	if code, ok := api.Code(err); ok && code == api.CodeConsumerNotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return info.CachedInfo().Delivered.Stream < seq, nil
}

// terms returns a consumer's terms. It asks again after some seconds, since an
// operator may change them while workers run; while the bus is away the last answer stands.
func (b *Bus) terms(ctx context.Context, d durable) (knownTerms, error) {
	b.mu.Lock()
	known := b.knownTerms[d.name]
	b.mu.Unlock()
	if time.Since(known.at) < termsFresh {
		return known, nil
	}
	info, err := b.Consumer(ctx, events.StreamName(0), d.name)
	switch {
	case err != nil && known.ackWait > 0:
		return known, nil
	case err != nil:
		return knownTerms{}, err
	}
	cfg := info.CachedInfo().Config
	known = knownTerms{ackWait: cfg.AckWait, limited: isLimited(cfg), at: time.Now()}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.knownTerms[d.name] = known
	return known, nil
}

// knownTerms are how long a delivery of a consumer may go without Extend, and whether the
// consumer bounds the calls of its pool.
type knownTerms struct {
	ackWait time.Duration
	limited bool
	at      time.Time
}

const termsFresh = 4 * time.Second

// awaitConsumer returns as soon as the consumer is there. One that is missing is made
// by create; where that fails, the log names the command. The error is final: the
// context's, or that this connection may not even look.
func (b *Bus) awaitConsumer(ctx context.Context, stream, name, command string, create func() error) error {
	var said string
	for {
		_, err := b.Consumer(ctx, stream, name)
		if err == nil || errors.Is(err, journal.ErrDenied) {
			return err
		}
		if code, ok := api.Code(err); ok && code == api.CodeConsumerNotFound {
			if err = create(); err == nil {
				continue
			}
			err = fmt.Errorf("consumer %s of %s is missing: run `%s`: %w", name, stream, command, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err.Error() != said {
			said = err.Error()
			b.Log.Warn("waiting for a consumer", "reason", said)
		}
		if !retry.Wait(ctx, prepareRetry) {
			return ctx.Err()
		}
	}
}

func createCommand(d durable) string {
	if d.pool == "" && !slices.Contains(ownStates, d.states[0]) {
		return api.InitCommand + " --states " + joinStates(d.states)
	}
	if d.pool == "" || d.pool == events.ClientPool {
		return api.InitCommand
	}
	command := api.InitCommand + " --pools " + d.pool
	if !slices.Contains(slices.Concat(actingStates, endStates), d.states[0]) {
		command += " --states " + joinStates(d.states)
	}
	return command
}

func (b *Bus) createConsumer(ctx context.Context, shard int, d durable) error {
	if err := b.create(ctx, events.StreamName(shard), d.consumerConfig(shard, b.opts.AckWait, b.opts.MaxAckPending)); err != nil {
		return err
	}
	if d.pool == "" || d.pool == events.ClientPool {
		return nil
	}
	if err := b.createPool(ctx, d.pool); err != nil {
		b.Log.Warn("made the consumer of a pool, but not its buckets", "pool", d.pool, "reason", err)
	}
	return nil
}

// create makes a consumer that is missing. It never changes one that is there:
// the operator may have set it up otherwise.
func (b *Bus) create(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) error {
	endpoint := "CONSUMER.CREATE." + stream + "." + cfg.Durable
	if cfg.FilterSubject != "" {
		endpoint += "." + cfg.FilterSubject
	}
	err := b.Do(ctx, endpoint, func(ctx context.Context) error {
		_, err := b.JS.CreateConsumer(ctx, stream, cfg)
		return err
	})
	if err == nil {
		b.Log.Info("made a consumer", "stream", stream, "consumer", cfg.Durable)
	}
	return err
}
