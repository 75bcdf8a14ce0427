package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The floor is the least that a run over JetStream can be: a message is
// delivered, the next one is appended under the run's condition, the first is
// acknowledged. Nothing is folded, encoded or decided. It uses nats.go alone,
// with the bodies of the real run and subjects of the same form: the server looks for the
// last event of a run below every pair of states, so each more costs each append.

// floorStates are the edges of one step, in order; each is one consumer.
var floorStates = []string{"planning", "acting", "observing"}

const (
	floorExpectSeq     = "Nats-Expected-Last-Subject-Sequence"
	floorExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

	// A run's name is as long as an id of Moorebus, and ends with its number.
	floorRunPrefix = "01a20572-84b9-71b9-a61e-"
	floorRunDigits = 12
)

// hops are the bodies of one run, by hop.
type hops [][]byte

// to is the state that hop i enters. The first one leaves idle, the last one enters done.
func (h hops) to(i int) string {
	switch i {
	case -1:
		return "idle"
	case len(h) - 1:
		return "done"
	}
	return floorStates[i%len(floorStates)]
}

// hop is which one a body is of: an event has its number in it, from 1 on.
func (h hops) hop(body []byte) (int, error) {
	const key = `"n":`
	_, number, found := bytes.Cut(body, []byte(key))
	n := 0
	for _, digit := range number {
		if digit < '0' || digit > '9' {
			break
		}
		n = 10*n + int(digit-'0')
	}
	if !found || n < 1 || n > len(h) {
		return 0, fmt.Errorf("body %.200q has no number of an event", body)
	}
	return n - 1, nil
}

// floor is a bare loop on a server. It waits for nothing: an append is sent when the
// delivery before it arrives, and that delivery is acknowledged when the answer to the
// append arrives. So it has no goroutine for a hop, and none waits.
type floor struct {
	conn  *nats.Conn
	hops  hops
	terms terms
	// committers gather appends, one for each stream; nil: each goes alone.
	committers []*committer
	done       chan struct{}
	failed     chan error
	stops      []func()
	// inbox begins the subjects of answers to appends; the append's number ends them.
	inbox string

	mu sync.Mutex
	// pending are the appends without an answer.
	pending map[string]bareBatch
	next    uint64
	// stored is when the records were stored that were delivered, in order.
	stored []time.Time
}

// bareAppend is an append of the loop: the last of its run or not, with the delivery to
// acknowledge when it is stored, if there is one.
type bareAppend struct {
	msg  *nats.Msg
	ack  string
	last bool
}

// bareBatch are appends with one answer, and what is called when it came.
type bareBatch struct {
	appends []bareAppend
	then    func()
}

// startFloor makes the streams and consumers and begins the loop. stop ends it.
func startFloor(ctx context.Context, n *node, t terms, h hops) (f *floor, err error) {
	if f, err = newFloor(n.conn, t, h); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	if err := f.create(ctx); err != nil {
		return f, err
	}
	return f, f.consume(floorStates...)
}

// newFloor returns a loop that nothing is delivered to yet.
func newFloor(conn *nats.Conn, t terms, h hops) (*floor, error) {
	f := &floor{
		conn: conn, hops: h, terms: t.withDefaults(), done: make(chan struct{}, manyEnds), failed: make(chan error, 1),
		inbox: conn.NewInbox() + ".", pending: map[string]bareBatch{},
	}
	if f.terms.group {
		for range f.terms.shards {
			f.committers = append(f.committers, &committer{publish: f.publish})
		}
	}
	return f, f.subscribe(f.inbox+"*", f.answered)
}

// subscribe calls fn for what comes until stop.
func (f *floor) subscribe(subject string, fn func(*nats.Msg)) error {
	sub, err := f.conn.Subscribe(subject, fn)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
		f.stops = append(f.stops, func() { _ = sub.Unsubscribe() })
	}
	return err
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

// consume answers what is delivered of the states until stop. Of each consumer it has as
// many deliveries as there are slots.
func (f *floor) consume(states ...string) error {
	for shard := range f.terms.shards {
		for _, state := range states {
			name, _ := floorStream(shard)
			next, inbox := "$JS.API.CONSUMER.MSG.NEXT."+name+"."+state, f.conn.NewInbox()
			pull := func(n int) {
				f.check(f.conn.PublishRequest(next, inbox, fmt.Appendf(nil, `{"batch":%d}`, n)))
			}
			got, enough := 0, max(1, f.terms.slots/2)
			err := f.subscribe(inbox, func(msg *nats.Msg) {
				if msg.Header != nil && msg.Header.Get("Status") != "" {
					f.check(fmt.Errorf("pull from %s: %v", next, msg.Header))
					return
				}
				f.hop(msg)
				if got++; got == enough {
					pull(got)
					got = 0
				}
			})
			if err != nil {
				return err
			}
			pull(f.terms.slots)
		}
	}
	return f.conn.Flush()
}

// stop ends the loop.
func (f *floor) stop() {
	for _, stop := range f.stops {
		stop()
	}
}

// carry takes runs, so many at once, through all hops. They are named by numbers,
// from first on.
func (f *floor) carry(ctx context.Context, first, runs int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%d bare runs were not done after %s", runs, patience))
	defer cancel()
	for i := range runs {
		f.append(first+i, 0, 0, "")
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

// append stores hop i of a run on condition of the run's last sequence number, and then
// acknowledges a delivery.
func (f *floor) append(run, i int, last uint64, ack string) {
	shard := run % f.terms.shards
	root, name := "floor."+strconv.Itoa(shard)+".default.", fmt.Sprintf("%s%0*d", floorRunPrefix, floorRunDigits, run)
	a := bareAppend{ack: ack, last: i == len(f.hops)-1, msg: &nats.Msg{
		Subject: root + f.hops.to(i-1) + "." + f.hops.to(i) + ".default." + name, Data: f.hops[i], Header: nats.Header{
			floorExpectSeq: {strconv.FormatUint(last, 10)}, floorExpectSubject: {root + "*.*.*." + name},
		},
	}}
	if f.committers != nil {
		f.committers[shard].append(a)
		return
	}
	f.publish(bareBatch{appends: []bareAppend{a}})
}

// publish sends appends, several as one atomic batch. The last one is answered.
func (f *floor) publish(b bareBatch) {
	f.mu.Lock()
	f.next++
	number := strconv.FormatUint(f.next, 36)
	f.pending[number] = b
	f.mu.Unlock()
	b.appends[len(b.appends)-1].msg.Reply = f.inbox + number
	if len(b.appends) > 1 {
		batchHeaders(b.appends)
	}
	for _, a := range b.appends {
		f.check(f.conn.PublishMsg(a.msg))
	}
}

// answered takes the answer to appends.
func (f *floor) answered(msg *nats.Msg) {
	number := msg.Subject[len(f.inbox):]
	f.mu.Lock()
	b := f.pending[number]
	delete(f.pending, number)
	f.mu.Unlock()
	if bytes.Contains(msg.Data, []byte(`"error"`)) || len(msg.Data) == 0 {
		f.check(fmt.Errorf("bare append: the server answers %q %v", msg.Data, msg.Header))
		return
	}
	for _, a := range b.appends {
		if a.last {
			f.ended()
		}
		if a.ack != "" {
			f.check(f.conn.Publish(a.ack, []byte("+ACK")))
		}
	}
	if b.then != nil {
		b.then()
	}
}

// ended tells [floor.carry] of a run's end.
func (f *floor) ended() {
	select {
	case f.done <- struct{}{}:
	default:
		f.check(fmt.Errorf("more than %d ends wait", manyEnds))
	}
}

// check ends the carrying if there is an error.
func (f *floor) check(err error) {
	if err == nil {
		return
	}
	select {
	case f.failed <- err:
	default: // there is one already
	}
}

// hop answers one delivery.
func (f *floor) hop(msg *nats.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		f.check(err)
		return
	}
	run, err := strconv.Atoi(msg.Subject[len(msg.Subject)-floorRunDigits:])
	if err != nil {
		f.check(err)
		return
	}
	i, err := f.hops.hop(msg.Data)
	if err != nil {
		f.check(err)
		return
	}
	f.note(meta.Timestamp)
	f.append(run, i+1, meta.Sequence.Stream, msg.Reply)
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

// bareRate is how many transitions per second the bare loop makes of the runs, on
// its own server.
func bareRate(ctx context.Context, t terms, h hops, runs int) (float64, error) {
	spent, err := bare(ctx, t, h, runs)
	return spent.perSecond(runs * len(h)), err
}

// bare carries runs through the bare loop on its own server.
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
