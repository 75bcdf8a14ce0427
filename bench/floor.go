package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The floor is the least that a run over JetStream can be: a message is
// delivered, the next one is appended under the run's condition, the first is
// acknowledged. Nothing is folded, encoded or decided. It uses nats.go alone,
// with bodies of the same sizes and subjects of the same form as the real run.

// floorStates are the edges of one step, in order; each is one consumer.
var floorStates = []string{"planning", "acting", "observing"}

const (
	floorExpectSeq     = "Nats-Expected-Last-Subject-Sequence"
	floorExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
)

// hops are the bodies of one run, by hop.
type hops [][]byte

// to is the state that hop i enters; the last hop enters none of the three.
func (h hops) to(i int) string {
	if i == len(h)-1 {
		return "done"
	}
	return floorStates[i%len(floorStates)]
}

// floor is a bare loop on a server.
type floor struct {
	conn  *nats.Conn
	hops  hops
	terms terms
	// committers gather appends, one for each stream; nil: each goes alone.
	committers []*committer
	done       chan struct{}
	failed     chan error
	stops      []func()
	working    sync.WaitGroup

	mu sync.Mutex
	// stored is when the records were stored that were delivered, in order.
	stored []time.Time
}

// startFloor makes the streams and consumers and begins the loop. stop ends it.
func startFloor(ctx context.Context, n *node, t terms, h hops) (f *floor, err error) {
	ctx, cancel := context.WithCancel(ctx)
	f = newFloor(ctx, n.conn, t, h)
	f.stops = append(f.stops, cancel)
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	if err := f.create(ctx); err != nil {
		return f, err
	}
	return f, f.consume(ctx, floorStates...)
}

// newFloor returns a loop that nothing is delivered to yet. What it does ends with
// ctx.
func newFloor(ctx context.Context, conn *nats.Conn, t terms, h hops) *floor {
	f := &floor{conn: conn, hops: h, terms: t.withDefaults(), done: make(chan struct{}, manyEnds), failed: make(chan error, 1)}
	if f.terms.group {
		for range f.terms.shards {
			c := newCommitter(conn)
			f.committers = append(f.committers, c)
			f.working.Go(func() { c.run(ctx) })
		}
	}
	return f
}

// manyEnds is how many ends of runs may wait for [floor.carry], which starts all
// before it waits: so many runs at once do not hold each other up.
const manyEnds = 1 << 16

func floorStream(shard int) (name, root string) {
	return "FLOOR_" + strconv.Itoa(shard), "floor." + strconv.Itoa(shard)
}

// create makes the streams and a consumer for each state.
func (f *floor) create(ctx context.Context) error {
	js, err := jetstream.New(f.conn)
	if err != nil {
		return err
	}
	for shard := range f.terms.shards {
		name, root := floorStream(shard)
		stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: name, Subjects: []string{root + ".>"}, Storage: jetstream.FileStorage, AllowDirect: true,
			AllowAtomicPublish: true, Discard: jetstream.DiscardNew, DenyDelete: true, Compression: jetstream.S2Compression,
			RePublish: &jetstream.RePublish{Source: root + ".>", Destination: "floorfeed." + root + ".>"},
		})
		if err != nil {
			return err
		}
		for _, state := range floorStates {
			_, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
				Durable: state, AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: root + ".default.*." + state + ".*.*",
				MaxAckPending: 20000, AckWait: 15 * time.Second,
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// consume answers what is delivered of the states until stop.
func (f *floor) consume(ctx context.Context, states ...string) error {
	js, err := jetstream.New(f.conn)
	if err != nil {
		return err
	}
	for shard := range f.terms.shards {
		for _, state := range states {
			name, _ := floorStream(shard)
			consumer, err := js.Consumer(ctx, name, state)
			if err != nil {
				return err
			}
			slots := make(chan struct{}, f.terms.slots)
			c, err := consumer.Consume(func(msg jetstream.Msg) {
				slots <- struct{}{}
				f.working.Go(func() {
					defer func() { <-slots }()
					f.hop(ctx, msg)
				})
			})
			if err != nil {
				return err
			}
			f.stops = append(f.stops, func() { c.Stop(); <-c.Closed() })
		}
	}
	return nil
}

// stop ends the loop and waits for what is in work.
func (f *floor) stop() {
	for _, stop := range f.stops {
		stop()
	}
	f.working.Wait()
}

// carry takes runs, so many at once, through all hops. They are named by numbers,
// from first on.
func (f *floor) carry(ctx context.Context, first, runs int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%d bare runs were not done after %s", runs, patience))
	defer cancel()
	slots := make(chan struct{}, startSlots)
	for i := range runs {
		slots <- struct{}{}
		f.working.Go(func() {
			defer func() { <-slots }()
			f.append(ctx, first+i, 0, 0)
		})
	}
	for range runs {
		select {
		case <-f.done:
		case err := <-f.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// append stores hop i of a run on condition of the run's last sequence number, and
// reports whether it did; a failure ends the carrying.
func (f *floor) append(ctx context.Context, run, i int, last uint64) bool {
	shard := run % f.terms.shards
	root, name := "floor."+strconv.Itoa(shard)+".default.", strconv.Itoa(run)
	msg := &nats.Msg{Subject: root + "from." + f.hops.to(i) + "." + strconv.Itoa(i) + "." + name, Data: f.hops[i], Header: nats.Header{
		floorExpectSeq: {strconv.FormatUint(last, 10)}, floorExpectSubject: {root + "*.*.*." + name},
	}}
	var err error
	if f.committers != nil {
		err = f.committers[shard].append(ctx, msg)
	} else {
		err = request(ctx, f.conn, msg)
	}
	if err != nil {
		select {
		case f.failed <- fmt.Errorf("bare append to %s: %w", msg.Subject, err):
		default: // there is one already
		}
		return false
	}
	if i == len(f.hops)-1 {
		f.ended(ctx)
	}
	return true
}

// ended tells [floor.carry] of a run's end.
func (f *floor) ended(ctx context.Context) {
	select {
	case f.done <- struct{}{}:
	case <-ctx.Done():
	}
}

// request publishes and waits for the acknowledgement.
func request(ctx context.Context, conn *nats.Conn, msg *nats.Msg) error {
	answer, err := conn.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return err
	}
	var ack struct {
		Seq   uint64          `json:"seq"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return err
	}
	if len(ack.Error) > 0 {
		return errors.New(string(ack.Error))
	}
	return nil
}

// hop answers one delivery.
func (f *floor) hop(ctx context.Context, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		return // shows as a run that is not done
	}
	run, i, err := floorSubject(msg.Subject())
	if err != nil {
		return
	}
	f.note(meta.Timestamp)
	if f.append(ctx, run, i+1, meta.Sequence.Stream) {
		_ = msg.Ack()
	}
}

func (f *floor) note(stored time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stored = append(f.stored, stored)
}

// takeStored returns when what was delivered since the last call was stored.
func (f *floor) takeStored() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored := f.stored
	f.stored = nil
	return stored
}

func floorSubject(subject string) (run, i int, err error) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 7 {
		return 0, 0, fmt.Errorf("subject %q has %d tokens", subject, len(tokens))
	}
	if i, err = strconv.Atoi(tokens[5]); err == nil {
		run, err = strconv.Atoi(tokens[6])
	}
	if err != nil {
		return 0, 0, fmt.Errorf("subject %q: %w", subject, err)
	}
	return run, i, nil
}

// bareRate is how many transitions per second the bare loop makes of the runs, on
// a server of its own.
func bareRate(ctx context.Context, t terms, h hops, runs int) (float64, error) {
	spent, err := bare(ctx, t, h, runs)
	return spent.perSecond(runs * len(h)), err
}

// bare carries runs through the bare loop on a server of its own.
func bare(ctx context.Context, t terms, h hops, runs int) (s spent, err error) {
	n, err := startNode(ctx, t)
	if err != nil {
		return s, err
	}
	defer n.close()
	f, err := startFloor(ctx, n, t, h)
	if err != nil {
		return s, err
	}
	defer f.stop()
	return meter(func() error { return f.carry(ctx, 0, runs) })
}
