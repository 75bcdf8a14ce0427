// Package record returns what a run did: its memory after every event as patches, the tree of the
// runs that it belongs to, and what it used.
package record

import (
	"context"
	"encoding/json"
	"iter"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Reader reads the records of runs. It is safe for concurrent use.
type Reader struct {
	a    *runs.Editor
	list *list.Lister

	mu sync.Mutex
	// ended has what runs used themselves that have ended.
	ended map[events.Run]Use
}

// New returns a Reader of the runs of a, which l lists.
func New(a *runs.Editor, l *list.Lister) *Reader {
	return &Reader{a: a, list: l, ended: map[events.Run]Use{}}
}

// Moment is a run after its event N, which was at At: its complete memory, or the patch (RFC 6902)
// from the memory before the event to the one after it.
type Moment struct {
	N      uint64          `json:"n"`
	At     time.Time       `json:"at"`
	Memory json.RawMessage `json:"memory,omitempty"`
	Delta  []Op            `json:"delta,omitempty"`
}

// Moments makes the moments of a run from its records. It is not safe for concurrent use.
type Moments struct {
	fold *runlog.Fold
	from uint64
	// told says that the client has the memory after event from.
	told   bool
	differ *Differ
}

// Moments returns the moments from event from on, of which the first has the memory. With told
// the client has that memory, and the first moment is the one after it.
func (r *Reader) Moments(run events.Run, from uint64, told bool) *Moments {
	return &Moments{fold: runlog.NewFold(r.a.Log, r.a.Store.Machine(), run), from: from, told: told}
}

// Next folds the run's next record. It returns the moment after it, or nil if that moment is not
// wanted. The error is the log's, or that of a run that cannot be read.
func (m *Moments) Next(ctx context.Context, rec journal.Record) (*Moment, error) {
	if runs.NotOfLog(rec) {
		return nil, nil
	}
	if _, err := m.fold.Apply(ctx, rec); err != nil && !runlog.Refused(err) {
		return nil, err
	}
	mem := m.fold.Memory()
	if mem.N < m.from {
		return nil, nil
	}
	now := &Moment{N: mem.N, At: mem.Updated}
	var err error
	if m.differ != nil {
		now.Delta, err = m.differ.Next(mem)
		return now, err
	}
	if m.differ, err = NewDiffer(mem); err != nil || m.told {
		return nil, err
	}
	now.Memory, err = json.Marshal(mem)
	return now, err
}

// Memory returns the memory after the last record. It changes with the next one.
func (m *Moments) Memory() *reducer.Memory { return m.fold.Memory() }

// States yields the moments of a run from event from to event to, both included; to 0 is the last
// event. A range that the run does not have is a CodeBadParameter. With to 0 that, and that there
// is no such run, is yielded instead of a moment, since the head is known only when it was read.
func (r *Reader) States(ctx context.Context, ns, id string, from, to uint64) (iter.Seq2[*Moment, error], error) {
	run, err := r.a.Place(ns, id)
	if err != nil {
		return nil, err
	}
	if to > 0 {
		err = r.a.View(ctx, ns, id, func(open *runlog.Run) error { return CheckRange(from, to, open.Memory().N) })
		if err != nil {
			return nil, err
		}
	}
	return func(yield func(*Moment, error) bool) {
		moments := r.Moments(run, from, false)
		for rec, err := range r.a.Log.Read(ctx, run, 0) {
			var now *Moment
			if err == nil {
				now, err = moments.Next(ctx, rec)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if now != nil && !yield(now, nil) || to > 0 && moments.Memory().N >= to {
				return
			}
		}
		if head := moments.Memory().N; head == 0 {
			yield(nil, r.a.Missing(ctx, run))
		} else if head < from {
			yield(nil, CheckRange(from, head, head))
		}
	}, nil
}

// CheckRange refuses a range of events that a run with head events does not have.
func CheckRange(from, to, head uint64) error {
	switch {
	case from > head:
		return refusal.New(refusal.Invalid, refusal.CodeBadParameter, "from: the run has %d events, so from is 1 to %d", head, head)
	case to > head:
		return refusal.New(refusal.Invalid, refusal.CodeBadParameter, "to: the run has %d events, so to is at most %d", head, head)
	case from > to:
		return refusal.New(refusal.Invalid, refusal.CodeBadParameter, "from: %d is after to, which is %d", from, to)
	}
	return nil
}
