// Package foldbench measures how fast a log is read and folded.
package foldbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Options say what is measured; the zero value measures the entire log.
type Options struct {
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

// What a [Measure] is of. Reading takes in what the log does to give the records;
// FoldBodies decodes and folds, FoldEvents folds what was decoded before.
const (
	ReadLog    = "read from the log"
	FoldLog    = "fold from the log"
	FoldBodies = "decode and fold from memory"
	FoldEvents = "fold from memory"
)

// Run folds the log while reading, reads it, and folds what it read, first on one
// core, then on all, and returns how fast each went. It fails with
// [journal.ErrNotFound] if there is nothing to read.
func Run(ctx context.Context, log journal.Log, machine *reducer.Machine, o Options) ([]Measure, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 256 << 20
	}
	if o.Least <= 0 {
		o.Least = time.Second
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	// Before anything is kept in memory, which is no part of this.
	fold, err := foldLog(ctx, log, machine, o)
	if err != nil {
		return nil, err
	}
	runs, read, err := load(ctx, log, o)
	if err != nil {
		return nil, err
	}
	if runs, err = readBases(ctx, log, machine, runs); err != nil {
		return nil, err
	}
	measures := []Measure{read, fold}
	for _, what := range []string{FoldBodies, FoldEvents} {
		if what == FoldEvents {
			runs = decode(machine, runs, o.MaxBytes/decodedShare)
		}
		if len(runs) == 0 {
			break // nothing can be read, let alone folded
		}
		for _, cores := range slices.Compact([]int{1, o.Workers}) {
			m, err := foldAll(ctx, machine, runs, what, cores, o.Least)
			if err != nil {
				return nil, err
			}
			measures = append(measures, m)
		}
	}
	return measures, nil
}

// benchRun is a run in memory; parent is what a fork continues from. decoded are the
// records' events, if they were decoded.
type benchRun struct {
	id      events.Run
	records []journal.Record
	decoded []decoded
	parent  *reducer.Memory
}

// decoded is what folding needs of a record.
type decoded struct {
	subject events.Subject
	event   *events.Event
	hash    string
	bytes   int
}

// decodedShare is by how much fewer bodies are kept decoded, which are larger.
const decodedShare = 4

// decode decodes the runs whose bodies have so many bytes together, and leaves out
// the others, and each run from where it cannot be read.
func decode(machine *reducer.Machine, runs []benchRun, maxBytes int) []benchRun {
	var kept []benchRun
	for _, run := range runs {
		for _, rec := range run.records {
			s, _ := events.ParseSubject(rec.Subject) // load has read it
			e, err := machine.Codec().Decode(rec.Body)
			if err != nil {
				break
			}
			maxBytes -= len(rec.Body)
			run.decoded = append(run.decoded, decoded{s, e, events.Hash(rec.Body), len(rec.Body)})
		}
		if len(run.decoded) > 0 {
			kept = append(kept, run)
		}
		if maxBytes <= 0 {
			break
		}
	}
	return kept
}

// readBases reads what forks continue from, and leaves out those whose parent is
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

// load reads the log, and keeps as many runs as may be kept.
func load(ctx context.Context, log journal.Log, o Options) ([]benchRun, Measure, error) {
	m := Measure{What: ReadLog, Cores: 1}
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
			s, reason := logwalk.Place(log, shard, rec.Subject)
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

// foldLog reads the log and folds it meanwhile. Like verification it keeps the
// memories of the runs that continue, and about 200 bytes for each that has ended.
func foldLog(ctx context.Context, log journal.Log, machine *reducer.Machine, o Options) (Measure, error) {
	m := Measure{What: FoldLog, Cores: o.Workers}
	var all sync.Mutex
	w := logwalk.Walk{Log: log, Namespace: o.Namespace, Workers: o.Workers, Work: func(ctx context.Context, input <-chan []logwalk.Routed, done func([]logwalk.Routed)) error {
		part, err := foldRouted(ctx, log, machine, input, done)
		all.Lock()
		defer all.Unlock()
		m.Events += part.Events
		m.Bytes += part.Bytes
		return err
	}}
	began := time.Now()
	err := w.Run(ctx)
	m.Elapsed = time.Since(began)
	return m, err
}

// foldRouted is one worker of foldLog.
func foldRouted(ctx context.Context, log journal.Log, machine *reducer.Machine, input <-chan []logwalk.Routed, done func([]logwalk.Routed)) (Measure, error) {
	var m Measure
	folds := map[events.Run]*runlog.Fold{}
	var run events.Run
	var fold *runlog.Fold
	for batch := range input {
		for i := range batch {
			r := &batch[i]
			m.Events++
			m.Bytes += uint64(len(r.Record.Body))
			if run != r.Subject.Run { // a run's records often lie side by side
				run = r.Subject.Run
				known := false
				if fold, known = folds[run]; !known {
					fold = runlog.NewFold(log, machine, run)
					folds[run] = fold
				}
			}
			if fold == nil {
				continue // the run has ended, or cannot be folded
			}
			err := foldOne(ctx, machine, fold, r)
			if ctx.Err() != nil {
				return m, ctx.Err()
			}
			if err != nil && !runlog.Refused(err) || machine.Table().Terminal(fold.Memory().State) {
				fold, folds[run] = nil, nil
			}
		}
		done(batch)
	}
	return m, ctx.Err()
}

func foldOne(ctx context.Context, machine *reducer.Machine, fold *runlog.Fold, r *logwalk.Routed) error {
	e, err := machine.Codec().Decode(r.Record.Body)
	if err != nil {
		_, err = fold.Apply(ctx, r.Record) // finds the same and counts it
		return err
	}
	return fold.ApplyEvent(ctx, r.Subject, e, events.Hash(r.Record.Body))
}

// foldAll folds all runs again and again until the time is over.
func foldAll(ctx context.Context, machine *reducer.Machine, runs []benchRun, what string, cores int, least time.Duration) (Measure, error) {
	m := Measure{What: what, Cores: cores}
	fold := foldBodies
	if what == FoldEvents {
		fold = foldEvents
	}
	began := time.Now()
	parts := make([]Measure, cores)
	g := logwalk.NewGroup(ctx)
	for core := range cores {
		g.Go(func(ctx context.Context) error {
			// From a core's own place in the list on, round and round, so that a log of few
			// runs keeps all cores busy too.
			for i := core * len(runs) / cores; parts[core].Events == 0 || time.Since(began) < least; i++ {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				run := &runs[i%len(runs)]
				mem := machine.Initial(run.id.ID)
				if run.parent != nil {
					mem.Adopt(run.parent.Clone())
				}
				fold(machine, mem, run, &parts[core])
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return m, err
	}
	m.Elapsed = time.Since(began)
	for _, part := range parts {
		m.Events += part.Events
		m.Bytes += part.Bytes
	}
	return m, nil
}

func foldBodies(machine *reducer.Machine, mem *reducer.Memory, run *benchRun, m *Measure) {
	for _, rec := range run.records {
		_, _ = machine.Apply(mem, rec.Subject, rec.Body)
		m.Events++
		m.Bytes += uint64(len(rec.Body))
	}
}

func foldEvents(machine *reducer.Machine, mem *reducer.Memory, run *benchRun, m *Measure) {
	for i := range run.decoded {
		d := &run.decoded[i]
		_ = machine.ApplyEvent(mem, d.subject, d.event, d.hash)
		m.Events++
		m.Bytes += uint64(d.bytes)
	}
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
