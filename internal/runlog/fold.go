package runlog

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Fold folds one run's records, in their order, wherever they come from. A run
// that was forked begins with its parent's events, which are read from the log
// when its first record is folded. It is not safe for concurrent use.
type Fold struct {
	log     journal.Log
	machine *reducer.Machine
	mem     *reducer.Memory
	// size is the length of the bodies that were read from the log by the fold
	// itself, in bytes: those of the run's ancestors, and of its own by read.
	size int64
	// depth is how many runs are being read that stand on this one.
	depth int
	// ancestors are the runs that it stands on, the nearest first.
	ancestors []events.Run
}

// NewFold returns the fold of a run of which nothing was read yet.
func NewFold(log journal.Log, machine *reducer.Machine, run events.Run) *Fold {
	return &Fold{log: log, machine: machine, mem: machine.Initial(run.ID)}
}

// Memory returns what was folded so far. It changes with the next record.
func (f *Fold) Memory() *reducer.Memory { return f.mem }

// Ancestors returns the runs that the run stands on, as far as the fold has read
// them from the log, the nearest first.
func (f *Fold) Ancestors() []events.Run { return f.ancestors }

// Apply folds the next record and returns its event. What is wrong with the
// record itself is in the memory then, as [reducer.Machine.Apply] says, and such
// an error is [Refused]. Any other error is the log's or a *[ParentGoneError]:
// nothing was folded.
func (f *Fold) Apply(ctx context.Context, rec journal.Record) (*events.Event, error) {
	e, err := f.machine.Apply(f.mem, rec.Subject, rec.Body)
	if err == nil {
		return e, nil
	}
	var parent *reducer.ParentError
	if !errors.As(err, &parent) {
		return e, err
	}
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return nil, &reducer.StrayError{Err: err}
	}
	if err := f.adopt(ctx, s.Run, parent); err != nil {
		return nil, err
	}
	return f.machine.Apply(f.mem, rec.Subject, rec.Body)
}

// ApplyEvent is [Fold.Apply] for a record that is decoded already.
func (f *Fold) ApplyEvent(ctx context.Context, s events.Subject, e *events.Event, hash string) error {
	err := f.machine.ApplyEvent(f.mem, s, e, hash)
	if err == nil {
		return nil
	}
	var parent *reducer.ParentError
	if !errors.As(err, &parent) {
		return err
	}
	if err := f.adopt(ctx, s.Run, parent); err != nil {
		return err
	}
	return f.machine.ApplyEvent(f.mem, s, e, hash)
}

// Refused reports whether an error is about the record that was folded, which
// the memory shows then.
func Refused(err error) bool {
	var illegal *reducer.IllegalError
	var stray *reducer.StrayError
	return errors.As(err, &illegal) || errors.As(err, &stray)
}

// ParentGoneError says that a run cannot be read, since the log has lost what it
// was forked from.
type ParentGoneError struct {
	// Run was forked from event At of Parent, of which the log has Has events.
	Run, Parent string
	At, Has     uint64
}

// Error names both runs.
func (e *ParentGoneError) Error() string {
	if e.Has == 0 {
		return fmt.Sprintf("run %s was forked from %s, which is gone", e.Run, e.Parent)
	}
	return fmt.Sprintf("run %s was forked from event %d of %s, of which only %d are there", e.Run, e.At, e.Parent, e.Has)
}

// Is makes it a [journal.ErrNotFound].
func (e *ParentGoneError) Is(target error) bool { return target == journal.ErrNotFound }

// adopt gives the fork the memory of its parent.
func (f *Fold) adopt(ctx context.Context, fork events.Run, p *reducer.ParentError) error {
	if f.depth > reducer.MaxForks {
		// Longer chains are not legal, and a circle would have no end.
		f.mem.Disown(fmt.Sprintf("is forked from run %s, which stands on %d forks: no more may", p.Run, reducer.MaxForks))
		return nil
	}
	from := parentPlace(f.log, fork, p.Run)
	parent := NewFold(f.log, f.machine, from)
	parent.depth = f.depth + 1
	if err := parent.read(ctx, from, p.At); err != nil {
		return err
	}
	if parent.mem.N < p.At {
		return &ParentGoneError{Run: fork.ID, Parent: p.Run, At: p.At, Has: parent.mem.N}
	}
	f.size = parent.size
	f.ancestors = append([]events.Run{from}, parent.ancestors...)
	f.mem.Adopt(parent.mem)
	return nil
}

// parentPlace is where a fork's parent is: in its namespace, in any shard.
func parentPlace(log journal.Log, fork events.Run, parent string) events.Run {
	return events.NewRun(fork.Namespace, parent, log.Shards())
}

// read folds the run's records up to its n-th event, or to the head if there are
// fewer.
func (f *Fold) read(ctx context.Context, run events.Run, n uint64) error {
	for rec, err := range f.log.Read(ctx, run, 0) {
		if err != nil {
			return fmt.Errorf("reading run %s: %w", run.ID, err)
		}
		if _, err := f.Apply(ctx, rec); err != nil && !Refused(err) {
			return err
		}
		if f.size += int64(len(rec.Body)); f.mem.N >= n {
			break
		}
	}
	return nil
}

// FoldAt returns the fold of a run up to its n-th event, n from 1, or up to its
// head if it has fewer; of a run that is not there nothing is folded. Errors are
// the log's and *[ParentGoneError].
func FoldAt(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run, n uint64) (*Fold, error) {
	f := NewFold(log, machine, run)
	return f, f.read(ctx, run, n)
}

// Retrace reads a run from the log to its head, and shows fn every legal event
// with its record, in order; those that a fork has of its ancestors come before
// its first one. It returns the run's memory. Errors are the log's and
// *[ParentGoneError].
func Retrace(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run, fn func(journal.Record, *events.Event)) (*reducer.Memory, error) {
	return retrace(ctx, NewFold(log, machine, run), run, math.MaxUint64, fn)
}

func retrace(ctx context.Context, f *Fold, run events.Run, n uint64, fn func(journal.Record, *events.Event)) (*reducer.Memory, error) {
	for rec, err := range f.log.Read(ctx, run, 0) {
		if err != nil {
			return nil, fmt.Errorf("reading run %s: %w", run.ID, err)
		}
		e, err := f.Apply(ctx, rec)
		if err != nil && !Refused(err) {
			return nil, err
		}
		if err == nil {
			if p, forked := e.Data.(*events.Forked); forked {
				parent := parentPlace(f.log, run, p.Run)
				if _, err := retrace(ctx, NewFold(f.log, f.machine, parent), parent, p.At, fn); err != nil {
					return nil, err
				}
			}
			fn(rec, e)
		}
		if f.mem.N >= n {
			break
		}
	}
	return f.mem, nil
}
