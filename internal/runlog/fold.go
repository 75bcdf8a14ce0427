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

// Fold folds one run's records in their order, wherever they come from. A fork begins with
// its parent's events, which are read from the log when its first record is folded. A Fold
// is not safe for concurrent use.
type Fold struct {
	log     journal.Log
	machine *reducer.Machine
	run     events.Run
	mem     *reducer.Memory
	// size is the length of the bodies that the fold itself read from the log, in bytes:
	// those of the run's ancestors, and its own if read read them.
	size int64
	// depth is how many forks of this run are being read.
	depth int
	// ancestors are the runs that it was forked from, the nearest first.
	ancestors []events.Run
}

// NewFold returns an empty fold of a run.
func NewFold(log journal.Log, machine *reducer.Machine, run events.Run) *Fold {
	return &Fold{log: log, machine: machine, run: run, mem: machine.Initial(run.ID)}
}

// Memory returns what was folded so far. It changes with the next record.
func (f *Fold) Memory() *reducer.Memory { return f.mem }

// Ancestors returns the runs that the run was forked from, as far as the fold has read
// them, the nearest first.
func (f *Fold) Ancestors() []events.Run { return f.ancestors }

// Apply folds the next record and returns its event. If the record itself is wrong, the
// memory shows it, as [reducer.Machine.Apply] says, and the error is [Refused]; the event
// comes with it if it could be decoded. Any other error is the log's, a *[ParentGoneError]
// or a *[reducer.TableError]: nothing was folded, and there is no event.
func (f *Fold) Apply(ctx context.Context, rec journal.Record) (*events.Event, error) {
	e, err := f.machine.Apply(f.mem, rec.Subject, rec.Body)
	if err == nil {
		return e, nil
	}
	adopted, err := f.adoptFor(ctx, err)
	if adopted {
		e, err = f.machine.Apply(f.mem, rec.Subject, rec.Body)
	}
	if err != nil && !Refused(err) {
		return nil, err
	}
	return e, err
}

// ApplyEvent is [Fold.Apply] for a decoded record.
func (f *Fold) ApplyEvent(ctx context.Context, s events.Subject, e *events.Event, hash string) error {
	err := f.machine.ApplyEvent(f.mem, s, e, hash)
	if err == nil {
		return nil
	}
	if adopted, err := f.adoptFor(ctx, err); !adopted {
		return err
	}
	return f.machine.ApplyEvent(f.mem, s, e, hash)
}

// Refused reports whether an error is about the record that was folded, which the memory
// then shows.
func Refused(err error) bool {
	var illegal *reducer.IllegalError
	return errors.As(err, &illegal) || errors.Is(err, reducer.ErrSubject)
}

// ParentGoneError says that a fork cannot be read, since the log has lost its parent.
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

// adoptFor gives the fork the memory of its parent, if the error asks for it, and reports
// whether it did. If not, it returns the reason.
func (f *Fold) adoptFor(ctx context.Context, err error) (adopted bool, _ error) {
	var p *reducer.ParentError
	if !errors.As(err, &p) {
		return false, err
	}
	if f.depth > reducer.MaxForks {
		// Longer chains are not legal, and a circle would never end.
		f.mem.Disown(fmt.Sprintf("is forked from run %s, which stands on %d forks: no more may", p.Run, reducer.MaxForks))
		return true, nil
	}
	parent := NewFold(f.log, f.machine, f.parent(p.Run))
	parent.depth = f.depth + 1
	if err := parent.read(ctx, p.At, nil); err != nil {
		return false, err
	}
	if parent.mem.N < p.At {
		return false, &ParentGoneError{Run: f.run.ID, Parent: p.Run, At: p.At, Has: parent.mem.N}
	}
	f.size = parent.size
	f.ancestors = append([]events.Run{parent.run}, parent.ancestors...)
	f.mem.Adopt(parent.mem)
	return true, nil
}

// parent returns the place of a fork's parent: its namespace, any shard.
func (f *Fold) parent(id string) events.Run {
	return events.NewRun(f.run.Namespace, id, f.log.Shards())
}

// read folds the run's records up to its n-th event, or to the head if there are fewer. It
// calls each, if not nil, for every legal event.
func (f *Fold) read(ctx context.Context, n uint64, each func(journal.Record, *events.Event) error) error {
	for rec, err := range f.log.Read(ctx, f.run, 0) {
		if err != nil {
			return fmt.Errorf("reading run %s: %w", f.run.ID, err)
		}
		e, err := f.Apply(ctx, rec)
		if err != nil && !Refused(err) {
			return err
		}
		if err == nil && each != nil {
			if err := each(rec, e); err != nil {
				return err
			}
		}
		if f.size += int64(len(rec.Body)); f.mem.N >= n {
			break
		}
	}
	return nil
}

// FoldAt returns the fold of a run up to its n-th event, n from 1, or up to its head if it
// has fewer. The fold of a missing run is empty. Errors are the log's and
// *[ParentGoneError].
func FoldAt(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run, n uint64) (*Fold, error) {
	f := NewFold(log, machine, run)
	return f, f.read(ctx, n, nil)
}

// Retrace reads a run from the log to its head and calls fn for every legal event with its
// record, in order. The events that a fork has of its ancestors come before its first one.
// It returns the run's memory. Errors are the log's and *[ParentGoneError].
func Retrace(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run, fn func(journal.Record, *events.Event)) (*reducer.Memory, error) {
	f := NewFold(log, machine, run)
	if err := f.retrace(ctx, math.MaxUint64, fn); err != nil {
		return nil, err
	}
	return f.mem, nil
}

func (f *Fold) retrace(ctx context.Context, n uint64, fn func(journal.Record, *events.Event)) error {
	return f.read(ctx, n, func(rec journal.Record, e *events.Event) error {
		if p, forked := e.Data.(*events.Forked); forked {
			if err := NewFold(f.log, f.machine, f.parent(p.Run)).retrace(ctx, p.At, fn); err != nil {
				return err
			}
		}
		fn(rec, e)
		return nil
	})
}

// Follow folds a run's records as they are stored, from the first one until the run ends,
// and calls fn after each: with the event, or with the reason why the record is no legal
// event. It returns nil when the run has ended, otherwise the error of fn, of the log, or
// of the context, or what [Fold.Apply] returns for a record that cannot be folded.
func (f *Fold) Follow(ctx context.Context, run events.Run, fn func(rec journal.Record, e *events.Event, refused error) error) error {
	for rec, err := range f.log.Follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
		if err != nil {
			return err
		}
		e, err := f.Apply(ctx, rec)
		if err != nil && !Refused(err) {
			return err
		}
		if err := fn(rec, e, err); err != nil {
			return err
		}
		if f.machine.Table().Terminal(f.mem.State) {
			return nil
		}
	}
	return ctx.Err()
}
