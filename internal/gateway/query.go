package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// RunState is a run as the fold of its first N events has it. Memory is
// [reducer.Memory] as JSON.
type RunState struct {
	RunID string       `json:"run_id"`
	State events.State `json:"state"`
	N     uint64       `json:"n"`
	Mode  events.Mode  `json:"mode"`
	Agent string       `json:"agent"`
	// Started and Updated are left out before the first event.
	Started time.Time       `json:"started,omitzero"`
	Updated time.Time       `json:"updated,omitzero"`
	Memory  json.RawMessage `json:"memory"`
}

// State returns a run after its first n events; 0 for all of them. An n beyond
// the run's head is an *[Error] with status 400.
func (g *Gateway) State(ctx context.Context, ns, id string, n uint64) (RunState, error) {
	var state RunState
	err := g.look(ctx, ns, id, func(run *runlog.Run) (err error) {
		head := run.Memory().N
		switch {
		case n > head:
			return badRequest(CodeBadParameter, "at: the run has %d events, so at is 1 to %d", head, head)
		case n == 0 || n == head:
			state, err = runState(run.Memory())
		}
		return err
	})
	if err != nil || state.RunID != "" {
		return state, err
	}
	return g.past(ctx, ns, id, n)
}

// past folds the run's first n events.
func (g *Gateway) past(ctx context.Context, ns, id string, n uint64) (RunState, error) {
	at, err := g.place(ns, id)
	if err != nil {
		return RunState{}, err
	}
	fold, err := runlog.FoldAt(ctx, g.log, g.machine, at, n)
	if err != nil {
		return RunState{}, err
	}
	return runState(fold.Memory())
}

func runState(mem *reducer.Memory) (RunState, error) {
	data, err := json.Marshal(mem)
	if err != nil {
		return RunState{}, fmt.Errorf("%w: memory of run %s: %w", errInternal, mem.RunID, err)
	}
	return RunState{
		RunID: mem.RunID, State: mem.State, N: mem.N, Mode: mem.Mode, Agent: mem.Control.Agent.Name,
		Started: mem.Started, Updated: mem.Updated, Memory: data,
	}, nil
}

// Events yields the run's records from its n-th on (from 1), in order, to the
// head. A run that does not exist is an *[Error] with status 404, returned at
// once.
func (g *Gateway) Events(ctx context.Context, ns, id string, from uint64) (iter.Seq2[journal.Record, error], error) {
	at, err := g.place(ns, id)
	if err != nil {
		return nil, err
	}
	if _, err := g.log.Head(ctx, at); err != nil {
		if errors.Is(err, journal.ErrNotFound) {
			return nil, g.missing(ctx, at)
		}
		return nil, err
	}
	return func(yield func(journal.Record, error) bool) {
		n := uint64(0)
		for rec, err := range g.log.Read(ctx, at, 0) {
			if err == nil && stray(rec) {
				continue
			}
			// Every other record counts, whatever it holds: n is its place.
			if n++; err == nil && n < from {
				continue
			}
			if !yield(rec, err) {
				return
			}
		}
	}, nil
}

// stray reports whether a record belongs to no run, although the run's filter
// matches it: its subject is none of the log's. It counts nowhere.
func stray(rec journal.Record) bool {
	_, err := events.ParseSubject(rec.Subject)
	return err != nil
}

// plausible returns a record's event, nil if it cannot be read or can be legal in
// no run on its subject.
func (g *Gateway) plausible(rec journal.Record) *events.Event {
	s, err := events.ParseSubject(rec.Subject)
	if err != nil {
		return nil
	}
	e, err := g.machine.Codec().Decode(rec.Body)
	if err != nil || reducer.CheckEdge(g.table, s, e) != nil {
		return nil
	}
	return e
}

// firstReach is how far before a run's last record the one before it is looked for
// first, in sequence numbers; each further try reaches so many times as far.
const (
	firstReach  = 16
	reachFactor = 8
)

// follows reports whether an event, the run's last one, goes on from the record
// before it: counts on, names it, and leaves the state that it leads to. It does not
// prove that the event is legal, since what is before may not be.
func (g *Gateway) follows(ctx context.Context, run events.Run, seq uint64, e *events.Event) (bool, error) {
	for reach := uint64(firstReach); ; reach *= reachFactor {
		after := seq - min(seq, reach)
		before, err := g.lastBetween(ctx, run, after, seq)
		if err != nil {
			return false, err
		}
		if before.Seq > 0 {
			p := g.plausible(before)
			return p != nil && p.To == e.From && p.N+1 == e.N && events.Hash(before.Body) == e.Prev, nil
		}
		if after == 0 {
			return false, nil
		}
	}
}

// lastBetween returns the run's last record after one sequence number and before
// another; the zero Record if there is none.
func (g *Gateway) lastBetween(ctx context.Context, run events.Run, after, before uint64) (last journal.Record, err error) {
	for rec, err := range g.log.Read(ctx, run, after) {
		if err != nil {
			return journal.Record{}, err
		}
		if rec.Seq >= before {
			break
		}
		if !stray(rec) {
			last = rec
		}
	}
	return last, nil
}
