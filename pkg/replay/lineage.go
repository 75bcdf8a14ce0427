package replay

import (
	"context"
	"encoding/json"
	"iter"
	"math"

	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// leg is a part of a run's history: the events of one run up to a number. The
// history of a fork begins with its parent's leg.
type leg struct {
	run   events.Run
	until uint64
	// fork is the event that forked the run from that of the leg before; nil for the
	// first leg.
	fork *events.Forked
}

// lineage returns a run's legs; the last one is its own, without an end.
func lineage(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run) ([]leg, error) {
	legs := []leg{{run: run, until: math.MaxUint64}}
	for len(legs) <= reducer.MaxForks { // longer chains are not legal
		forked, err := forkedFrom(ctx, log, machine, legs[0].run)
		if forked == nil || err != nil {
			return legs, err
		}
		legs[0].fork = forked
		parent := events.NewRun(run.Namespace, forked.Run, log.Shards())
		legs = append([]leg{{run: parent, until: forked.At}}, legs...)
	}
	return legs, nil
}

// forkedFrom returns what a run begins with if that is a fork, else nil.
func forkedFrom(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run) (*events.Forked, error) {
	for rec, err := range log.Read(ctx, run, 0) {
		if err != nil {
			return nil, err
		}
		if _, reason := logwalk.Place(log, run.Shard, rec.Subject); reason != "" {
			continue // it belongs to no run
		}
		e, err := machine.Codec().Decode(rec.Body)
		if err != nil {
			return nil, nil // it begins with what is no event
		}
		forked, _ := e.Data.(*events.Forked)
		return forked, nil
	}
	return nil, nil
}

// common returns what two histories have in common, nil for those of one run, or of
// runs that share nothing.
func common(a, b []leg) *Common {
	var c *Common
	for i := range min(len(a), len(b)) {
		if a[i].run != b[i].run {
			break
		}
		c = &Common{Run: a[i].run.ID, N: min(a[i].until, b[i].until)}
		if a[i].until != b[i].until {
			break
		}
	}
	if c != nil && c.N == math.MaxUint64 {
		return nil
	}
	return c
}

// side is one of two runs that are compared: its history, event by event.
type side struct {
	log     journal.Log
	machine *reducer.Machine
	legs    []leg
	// at is the leg that is read, which fold folds.
	at   int
	fold *runlog.Fold
	mem  *reducer.Memory // the fold's
	pull func() (journal.Record, error, bool)
	stop func()

	now     *Side
	body    []byte
	subject events.Subject
	aliases aliases
	// again are the events that a fork repeats because its parent's calls were under
	// way: they begin once more.
	again map[begun]bool
}

// begun says of a call that it was sent to its pool, or started.
type begun struct {
	what events.Type
	call string
}

func newSide(ctx context.Context, machine *reducer.Machine, log journal.Log, run events.Run) (*side, error) {
	legs, err := lineage(ctx, log, machine, run)
	if err != nil {
		return nil, err
	}
	s := &side{log: log, machine: machine, legs: legs, stop: func() {}, aliases: aliases{}}
	s.read(ctx)
	return s, nil
}

// fork says what the run itself is a fork of.
func (s *side) fork() *Fork {
	forked := s.legs[len(s.legs)-1].fork
	if forked == nil {
		return nil
	}
	return &Fork{Run: forked.Run, At: forked.At, Patch: json.RawMessage(forked.Patch)}
}

// read begins with the leg that it is at.
func (s *side) read(ctx context.Context) {
	s.stop()
	run := s.legs[s.at].run
	s.pull, s.stop = iter.Pull2(s.log.Read(ctx, run, 0))
	s.fold = runlog.NewFold(s.log, s.machine, run)
	s.mem = s.fold.Memory()
}

func (s *side) close() { s.stop() }

// turn goes over to the next leg, and reports whether there is one.
func (s *side) turn(ctx context.Context) bool {
	if s.at == len(s.legs)-1 {
		s.now, s.body = nil, nil
		return false
	}
	s.again = map[begun]bool{}
	for _, call := range s.mem.Control.Calls {
		s.again[begun{events.TypeToolCallDispatched, call.ID}] = call.Dispatched > 0
		s.again[begun{events.TypeToolCallStarted, call.ID}] = call.Started > 0
	}
	s.at++
	s.read(ctx)
	return true
}

// advance folds the next event and reports whether there was one.
func (s *side) advance(ctx context.Context) (bool, error) {
	for {
		if s.mem.N >= s.legs[s.at].until {
			s.turn(ctx) // the last leg has no end
		}
		rec, err, more := s.pull()
		if err != nil {
			return false, err
		}
		if !more {
			if s.turn(ctx) {
				continue // to what says that the parent is gone
			}
			return false, nil
		}
		subject, reason := logwalk.Place(s.log, s.legs[s.at].run.Shard, rec.Subject)
		if reason != "" {
			continue // it belongs to no run
		}
		now := &Side{From: s.mem.State}
		e, err := s.fold.Apply(ctx, rec)
		if err != nil && !runlog.Refused(err) {
			return false, err
		}
		now.N, now.To = s.mem.N, s.mem.State
		if ill, ok := err.(*reducer.IllegalError); ok {
			now.Type, now.Illegal = ill.Type, ill.Reason
		} else if now.Type = e.Type(); s.repeats(e) {
			continue
		}
		s.now, s.body, s.subject = now, rec.Body, subject
		return true, nil
	}
}

// repeats reports whether an event is there only because the run is a fork.
func (s *side) repeats(e *events.Event) bool {
	b := begun{what: e.Type()}
	switch p := e.Data.(type) {
	case *events.Forked:
		return true
	case *events.ToolCallDispatched:
		b.call = p.CallID
	case *events.ToolCallStarted:
		b.call = p.CallID
	default:
		return false
	}
	repeated := s.again[b]
	delete(s.again, b)
	return repeated
}
