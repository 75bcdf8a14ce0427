package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// mould is a run that was carried out once and is made again, event by event, by
// the machine and its codec under other names: as many legal runs as a benchmark
// needs, faster than they could be carried out.
type mould struct {
	machine *reducer.Machine
	steps   []mouldStep
}

type mouldStep struct {
	origin  events.State
	source  string
	payload events.Payload
}

// newMould reads a run from the log.
func newMould(ctx context.Context, log journal.Log, run events.Run) (*mould, error) {
	m := &mould{machine: reducer.NewMachine(reducer.MachineOptions{})}
	for rec, err := range log.Read(ctx, run, 0) {
		if err != nil {
			return nil, err
		}
		s, err := events.ParseSubject(rec.Subject)
		if err != nil {
			return nil, err
		}
		e, err := m.machine.Codec().Decode(rec.Body)
		if err != nil {
			return nil, err
		}
		m.steps = append(m.steps, mouldStep{origin: s.From, source: e.Source, payload: e.Data})
	}
	return m, nil
}

// cast makes the entries of a run of that name.
func (m *mould) cast(run events.Run) ([]journal.Entry, error) {
	mem, now := m.machine.Initial(run.ID), time.Now()
	entries := make([]journal.Entry, len(m.steps))
	for i, step := range m.steps {
		s, e, err := m.machine.Draft(mem, run, step.origin, step.payload, reducer.Stamp{ID: runlog.NewID(), Source: step.source, Time: now})
		if err != nil {
			return nil, err
		}
		body, err := m.machine.Codec().Encode(e)
		if err != nil {
			return nil, err
		}
		if err := m.machine.ApplyEvent(mem, s, e, events.Hash(body)); err != nil {
			return nil, err
		}
		entries[i] = journal.Entry{Subject: s, Body: body}
	}
	return entries, nil
}

// castRuns are how many runs go from the casters to the pourer at a time.
const castRuns = 32

// pour stores n runs cast in the mould in a log of one shard to which nobody else
// appends, and calls each (which may be nil) with every run. All cores cast, one
// goroutine stores.
func (m *mould) pour(ctx context.Context, conn *nats.Conn, bus *natsbus.Bus, n int, each func(events.Run)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cast := make(chan [][]journal.Entry, 8)
	var casters sync.WaitGroup
	cores := runtime.GOMAXPROCS(0)
	for core := range cores {
		share := (core+1)*n/cores - core*n/cores
		casters.Go(func() {
			if err := m.castInto(ctx, bus, share, cast); err != nil {
				cancel(err)
			}
		})
	}
	go func() { casters.Wait(); close(cast) }()
	p, err := newPourer(ctx, conn, bus)
	if err != nil {
		return err
	}
	for runs := range cast {
		for _, entries := range runs {
			if err := p.run(ctx, entries); err != nil {
				return err
			}
			if each != nil {
				each(entries[0].Subject.Run)
			}
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return p.end(ctx)
}

func (m *mould) castInto(ctx context.Context, bus *natsbus.Bus, n int, out chan<- [][]journal.Entry) error {
	for n > 0 {
		runs := make([][]journal.Entry, min(n, castRuns))
		for i := range runs {
			entries, err := m.cast(events.NewRun(events.DefaultNamespace, runlog.NewID(), bus.Shards()))
			if err != nil {
				return err
			}
			runs[i] = entries
		}
		select {
		case out <- runs:
			n -= len(runs)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// pourer stores runs one behind the other, each record under the condition of its
// run like any append. It is alone, so it knows every sequence number before the
// server gives it, and waits for no acknowledgement but one in every pourWindow.
type pourer struct {
	conn    *nats.Conn
	bus     *natsbus.Bus
	acks    *nats.Subscription
	seq     uint64
	pending int
}

const (
	// pourWindow and pourAhead bound what the server has not stored yet: its queue
	// of a stream takes 10,000 messages.
	pourWindow = 500
	pourAhead  = 4
)

func newPourer(ctx context.Context, conn *nats.Conn, bus *natsbus.Bus) (*pourer, error) {
	if bus.Shards() != 1 {
		return nil, fmt.Errorf("runs are poured into one shard, not %d", bus.Shards())
	}
	seq, err := bus.Last(ctx, 0)
	if err != nil {
		return nil, err
	}
	acks, err := conn.SubscribeSync(conn.NewInbox())
	return &pourer{conn: conn, bus: bus, acks: acks, seq: seq}, err
}

func (p *pourer) run(ctx context.Context, entries []journal.Entry) error {
	var last uint64
	filter := entries[0].Subject.Run.Filter()
	for _, e := range entries {
		msg := &nats.Msg{Subject: e.Subject.String(), Data: e.Body, Header: nats.Header{
			jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(last, 10)}, "Nats-Expected-Last-Subject-Sequence-Subject": {filter},
		}}
		p.seq++
		last = p.seq
		if p.seq%pourWindow == 0 {
			msg.Reply = p.acks.Subject
			p.pending++
		}
		if err := p.conn.PublishMsg(msg); err != nil {
			return err
		}
		for p.pending > pourAhead {
			if err := p.await(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// await takes one acknowledgement.
func (p *pourer) await(ctx context.Context) error {
	msg, err := p.acks.NextMsgWithContext(ctx)
	if err != nil {
		return err
	}
	p.pending--
	var ack struct {
		Seq   uint64          `json:"seq"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &ack); err != nil || len(ack.Error) > 0 || ack.Seq%pourWindow != 0 {
		return fmt.Errorf("storing runs: the server answers %s", msg.Data)
	}
	return nil
}

// end waits for everything, and sees to it that all of it was stored.
func (p *pourer) end(ctx context.Context) error {
	defer func() { _ = p.acks.Unsubscribe() }()
	for p.pending > 0 {
		if err := p.await(ctx); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		last, err := p.bus.Last(ctx, 0)
		if err != nil || last == p.seq {
			return err
		}
		if last > p.seq {
			return fmt.Errorf("the log has %d records, %d were stored", last, p.seq)
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// settle puts the workers' consumers behind everything that is stored, as they are
// when it was worked off.
func settle(ctx context.Context, conn *nats.Conn, bus *natsbus.Bus) error {
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	for shard := range bus.Shards() {
		last, err := bus.Last(ctx, shard)
		if err != nil {
			return err
		}
		stream, err := js.Stream(ctx, events.StreamName(shard))
		if err != nil {
			return err
		}
		names := stream.ConsumerNames(ctx)
		for name := range names.Name() {
			if _, err := js.ResetConsumerToSequence(ctx, events.StreamName(shard), name, last+1); err != nil {
				return fmt.Errorf("consumer %s: %w", name, err)
			}
		}
		if err := names.Err(); err != nil {
			return err
		}
	}
	return nil
}
