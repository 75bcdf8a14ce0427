package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// bus is the audit's own view of the log: it reads the streams itself.
type bus struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	shards int
}

// streamName names a shard's stream.
func streamName(shard int) string { return "MOORE_" + strconv.Itoa(shard) }

func connect(urls string, shards int) (*bus, error) {
	conn, err := nats.Connect(urls, nats.Name("chaos"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	return &bus{conn, js, shards}, err
}

// leader returns the name of the server that leads one of the shards; empty if
// nobody answers.
func (b *bus) leader(ctx context.Context, pick int) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := b.js.Stream(ctx, streamName(pick%b.shards))
	if err != nil || stream.CachedInfo().Cluster == nil {
		return ""
	}
	return stream.CachedInfo().Cluster.Leader
}

// healed waits until each stream and consumer has a leader, and no
// replica lags behind it, and then as long again as work gets a chance.
func (b *bus) healed(ctx context.Context) {
	for !b.whole(ctx) {
		if !pause(ctx, 200*time.Millisecond) {
			return
		}
	}
	pause(ctx, 2*time.Second)
}

func (b *bus) whole(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	expected := 0
	for shard := range b.shards {
		stream, err := b.js.Stream(ctx, streamName(shard))
		if err != nil || !led(stream.CachedInfo().Cluster) {
			return false
		}
		expected += stream.CachedInfo().State.Consumers
	}
	consumers, err := b.consumers(ctx)
	for _, info := range consumers {
		if !led(info.Cluster) {
			return false
		}
	}
	if err != nil || len(consumers) != expected {
		return false
	}
	buckets := b.js.ListStreams(ctx)
	for info := range buckets.Info() {
		if !led(info.Cluster) {
			return false
		}
	}
	return buckets.Err() == nil
}

// events is how many messages the log has.
func (b *bus) events(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	total := uint64(0)
	for shard := range b.shards {
		stream, err := b.js.Stream(ctx, streamName(shard))
		if err != nil {
			return 0, err
		}
		total += stream.CachedInfo().State.Msgs
	}
	return total, nil
}

// led reports whether replicas have a leader and are with it.
func led(c *jetstream.ClusterInfo) bool {
	if c == nil {
		return true // there is only one
	}
	for _, r := range c.Replicas {
		if !r.Current || r.Offline {
			return false
		}
	}
	return c.Leader != ""
}

// record is a stored message of the log.
type record struct {
	shard   int
	seq     uint64
	subject string
	body    []byte
}

// records reads the entire log, one shard after another, each in order.
func (b *bus) records(ctx context.Context) ([]record, error) {
	var all []record
	for shard := range b.shards {
		some, err := b.shardRecords(ctx, shard)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", streamName(shard), err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// shardRecords reads a stream and fails if a sequence number is missing.
func (b *bus) shardRecords(ctx context.Context, shard int) ([]record, error) {
	stream, err := b.js.Stream(ctx, streamName(shard))
	if err != nil {
		return nil, err
	}
	last := stream.CachedInfo().State.LastSeq
	all := make([]record, 0, last)
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	for uint64(len(all)) < last {
		batch, err := consumer.Fetch(int(min(500, last-uint64(len(all)))), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, err
		}
		before := len(all)
		for msg := range batch.Messages() {
			meta, err := msg.Metadata()
			if err != nil {
				return nil, err
			}
			if want := uint64(len(all) + 1); meta.Sequence.Stream != want {
				return nil, fmt.Errorf("the stream has sequence %d where %d is due", meta.Sequence.Stream, want)
			}
			all = append(all, record{shard, meta.Sequence.Stream, msg.Subject(), msg.Data()})
		}
		if len(all) == before {
			return nil, fmt.Errorf("the stream has %d messages and gives %d: %w", last, before, batch.Error())
		}
	}
	return all, nil
}

// object returns a large result.
func (b *bus) object(ctx context.Context, bucket, key string) ([]byte, error) {
	store, err := b.js.ObjectStore(ctx, bucket)
	if err != nil {
		return nil, err
	}
	return store.GetBytes(ctx, key)
}

// consumers describes what every consumer of the log has before it.
func (b *bus) consumers(ctx context.Context) ([]*jetstream.ConsumerInfo, error) {
	var all []*jetstream.ConsumerInfo
	for shard := range b.shards {
		stream, err := b.js.Stream(ctx, streamName(shard))
		if err != nil {
			return nil, err
		}
		list := stream.ListConsumers(ctx)
		for info := range list.Info() {
			all = append(all, info)
		}
		if list.Err() != nil {
			return nil, list.Err()
		}
	}
	return all, nil
}

// snapshots is how many runs have a snapshot; 0 if nobody answers.
func (b *bus) snapshots(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	store, err := b.js.ObjectStore(ctx, "snapshots")
	if err != nil {
		return 0
	}
	all, _ := store.List(ctx) // none, or the server is away
	return len(all)
}

// redeliveries is how often a message was delivered again, over all durables.
func redeliveries(all []*jetstream.ConsumerInfo, log []record) int {
	again := 0
	for _, info := range all {
		if info.Config.Durable == "" {
			continue // what read the log for this audit
		}
		filters := append([]string{}, info.Config.FilterSubjects...)
		if info.Config.FilterSubject != "" {
			filters = append(filters, info.Config.FilterSubject)
		}
		distinct := 0
		for _, r := range log {
			for _, f := range filters {
				if info.Stream == streamName(r.shard) && matches(f, r.subject) {
					distinct++
					break
				}
			}
		}
		again += max(0, int(info.Delivered.Consumer)-distinct)
	}
	return again
}

// matches reports whether a subject is one of a filter's without `>`.
func matches(filter, subject string) bool {
	want, have := strings.Split(filter, "."), strings.Split(subject, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if want[i] != "*" && want[i] != have[i] {
			return false
		}
	}
	return true
}

// parse reads a record as the event that it has to be.
func (r *record) parse() (*event, error) {
	e := new(event)
	if err := json.Unmarshal(r.body, e); err != nil {
		return nil, err
	}
	return e, nil
}
