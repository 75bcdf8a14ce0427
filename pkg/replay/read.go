// Package replay reads runs back from a log: event by event with the memory after each,
// at a certain event, compared with another run, or verified. It writes nothing to any
// log and starts no effect.
//
// A log is a bus, or a file that "moorebus export" wrote, see [OpenFile]. The machine is
// that of the run's graph; [reducer.NewMachine] makes the built-in one.
package replay

import (
	"context"
	"fmt"
	"iter"

	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// File is a log in a file of exported runs.
type File struct {
	journal.Log
	file *filelog.File
}

// OpenFile opens a file of exported runs to be read. An incomplete last line, as a crash
// leaves it, is omitted.
func OpenFile(path string) (*File, error) {
	f, err := filelog.Open(path)
	if err != nil {
		return nil, err
	}
	return &File{f, f}, nil
}

// Runs returns the runs of the file, in the order of their first records.
func (f *File) Runs() []events.Run { return f.file.Runs() }

// Close closes the file. Nothing may read it any more.
func (f *File) Close() error { return f.file.Close() }

// Step is one record of a run.
type Step struct {
	Record journal.Record
	// Event is nil for a record that is not legal in the run, for which Illegal is the
	// reason. Such a record counts and changes nothing else.
	Event   *events.Event
	Illegal error
	// Memory is the run's memory after the record. It changes with the next step:
	// [reducer.Memory.Clone] keeps it.
	Memory *reducer.Memory
}

// Steps reads a run from its first record to the head. Of a fork it reads the fork's own
// records; the memory has what came before. Errors end it: those of the log and of ctx,
// [journal.ErrNotFound] for a run that is not there, and a fork whose parent is gone.
func Steps(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run) iter.Seq2[Step, error] {
	return func(yield func(Step, error) bool) {
		fold := runlog.NewFold(log, machine, run)
		for rec, err := range log.Read(ctx, run, 0) {
			if err != nil {
				yield(Step{}, err)
				return
			}
			if _, reason := logwalk.Place(log, run.Shard, rec.Subject); reason != "" {
				continue // it belongs to no run
			}
			step := Step{Record: rec, Memory: fold.Memory()}
			if step.Event, err = fold.Apply(ctx, rec); runlog.Refused(err) {
				step.Event, step.Illegal, err = nil, err, nil
			}
			if err != nil {
				yield(Step{}, err)
				return
			}
			if !yield(step, nil) {
				return
			}
		}
		if fold.Memory().N == 0 {
			yield(Step{}, fmt.Errorf("run %s in namespace %s: %w", run.ID, run.Namespace, journal.ErrNotFound))
		}
	}
}

// Fold returns the run's memory after event n, or at the head for n = 0. Errors are
// those of [Steps], and [journal.ErrNotFound] if the run has fewer events.
func Fold(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run, n uint64) (*reducer.Memory, error) {
	var mem *reducer.Memory
	for step, err := range Steps(ctx, log, machine, run) {
		if err != nil {
			return nil, err
		}
		if mem = step.Memory; mem.N == n {
			return mem, nil
		}
	}
	if n > 0 {
		return nil, fmt.Errorf("event %d of run %s, which has %d: %w", n, run.ID, mem.N, journal.ErrNotFound)
	}
	return mem, nil
}

// Finding is the first record of a run that is not as it must be.
type Finding struct {
	Run events.Run
	// N is the record's number in the run, Seq its place in the shard.
	N, Seq uint64
	// Outcome is poisoned, diverged, orphaned (a fork without its parent) or foreign (a
	// run of another graph). Reason says what is wrong.
	Outcome, Reason string
}

// Verify folds runs, or all of the log if none is named, and checks each record: its
// place, the chain of hashes, the transition table, its origin, and who may write which
// field of memory. It returns one finding for each run that is not right, so none means
// that all are. The error is that of reading, such as [journal.ErrNotFound].
func Verify(ctx context.Context, log journal.Log, machine *reducer.Machine, runs ...events.Run) ([]Finding, error) {
	report, err := verify.Log(ctx, log, machine, verify.Options{Runs: runs, All: len(runs) == 0})
	if err != nil {
		return nil, err
	}
	var findings []Finding
	for _, f := range report.Findings {
		findings = append(findings, Finding{
			Run: events.NewRun(f.Namespace, f.Run, log.Shards()), N: f.N, Seq: f.Seq, Outcome: string(f.Outcome), Reason: f.Reason,
		})
	}
	return findings, nil
}
