package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/bench/foldbench"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/pflag"
)

// anything matches every event.
var anything = journal.Filter{}

type replaySettings struct {
	events, long, tail, rounds int
	least                      time.Duration
}

// replayBench is how fast the log is read, folded and verified, and how fast a long
// run is restored from its snapshot.
func replayBench() *benchmark {
	var s replaySettings
	return &benchmark{
		name: "replay", short: "Events per second read, folded and verified, and a long run restored from its snapshot",
		flags: func(f *pflag.FlagSet) {
			f.IntVar(&s.events, "events", 100_000, "events in the log, in agent-10 runs")
			f.IntVar(&s.long, "long", 10_000, "events of the long run")
			f.IntVar(&s.tail, "tail", 99, "events of the long run behind its snapshot")
			f.IntVar(&s.rounds, "rounds", 3, "how often the log is read and verified; the median counts")
			f.DurationVar(&s.least, "time", time.Second, "how long each fold from memory is repeated at least")
		},
		run: func(ctx context.Context) ([]figure, error) {
			if s.events < 100 || s.long < 10 || s.tail < 0 || s.tail > s.long-1 || s.rounds < 1 || s.least <= 0 {
				return nil, cli.Usage("--events is at least 100, --long at least 10, --tail less than --long, --rounds at least 1, --time more than 0")
			}
			return replays(ctx, s)
		},
	}
}

func replays(ctx context.Context, s replaySettings) ([]figure, error) {
	dir, err := os.MkdirTemp("", "moorebus-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	at, err := openSite(ctx, embedded.Options{Dir: dir})
	if err != nil {
		return nil, err
	}
	defer at.close()
	m, err := at.recast(ctx, 10)
	if err != nil {
		return nil, err
	}
	if err := m.pour(ctx, at.conn, at.bus, s.events/len(m.steps), nil); err != nil {
		return nil, err
	}
	figures, err := replaySpeed(ctx, s, at, m)
	if err != nil {
		return nil, err
	}
	more, err := restoreSpeed(ctx, s, at, m)
	return append(figures, more...), err
}

// replaySpeed measures what `replay bench` and `replay verify --all` do, with their
// own functions.
func replaySpeed(ctx context.Context, s replaySettings, at *site, m *mould) ([]figure, error) {
	row := func(what string, cores int, value float64) figure {
		return figure{Bench: "replay", Case: fmt.Sprintf("%d events, cores: %d", s.events, cores), What: what, Unit: "events/s", Value: value}
	}
	type key struct {
		what  string
		cores int
	}
	var keys []key
	rates := map[key][]float64{}
	add := func(k key, rate float64) {
		if rates[k] == nil {
			keys = append(keys, k)
		}
		rates[k] = append(rates[k], rate)
	}
	const bare, verified = "bare ordered consumer", "verify --all"
	for range s.rounds {
		rate, err := readBare(ctx, at)
		if err != nil {
			return nil, err
		}
		add(key{bare, 0}, rate)
		measures, err := foldbench.Run(ctx, at.bus, m.machine, foldbench.Options{Least: s.least / time.Duration(s.rounds)})
		if err != nil {
			return nil, err
		}
		for _, of := range measures {
			add(key{of.What, of.Cores}, of.EventsPerSecond())
		}
		report, err := verify.Log(ctx, at.bus, m.machine, verify.Options{All: true, Strict: true, Snapshots: at.bus})
		if err != nil {
			return nil, err
		}
		if !report.Clean() || report.Outcomes[verify.Done] != report.Runs {
			return nil, fmt.Errorf("the log is not what was stored: %v", report.Outcomes)
		}
		add(key{verified, measures[len(measures)-1].Cores}, report.EventsPerSecond())
	}
	var figures []figure
	for _, k := range keys {
		f := row(k.what, k.cores, median(rates[k]))
		switch {
		case k.what == bare:
			continue // it is the floor
		case k.what == foldbench.ReadLog:
			f = f.beside(median(rates[key{bare, 0}]), "bare ordered consumer, nothing parsed")
		case k.what == foldbench.FoldLog:
			f = f.least(200_000)
		case k.what == foldbench.FoldEvents && k.cores == 1:
			f = f.least(500_000)
		}
		figures = append(figures, f)
	}
	return figures, nil
}

// readBare reads the log with what nats.go has for it, and looks at nothing.
func readBare(ctx context.Context, at *site) (float64, error) {
	js, err := jetstream.New(at.conn)
	if err != nil {
		return 0, err
	}
	last, err := at.bus.Last(ctx, 0)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	consumer, err := js.OrderedConsumer(ctx, events.StreamName(0), jetstream.OrderedConsumerConfig{})
	if err != nil {
		return 0, err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(4096))
	if err != nil {
		return 0, err
	}
	defer messages.Stop()
	for range last {
		if _, err := messages.Next(); err != nil {
			return 0, err
		}
	}
	return float64(last) / time.Since(began).Seconds(), nil
}

// restoreSpeed measures how long a long run that is in no memory takes, with its
// snapshot and without.
func restoreSpeed(ctx context.Context, s replaySettings, at *site, m *mould) ([]figure, error) {
	long, err := m.stretch(s.long)
	if err != nil {
		return nil, err
	}
	var run events.Run
	if err := long.pour(ctx, at.conn, at.bus, 1, func(r events.Run) { run = r }); err != nil {
		return nil, err
	}
	snapshot, err := snapshotAt(ctx, at, long, run, uint64(s.long-s.tail))
	if err != nil {
		return nil, err
	}
	if err := at.bus.PutSnapshot(ctx, run, snapshot); err != nil {
		return nil, err
	}
	var with, without []float64
	for range max(s.rounds, 5) {
		for _, way := range []struct {
			snapshots ports.Snapshots
			times     *[]float64
		}{{at.bus, &with}, {nil, &without}} {
			took, err := timed(func() error { return restore(ctx, at, way.snapshots, run, s.long) })
			if err != nil {
				return nil, err
			}
			*way.times = append(*way.times, took.Seconds()*1e3)
		}
	}
	row := func(what, unit string, value float64) figure {
		return figure{Bench: "replay", Case: fmt.Sprintf("run of %d events", s.long), What: what, Unit: unit, Value: value}
	}
	return []figure{
		row(fmt.Sprintf("restored from its snapshot and %d events", s.tail), "ms", median(with)).most(40),
		row("read and folded from its beginning", "ms", median(without)),
		row("memory in its snapshot", "B", float64(len(snapshot.Memory))),
	}, nil
}

// restore folds a run that is in no memory.
func restore(ctx context.Context, at *site, snapshots ports.Snapshots, run events.Run, n int) error {
	store := runlog.New(runlog.Options{Log: at.bus, Snapshots: snapshots})
	r := store.Acquire(run)
	defer store.Release(r)
	r.Lock()
	defer r.Unlock()
	if err := r.Refresh(ctx); err != nil {
		return err
	}
	if got := r.Memory().N; got != uint64(n) {
		return fmt.Errorf("run %s has %d events, not %d", run.ID, got, n)
	}
	return nil
}

// snapshotAt is the snapshot of a run as it was after its n-th event.
func snapshotAt(ctx context.Context, at *site, m *mould, run events.Run, n uint64) (ports.Snapshot, error) {
	fold, err := runlog.FoldAt(ctx, at.bus, m.machine, run, n)
	if err != nil {
		return ports.Snapshot{}, err
	}
	mem := fold.Memory()
	memory, err := json.Marshal(mem)
	if err != nil {
		return ports.Snapshot{}, err
	}
	last, err := at.bus.Last(ctx, 0)
	if err != nil {
		return ports.Snapshot{}, err
	}
	// The run was stored last, and nothing after it.
	first := last - uint64(len(m.steps)) + 1
	return ports.Snapshot{Seq: first + n - 1, N: n, Head: mem.Control.Head, Fold: m.machine.FoldName(), Memory: memory}, nil
}

// stretch makes a mould of a run of n events out of an agent-10 run's: its start,
// and its tool steps again and again under their own names.
func (m *mould) stretch(n int) (*mould, error) {
	long := &mould{machine: m.machine}
	for i, step := range m.steps {
		if start, ok := step.payload.(*events.Start); ok {
			longer := *start
			longer.Agent.Config.MaxSteps = n
			step.payload = &longer
			long.steps = append(long.steps, step)
			m = &mould{machine: m.machine, steps: m.steps[i+1 : i+4]}
			break
		}
	}
	for i := 1; i < n; i++ {
		step, id := m.steps[(i-1)%3], "c"+strconv.Itoa((i-1)/3)
		switch p := step.payload.(type) {
		case *events.LLMToolCall:
			call := *p
			call.Calls = append([]events.Call{}, p.Calls...)
			call.Calls[0].ID = id
			step.payload = &call
		case *events.ToolSuccess:
			outcome := *p.Outcome
			outcome.CallID = id
			step.payload = &events.ToolSuccess{Outcome: &outcome}
		case *events.Continue:
		default:
			return nil, fmt.Errorf("an agent-10 run has a %s where none is expected", events.TypeOf(step.payload))
		}
		long.steps = append(long.steps, step)
	}
	return long, nil
}
