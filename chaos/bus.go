package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// logStream is the only shard's stream.
const logStream = "MOORE_0"

// bus is the audit's own view of the log: it reads the stream itself.
type bus struct {
	conn *nats.Conn
	js   jetstream.JetStream
}

func connect(urls string) (*bus, error) {
	conn, err := nats.Connect(urls, nats.Name("chaos"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	return &bus{conn, js}, err
}

// leader returns the name of the server that leads the log; empty if nobody
// answers.
func (b *bus) leader(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := b.js.Stream(ctx, logStream)
	if err != nil || stream.CachedInfo().Cluster == nil {
		return ""
	}
	return stream.CachedInfo().Cluster.Leader
}

// healed waits until the log and each of its consumers has a leader, and no
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
	stream, err := b.js.Stream(ctx, logStream)
	if err != nil || !led(stream.CachedInfo().Cluster) {
		return false
	}
	consumers, err := b.consumers(ctx)
	for _, info := range consumers {
		if !led(info.Cluster) {
			return false
		}
	}
	return err == nil && len(consumers) == stream.CachedInfo().State.Consumers
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
	seq     uint64
	subject string
	body    []byte
}

// records reads the whole stream, in order, and fails if a sequence number is
// missing.
func (b *bus) records(ctx context.Context) ([]record, error) {
	stream, err := b.js.Stream(ctx, logStream)
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
			all = append(all, record{meta.Sequence.Stream, msg.Subject(), msg.Data()})
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
	stream, err := b.js.Stream(ctx, logStream)
	if err != nil {
		return nil, err
	}
	var all []*jetstream.ConsumerInfo
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		all = append(all, info)
	}
	return all, list.Err()
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
				if matches(f, r.subject) {
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
