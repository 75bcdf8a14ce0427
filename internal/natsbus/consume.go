package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
)

// prepareRetry is how often a worker looks whether its consumer is there by now.
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
	return b.pull(ctx, b.sources(durables), slots, handle)
}

// sources returns the consumers of every shard.
func (b *Bus) sources(durables []durable) []*source {
	var all []*source
	for shard := range b.shards {
		for _, d := range durables {
			s := newSource(events.StreamName(shard), d.name, func(ctx context.Context) error { return b.prepare(ctx, shard, d) })
			if b.replicas == 1 { // several are flushed apart from the times of their records
				s.pace = &b.appenders[shard].pace
			}
			all = append(all, s)
		}
	}
	return all
}

// pull hands what the sources bring to handle until ctx ends.
func (b *Bus) pull(ctx context.Context, sources []*source, slots int, handle func(journal.Delivery)) error {
	p := newPuller(b, sources, slots, handle)
	defer p.close()
	return p.run(ctx)
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
		wait, err := b.ackWait(ctx, d)
		if err != nil {
			return 0, err
		}
		if shortest == 0 || wait < shortest {
			shortest = wait
		}
	}
	return shortest, nil
}

// Undelivered reports whether a record still waits to be delivered for the first
// time: a consumer delivers what it has not delivered yet in the order of the
// stream, also while it is kept back by what is not acknowledged.
func (b *Bus) Undelivered(ctx context.Context, inbox journal.Inbox, shard int, seq uint64) (bool, error) {
	durables, err := checkInbox(inbox)
	if err != nil {
		return false, fmt.Errorf("undelivered: %w", err)
	}
	if len(durables) != 1 || shard < 0 || shard >= b.shards {
		return false, fmt.Errorf("undelivered: record %d of shard %d in %d inboxes: want one of each", seq, shard, len(durables))
	}
	info, err := b.consumerInfo(ctx, shard, durables[0].name)
	if code, ok := errorCode(err); ok && code == codeConsumerNotFound {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return info.Delivered.StreamSeq < seq, nil
}

func (b *Bus) ackWait(ctx context.Context, d durable) (time.Duration, error) {
	b.mu.Lock()
	kept := b.ackWaits[d.name]
	b.mu.Unlock()
	if time.Since(kept.at) < ackWaitFresh {
		return kept.wait, nil
	}
	info, err := b.consumerInfo(ctx, 0, d.name)
	switch {
	case err != nil && kept.wait > 0:
		return kept.wait, nil // what was true is the best guess while the bus is away
	case err != nil:
		return 0, err
	}
	b.keepAckWait(d, info.Config.AckWait)
	return info.Config.AckWait, nil
}

// keptAckWait is a consumer's ack wait as it was some time ago.
type keptAckWait struct {
	wait time.Duration
	at   time.Time
}

// ackWaitFresh is how long it is used without asking again: an operator may
// change it while workers run.
const ackWaitFresh = 4 * time.Second

func (b *Bus) keepAckWait(d durable, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ackWaits[d.name] = keptAckWait{wait: wait, at: time.Now()}
}

// prepare returns when the consumer is there. The error is final: the context's,
// or that this connection may not even look.
func (b *Bus) prepare(ctx context.Context, shard int, d durable) error {
	info, err := b.awaitConsumer(ctx, events.StreamName(shard), d.name, createCommand(d), func() error { return b.createConsumer(ctx, shard, d) })
	if err == nil {
		b.keepAckWait(d, info.Config.AckWait)
	}
	return err
}

// awaitConsumer returns when the consumer is there. One that is missing is made
// by create; where that fails, the log names the command.
func (b *Bus) awaitConsumer(ctx context.Context, stream, name, command string, create func() error) (*consumerInfo, error) {
	var said string
	for {
		info, err := b.consumerOf(ctx, stream, name)
		if err == nil {
			return info, nil
		}
		if errors.Is(err, journal.ErrDenied) {
			return nil, err
		}
		if code, ok := errorCode(err); ok && code == codeConsumerNotFound {
			if err = create(); err == nil {
				continue
			}
			err = fmt.Errorf("consumer %s of %s is missing: run `%s`: %w", name, stream, command, err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err.Error() != said {
			said = err.Error()
			b.log.Warn("waiting for a consumer", "reason", said)
		}
		if !pauseFor(ctx, prepareRetry) {
			return nil, ctx.Err()
		}
	}
}

func createCommand(d durable) string {
	if d.pool == "" && !slices.Contains(ownStates, d.states[0]) {
		return initCommand + " --states " + joinStates(d.states)
	}
	if d.pool == "" {
		return initCommand
	}
	command := initCommand + " --pools " + d.pool
	if !slices.Contains(slices.Concat(actingStates, endStates), d.states[0]) {
		command += " --states " + joinStates(d.states)
	}
	return command
}

// createConsumer makes a consumer that is missing, and the buckets of its pool.
func (b *Bus) createConsumer(ctx context.Context, shard int, d durable) error {
	if err := b.create(ctx, events.StreamName(shard), d.consumerConfig(shard, b.opts.AckWait, b.opts.MaxAckPending)); err != nil {
		return err
	}
	if d.pool == "" {
		return nil
	}
	if err := b.createPool(ctx, d.pool); err != nil {
		b.log.Warn("made the consumer of a pool, but not its buckets", "pool", d.pool, "error", err)
	}
	return nil
}

// create makes a consumer that is missing. It never changes one that is there:
// the operator may have set it up otherwise.
func (b *Bus) create(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) error {
	// The configuration is sent as the server wants it, with the name.
	cfg.Name = cfg.Durable
	body, err := json.Marshal(struct {
		Stream string                   `json:"stream_name"`
		Config jetstream.ConsumerConfig `json:"config"`
		Action string                   `json:"action"`
	}{stream, cfg, "create"})
	if err != nil {
		return err
	}
	endpoint := "CONSUMER.CREATE." + stream + "." + cfg.Name
	if cfg.FilterSubject != "" {
		endpoint += "." + cfg.FilterSubject
	}
	var answer consumerInfo
	if err := b.ask(ctx, endpoint, body, &answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return classify(answer.Error)
	}
	b.log.Info("made a consumer", "stream", stream, "consumer", cfg.Name)
	return nil
}
