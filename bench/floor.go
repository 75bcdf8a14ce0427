package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The floor is the least that a run over JetStream can be: a message is
// delivered, the next one is appended under the run's condition, the first is
// acknowledged. Nothing is folded, encoded or decided. It uses nats.go alone,
// with bodies of the same sizes and subjects of the same form as the real run.

const (
	floorStream = "FLOOR"
	floorSlots  = 64
)

// floorStates are the edges of one step, in order; each is one consumer.
var floorStates = []string{"planning", "acting", "observing"}

// hops are the bodies of one run, by hop.
type hops [][]byte

// to is the state that hop i enters; the last hop enters none of the three.
func (h hops) to(i int) string {
	if i == len(h)-1 {
		return "done"
	}
	return floorStates[i%len(floorStates)]
}

type floor struct {
	js   jetstream.JetStream
	hops hops
	done chan struct{}
}

// runFloor carries runs through all hops and returns the time from the first
// start to the last end.
func runFloor(ctx context.Context, nc *nats.Conn, h hops, runs int) (time.Duration, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	f := &floor{js: js, hops: h, done: make(chan struct{}, runs)}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: floorStream, Subjects: []string{"floor.>"}, Storage: jetstream.FileStorage, AllowDirect: true,
		Discard: jetstream.DiscardNew, DenyDelete: true, Compression: jetstream.S2Compression,
		RePublish: &jetstream.RePublish{Source: ">", Destination: "floorfeed.>"},
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = js.DeleteStream(ctx, floorStream) }()
	stop, err := f.consume(ctx, stream)
	if err != nil {
		return 0, err
	}
	defer stop()
	begin := time.Now()
	if err := f.start(ctx, runs); err != nil {
		return 0, err
	}
	for range runs {
		select {
		case <-f.done:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return time.Since(begin), nil
}

func (f *floor) consume(ctx context.Context, stream jetstream.Stream) (stop func(), err error) {
	var consumers []jetstream.ConsumeContext
	for _, state := range floorStates {
		consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: state, AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "floor.0.default.*." + state + ".*.*",
			MaxAckPending: 20000, AckWait: 15 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		slots := make(chan struct{}, floorSlots)
		c, err := consumer.Consume(func(msg jetstream.Msg) {
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				f.hop(ctx, msg)
			}()
		})
		if err != nil {
			return nil, err
		}
		consumers = append(consumers, c)
	}
	return func() {
		for _, c := range consumers {
			c.Stop()
			<-c.Closed()
		}
	}, nil
}

func (f *floor) start(ctx context.Context, runs int) error {
	slots := make(chan struct{}, floorSlots)
	errs := make(chan error, runs)
	for i := range runs {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			errs <- f.append(ctx, strconv.Itoa(i), 0, 0)
		}()
	}
	for range runs {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// append stores hop i of a run on condition of the run's last sequence number.
func (f *floor) append(ctx context.Context, run string, i int, last uint64) error {
	msg := nats.NewMsg("floor.0.default.from." + f.hops.to(i) + "." + strconv.Itoa(i) + "." + run)
	msg.Data = f.hops[i]
	_, err := f.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequenceForSubject(last, "floor.0.default.*.*.*."+run))
	if err == nil && i == len(f.hops)-1 {
		f.done <- struct{}{}
	}
	return err
}

func (f *floor) hop(ctx context.Context, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		return
	}
	run, i, err := floorSubject(msg.Subject())
	if err != nil {
		return
	}
	if err := f.append(ctx, run, i+1, meta.Sequence.Stream); err != nil {
		return // shows as a run that does not end
	}
	_ = msg.Ack()
}

func floorSubject(subject string) (run string, i int, err error) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 7 {
		return "", 0, fmt.Errorf("subject %q has %d tokens", subject, len(tokens))
	}
	if i, err = strconv.Atoi(tokens[5]); err != nil {
		return "", 0, fmt.Errorf("subject %q: %w", subject, err)
	}
	return tokens[6], i, nil
}
