package runlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// fewEvents is the length up to which a run is read without looking for a snapshot.
const fewEvents = 50

// Snapshot returns the run's memory as a snapshot. It fails for a run of which nothing is
// known, and for a machine whose folds have no name.
func (r *Run) Snapshot() (ports.Snapshot, error) {
	fold := r.store.machine.FoldName()
	if fold == "" || r.seq == 0 {
		return ports.Snapshot{}, fmt.Errorf("run %s: there is nothing to take a snapshot of", r.ID.ID)
	}
	memory, err := json.Marshal(r.mem)
	if err != nil {
		return ports.Snapshot{}, fmt.Errorf("memory of run %s: %w", r.ID.ID, err)
	}
	return ports.Snapshot{Seq: r.seq, N: r.mem.N, Head: r.mem.Control.Head, Fold: fold, Memory: memory}, nil
}

// loadSnapshot brings a run of which nothing is known to the log's head by its snapshot
// and the records after it. If it returns false, the run is unchanged and has to be read
// from its beginning. The error is the log's or the context's.
func (r *Run) loadSnapshot(ctx context.Context) (bool, error) {
	if r.store.snapshots == nil || r.store.machine.FoldName() == "" {
		return false, nil
	}
	s, err := r.store.snapshots.Snapshot(ctx, r.ID)
	switch {
	case errors.Is(err, journal.ErrNotFound):
		meter.Add(r.store.meter, meter.Snapshots, 1, "missing")
		return false, nil
	case ctx.Err() != nil:
		return false, err
	case err != nil:
		return false, r.ignore(err)
	}
	mem, err := Restore(r.store.machine, r.ID, s)
	if err != nil {
		return false, r.ignore(err)
	}
	// Reading begins with the record that the snapshot names.
	for rec, err := range r.store.log.Read(ctx, r.ID, s.Seq-1) {
		switch {
		case errors.Is(err, journal.ErrNotFound) && r.seq == 0:
			return false, r.ignore(err)
		case err != nil:
			return r.seq > 0, fmt.Errorf("reading run %s: %w", r.ID.ID, err)
		case r.seq > 0:
			if _, err := r.apply(ctx, rec); err != nil {
				return true, err
			}
		case rec.Seq != s.Seq || events.Hash(rec.Body) != s.Head:
			return false, r.ignore(fmt.Errorf("the log has another record at %d", s.Seq))
		default:
			r.fold.mem, r.mem = mem, mem
			r.advance(s.Seq, len(s.Memory))
		}
	}
	if r.seq == 0 {
		return false, r.ignore(fmt.Errorf("the log ends before %d", s.Seq))
	}
	meter.Add(r.store.meter, meter.Snapshots, 1, "used")
	return true, nil
}

// Reloaded returns a memory after it went through a snapshot.
func Reloaded(mem *reducer.Memory) (*reducer.Memory, error) {
	text, err := json.Marshal(mem)
	if err != nil {
		return nil, err
	}
	reloaded := new(reducer.Memory)
	return reloaded, codec.Unmarshal(text, reloaded)
}

// ignore logs why a snapshot is not used. It returns nil: the log has everything that a
// snapshot has.
func (r *Run) ignore(reason error) error {
	meter.Add(r.store.meter, meter.Snapshots, 1, "unusable")
	r.store.logger.Warn("ignoring a snapshot; the run is read from its beginning", "run", r.ID.ID, "reason", reason)
	return nil
}

// Restore returns the memory of a run's snapshot. It fails if the snapshot is incompatible
// with the machine, is of another run, or contradicts itself. Only the log can tell
// whether it is true.
func Restore(machine *reducer.Machine, run events.Run, s ports.Snapshot) (*reducer.Memory, error) {
	if !machine.AcceptsFold(s.Fold) {
		return nil, fmt.Errorf("it was made by fold %q, this build has %q", s.Fold, machine.FoldName())
	}
	mem := new(reducer.Memory)
	if err := codec.Unmarshal(s.Memory, mem); err != nil {
		return nil, fmt.Errorf("its memory cannot be read: %w", err)
	}
	if s.Seq == 0 || mem.RunID != run.ID || mem.N != s.N || mem.Control.Head != s.Head {
		return nil, errors.New("its memory does not belong to the event that it names")
	}
	return mem, nil
}
