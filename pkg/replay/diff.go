package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"

	"github.com/moorebus/moorebus/internal/jsondiff"
	"github.com/moorebus/moorebus/internal/logwalk"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Difference is where two runs part.
type Difference struct {
	// Equal is true for runs that do not differ; then N and what follows it are empty.
	Equal bool `json:"equal"`
	// ForkA and ForkB say what the runs are forks of; nil for a run that is none.
	ForkA *Fork `json:"fork_a,omitempty"`
	ForkB *Fork `json:"fork_b,omitempty"`
	// Common is what the runs have in common because of that; nil: nothing.
	Common *Common `json:"common,omitempty"`
	// N is the first event that differs, counted from 1. Events that a fork has of
	// the runs that it stands on count, the event that forks it does not.
	N uint64 `json:"n,omitempty"`
	// A and B are the events there; nil for a run that has no such event.
	A *Side `json:"a,omitempty"`
	B *Side `json:"b,omitempty"`
	// Event lists how the two events differ, Memory how the memories after them
	// do.
	Event  []Change `json:"event,omitempty"`
	Memory []Change `json:"memory,omitempty"`
}

// Fork says from which event of which run a run continues, and how it was changed there.
type Fork struct {
	Run   string          `json:"run"`
	At    uint64          `json:"at"`
	Patch json.RawMessage `json:"patch,omitempty"`
}

// Common is the beginning that two runs share: a run's events up to N, with those
// that it stands on itself.
type Common struct {
	Run string `json:"run"`
	N   uint64 `json:"n"`
}

// Change is one place where two events or memories differ, as JSON: Path, A and B. A side
// without a value there is nil.
type Change = jsondiff.Change

// Side is one run's event at the place where two runs differ.
type Side struct {
	// N is the number of the event in the run's own log; of one that a fork has of
	// another run, in the log of that run.
	N       uint64       `json:"n"`
	Type    events.Type  `json:"type,omitempty"`
	From    events.State `json:"from"`
	To      events.State `json:"to"`
	Illegal string       `json:"illegal,omitempty"`
}

// String returns the type and the states of the event, or why it is illegal.
func (s *Side) String() string {
	switch {
	case s == nil:
		return "the run has no more events"
	case s.Illegal != "":
		return fmt.Sprintf("%s in %s, illegal: %s", s.Type, s.From, jsondiff.Cut(s.Illegal, 200))
	}
	return fmt.Sprintf("%s, %s -> %s", s.Type, s.From, s.To)
}

// MaxChanges is how many places a [Difference] lists at most, of the events and of
// the memories each.
const MaxChanges = 50

// Diff compares two runs event by event and stops at the first that differs. Ids,
// times, hashes, latencies and sources are what differs between any two runs, and
// who was asked where one is carried once more without its model, so
// they do not count; ids count by where the same one comes again. A fork is compared
// with the events of its parent, and without its own first event: so two forks of one
// run differ where they continue differently. Errors
// are the logs' and the context's, [journal.ErrNotFound] for a run that is not there.
func Diff(ctx context.Context, machine *reducer.Machine, logA journal.Log, runA events.Run, logB journal.Log, runB events.Run) (*Difference, error) {
	a, err := newSide(ctx, machine, logA, runA)
	if err != nil {
		return nil, err
	}
	defer a.close()
	b, err := newSide(ctx, machine, logB, runB)
	if err != nil {
		return nil, err
	}
	defer b.close()
	found := &Difference{ForkA: a.fork(), ForkB: b.fork(), Common: common(a.legs, b.legs)}
	for n := uint64(1); ; n++ {
		moreA, err := a.advance(ctx)
		if err != nil {
			return nil, err
		}
		moreB, err := b.advance(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case n == 1 && !moreA:
			return nil, fmt.Errorf("run %s in namespace %s: %w", runA.ID, runA.Namespace, journal.ErrNotFound)
		case n == 1 && !moreB:
			return nil, fmt.Errorf("run %s in namespace %s: %w", runB.ID, runB.Namespace, journal.ErrNotFound)
		case !moreA && !moreB:
			found.Equal = true
			return found, nil
		}
		if found.Event = jsondiff.CompareTrees(a.tree(), b.tree(), MaxChanges); len(found.Event) == 0 {
			continue
		}
		found.N, found.A, found.B = n, a.now, b.now
		found.Memory = jsondiff.CompareTrees(a.memory(), b.memory(), MaxChanges)
		return found, nil
	}
}

// tree is the event without what differs between any two runs.
func (s *side) tree() any {
	if s.now == nil {
		return jsondiff.Missing{}
	}
	body, ok := jsondiff.Document(s.body).(map[string]any)
	if !ok {
		body = map[string]any{"data": string(s.body)}
	}
	return map[string]any{
		"type": string(s.now.Type), "from": string(s.now.From), "to": string(s.now.To), "illegal": s.now.Illegal != "",
		"step": fmt.Sprint(s.mem.Step), "data": s.aliases.plain("data", body["data"]),
		"route": string(s.subject.From) + " -> " + string(s.subject.To) + " in " + s.subject.Pool,
	}
}

// memory is the memory that SPEC names, without the runtime's own part, without the
// trace, which repeats the events, and without how many they are.
func (s *side) memory() any {
	text, err := json.Marshal(s.mem)
	if err != nil {
		return err.Error()
	}
	tree, ok := jsondiff.Document(text).(map[string]any)
	if !ok {
		return string(text)
	}
	for _, key := range []string{"control", "trace", "run_id", "n"} {
		delete(tree, key)
	}
	return s.aliases.plain("", tree)
}

// aliases gives every id of a run the number of its first appearance.
type aliases map[string]string

// ids are the keys whose values are ids, also in a list or as keys of an object.
var ids = map[string]bool{
	"id": true, "call_id": true, "call_ids": true, "calls": true, "message_id": true, "provider_id": true, "run": true,
	"tool_call_ids": true, "tool_calls": true,
}

// volatile are the keys whose values differ between any two runs.
var volatile = map[string]bool{
	"agent_hash": true, "table_hash": true, "hash": true, "latency_ms": true, "timestamp": true, "started": true,
	"updated": true, "started_at": true, "deadline": true, "chunks": true, "under": true, "delivery": true,
	"asked": true, "request_sha256": true,
}

// plain copies a value without what is volatile, and with aliases for ids.
func (a aliases) plain(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		// In the order of the keys, since ids are numbered as they come.
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if volatile[k] {
				continue
			}
			name := k
			if key == "tool_calls" {
				name = a.of(k)
			}
			out[name] = a.plain(k, v[k])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, member := range v {
			out[i] = a.plain(key, member)
		}
		return out
	case string:
		if ids[key] {
			return a.of(v)
		}
	}
	return v
}

func (a aliases) of(id string) string {
	if id == "" {
		return ""
	}
	if a[id] == "" {
		a[id] = fmt.Sprintf("#%d", len(a)+1)
	}
	return a[id]
}

// leg is a part of a run's history: the events of one run up to a number. The
// history of a fork begins with its parent's leg.
type leg struct {
	run   events.Run
	until uint64
	// fork is the event that forked the run from that of the leg before; nil for the
	// first leg.
	fork *events.Forked
}

// history returns a run's legs. The last one is its own and has no end.
func history(ctx context.Context, log journal.Log, machine *reducer.Machine, run events.Run) ([]leg, error) {
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
	legs, err := history(ctx, log, machine, run)
	if err != nil {
		return nil, err
	}
	s := &side{log: log, machine: machine, legs: legs, stop: func() {}, aliases: aliases{}}
	s.read(ctx)
	return s, nil
}

func (s *side) fork() *Fork {
	forked := s.legs[len(s.legs)-1].fork
	if forked == nil {
		return nil
	}
	return &Fork{Run: forked.Run, At: forked.At, Patch: json.RawMessage(forked.Patch)}
}

// read begins to read the current leg.
func (s *side) read(ctx context.Context) {
	s.stop()
	run := s.legs[s.at].run
	s.pull, s.stop = iter.Pull2(s.log.Read(ctx, run, 0))
	s.fold = runlog.NewFold(s.log, s.machine, run)
	s.mem = s.fold.Memory()
}

func (s *side) close() { s.stop() }

// turn goes to the next leg, and reports whether there is one.
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
