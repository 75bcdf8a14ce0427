package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/pflag"
)

// costBench is what one transition takes of server, memory, storage and CPU.
func costBench() *benchmark {
	var c crowd
	return &benchmark{
		name: "cost", short: "What one transition takes: messages, allocations, bytes, and the time of codec and fold",
		flags: func(f *pflag.FlagSet) { c.add(f, []int{200}, defaultSlots, 3) },
		run: func(ctx context.Context) (all []figure, err error) {
			if err := c.check(); err != nil {
				return nil, err
			}
			for _, runs := range c.runs {
				t := terms{slots: c.slots}
				var records []journal.Record
				figures, err := c.measure(ctx, func(ctx context.Context) (figures []figure, err error) {
					figures, records, err = cost(ctx, t, runs, c.steps)
					return figures, err
				})
				if err != nil {
					return nil, err
				}
				counted, err := messages(ctx, t, runs, c.steps)
				if err != nil {
					return nil, err
				}
				timed, err := computing(records)
				if err != nil {
					return nil, err
				}
				all = append(all, append(append(figures, counted...), timed...)...)
			}
			return all, nil
		},
	}
}

// computed is the CPU of a transition. computedMost holds it to that of a bare one, so generously
// that only a new piece of work in each transition breaks it, on any machine.
const (
	computed     = "CPU, server included"
	computedMost = 4.5
)

// cost measures what a crowd computes, allocates and stores.
func cost(ctx context.Context, t terms, runs, steps int) (figures []figure, records []journal.Record, err error) {
	in, err := startInstallation(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, in.close()) }()
	var ids []string
	did, err := meter(func() (err error) {
		ids, err = carry(ctx, in.bus, in.host, runs, steps)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if records, err = recordsOf(ctx, in.bus, ids[0]); err != nil {
		return nil, nil, err
	}
	bodies, err := bodiesOf(ctx, in.bus, ids[0], steps)
	if err != nil {
		return nil, nil, err
	}
	stored, err := storedBytes(ctx, in.bus)
	if err != nil {
		return nil, nil, err
	}
	bareDid, err := bare(ctx, t, bodies, runs)
	if err != nil {
		return nil, nil, err
	}
	n := float64(runs * len(bodies))
	var body float64
	for _, b := range bodies {
		body += float64(len(b)) / float64(len(bodies))
	}
	row := rows("cost", fmt.Sprintf("%d runs, relaxed, per transition", runs))
	return []figure{
		row(computed, "µs", did.cpu/n).beside(bareDid.cpu/n, "bare deliver, append, ack").most(computedMost),
		row("allocations, server included", "", did.objects/n).beside(bareDid.objects/n, "bare deliver, append, ack"),
		row("allocated, server included", "B", did.bytes/n).beside(bareDid.bytes/n, "bare deliver, append, ack"),
		row("body", "B", body),
		row("stored, before compression", "B", stored/n),
	}, records, nil
}

// storedBytes is what the log takes.
func storedBytes(ctx context.Context, bus *natsbus.Bus) (sum float64, err error) {
	js, err := jetstream.New(bus.Conn())
	if err != nil {
		return 0, err
	}
	for shard := range bus.Shards() {
		stream, err := js.Stream(ctx, events.StreamName(shard))
		if err != nil {
			return 0, err
		}
		sum += float64(stream.CachedInfo().State.Bytes)
	}
	return sum, nil
}

// computing is the time that codec and fold take, over the events of a run.
func computing(records []journal.Record) ([]figure, error) {
	run, err := decodeAll(records)
	if err != nil {
		return nil, err
	}
	row := rows("cost", fmt.Sprintf("per event of %d", len(records)))
	decode, encode, fold := testing.Benchmark(run.decode), testing.Benchmark(run.encode), testing.Benchmark(run.fold)
	per := func(r testing.BenchmarkResult) float64 { return float64(r.T.Nanoseconds()) / float64(r.N*len(records)) }
	allocs := func(r testing.BenchmarkResult) float64 { return float64(r.MemAllocs) / float64(r.N*len(records)) }
	return []figure{
		row("decode", "ns", per(decode)).most(5000), row("decode, allocations", "", allocs(decode)),
		row("encode", "ns", per(encode)).most(5000), row("encode, allocations", "", allocs(encode)),
		row("fold", "ns", per(fold)).most(2000), row("fold, allocations", "", allocs(fold)).most(10),
	}, nil
}

// decoded is a run in memory.
type decoded struct {
	machine  *reducer.Machine
	records  []journal.Record
	events   []*events.Event
	subjects []events.Subject
	hashes   []string
}

func decodeAll(records []journal.Record) (*decoded, error) {
	d := &decoded{machine: reducer.NewMachine(reducer.MachineOptions{}), records: records}
	for _, rec := range records {
		e, err := d.machine.Codec().Decode(rec.Body)
		if err != nil {
			return nil, err
		}
		s, err := events.ParseSubject(rec.Subject)
		if err != nil {
			return nil, err
		}
		d.events, d.subjects, d.hashes = append(d.events, e), append(d.subjects, s), append(d.hashes, events.Hash(rec.Body))
	}
	return d, nil
}

func (d *decoded) decode(b *testing.B) {
	for b.Loop() {
		for _, rec := range d.records {
			if _, err := d.machine.Codec().Decode(rec.Body); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func (d *decoded) encode(b *testing.B) {
	for b.Loop() {
		for _, e := range d.events {
			if _, err := d.machine.Codec().Encode(e); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// fold folds events that are decoded, from the beginning of the run.
func (d *decoded) fold(b *testing.B) {
	for b.Loop() {
		mem := d.machine.Initial(d.subjects[0].Run.ID)
		for i, e := range d.events {
			if err := d.machine.ApplyEvent(mem, d.subjects[i], e, d.hashes[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
}
