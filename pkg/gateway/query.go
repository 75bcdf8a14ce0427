package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// RunState is a run as the fold of its first N events has it. Memory is
// [reducer.Memory] as JSON.
type RunState struct {
	RunID   string          `json:"run_id"`
	State   events.State    `json:"state"`
	N       uint64          `json:"n"`
	Mode    events.Mode     `json:"mode"`
	Agent   string          `json:"agent"`
	Started time.Time       `json:"started"`
	Updated time.Time       `json:"updated"`
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
