package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// BenchOptions say what is measured; the zero value measures the whole log.
type BenchOptions struct {
	// Namespace limits what is read, if it is not empty.
	Namespace string
	// MaxBytes bounds the bodies that are kept in memory to be folded; 0:
	// 256 MiB. What the log has beyond is read, but not folded.
	MaxBytes int
	// Least is how long each fold is repeated at least; 0: 1 s.
	Least time.Duration
	// Workers is how many cores the parallel fold uses; 0: all.
	Workers int
}

// Measure is one row of a benchmark.
type Measure struct {
	What    string        `json:"what"`
	Cores   int           `json:"cores"`
	Events  uint64        `json:"events"`
	Bytes   uint64        `json:"bytes"`
	Elapsed time.Duration `json:"elapsed_ns"`
}

// EventsPerSecond is the rate of all cores together.
func (m Measure) EventsPerSecond() float64 { return float64(m.Events) / m.Elapsed.Seconds() }

// Bench reads the log and folds what it read, first on one core, then on all,
// and returns how fast each went. It fails with [journal.ErrNotFound] if there
// is nothing to read.
func Bench(ctx context.Context, log journal.Log, machine *reducer.Machine, o BenchOptions) ([]Measure, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 256 << 20
	}
	if o.Least <= 0 {
		o.Least = time.Second
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	runs, read, err := load(ctx, log, o)
	if err != nil {
		return nil, err
	}
	if runs, err = readBases(ctx, log, machine, runs); err != nil {
		return nil, err
	}
	measures := []Measure{read}
	for _, cores := range []int{1, o.Workers} {
		if cores == 1 && len(measures) > 1 {
			break // there is one core only
		}
		m, err := foldAll(ctx, machine, runs, cores, o.Least)
		if err != nil {
			return nil, err
		}
		measures = append(measures, m)
	}
	return measures, nil
}

// benchRun is a run in memory; parent is what a fork goes on from.
type benchRun struct {
	id      events.Run
	records []journal.Record
	parent  *reducer.Memory
}

// readBases reads what forks go on from, and leaves out those whose parent is
// gone.
func readBases(ctx context.Context, log journal.Log, machine *reducer.Machine, runs []benchRun) ([]benchRun, error) {
	kept := make([]benchRun, 0, len(runs))
	for _, run := range runs {
		var parent *reducer.ParentError
		first := run.records[0]
		if _, err := machine.Apply(machine.Initial(run.id.ID), first.Subject, first.Body); errors.As(err, &parent) {
			fold, err := runlog.FoldAt(ctx, log, machine, events.NewRun(run.id.Namespace, parent.Run, log.Shards()), parent.At)
			if err != nil && !errors.Is(err, journal.ErrNotFound) {
				return nil, err
			}
			if err != nil || fold.Memory().N < parent.At {
				continue
			}
			run.parent = fold.Memory()
		}
		kept = append(kept, run)
	}
	return kept, nil
}

// load reads the log, and keeps what may be kept by run.
func load(ctx context.Context, log journal.Log, o BenchOptions) ([]benchRun, Measure, error) {
	m := Measure{What: "read from the log", Cores: 1}
	began := time.Now()
	index := map[events.Run]int{}
	var runs []benchRun
	for shard := range log.Shards() {
		for rec, err := range log.Scan(ctx, shard, journal.Filter{Namespace: o.Namespace}, 0) {
			if err != nil {
				return nil, m, err
			}
			m.Events++
			m.Bytes += uint64(len(rec.Body))
			s, reason := place(log, shard, rec.Subject)
			if reason != "" || m.Bytes > uint64(o.MaxBytes) {
				continue
			}
			i, ok := index[s.Run]
			if !ok {
				i = len(runs)
				index[s.Run] = i
				runs = append(runs, benchRun{id: s.Run})
			}
			runs[i].records = append(runs[i].records, rec)
		}
	}
	m.Elapsed = time.Since(began)
	if len(runs) == 0 {
		return nil, m, fmt.Errorf("the log has no runs to fold: %w", journal.ErrNotFound)
	}
	return runs, m, nil
}

// foldAll folds all runs again and again until the time is over.
func foldAll(ctx context.Context, machine *reducer.Machine, runs []benchRun, cores int, least time.Duration) (Measure, error) {
	m := Measure{What: "fold from memory", Cores: cores}
	began := time.Now()
	parts := make([]Measure, cores)
	g := newGroup(ctx)
	for core := range cores {
		g.run(func(ctx context.Context) error {
			return foldShare(ctx, machine, runs, core, cores, &parts[core], func() bool { return time.Since(began) >= least })
		})
	}
	if err := g.wait(); err != nil {
		return m, err
	}
	m.Elapsed = time.Since(began)
	for _, part := range parts {
		m.Events += part.Events
		m.Bytes += part.Bytes
	}
	return m, nil
}

// foldShare folds runs from a core's own place in the list on, round and round,
// so that a log of few runs keeps all cores busy too.
func foldShare(ctx context.Context, machine *reducer.Machine, runs []benchRun, core, cores int, m *Measure, enough func() bool) error {
	for i := core * len(runs) / cores; m.Events == 0 || !enough(); i++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		run := &runs[i%len(runs)]
		mem := machine.Initial(run.id.ID)
		if run.parent != nil {
			mem.Adopt(run.parent.Clone())
		}
		for _, rec := range run.records {
			_, _ = machine.Apply(mem, rec.Subject, rec.Body) // poison is folded like anything else
			m.Events++
			m.Bytes += uint64(len(rec.Body))
		}
	}
	return nil
}

// WriteMeasures writes a benchmark as a table.
func WriteMeasures(w io.Writer, measures []Measure) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(tw, "WHAT\tCORES\tEVENTS\tSECONDS\tEVENTS/S\tPER CORE\tMB/S\t")
	for _, m := range measures {
		rate := m.EventsPerSecond()
		_, _ = fmt.Fprintf(tw, "%s\t%d\t%d\t%.3f\t%.0f\t%.0f\t%.1f\t\n",
			m.What, m.Cores, m.Events, m.Elapsed.Seconds(), rate, rate/float64(m.Cores), float64(m.Bytes)/m.Elapsed.Seconds()/1e6)
	}
	return tw.Flush()
}

// WriteMeasuresJSON writes a benchmark as one JSON document, indented.
func WriteMeasuresJSON(w io.Writer, measures []Measure) error { return writeIndented(w, measures) }
