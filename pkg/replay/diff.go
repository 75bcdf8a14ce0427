package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/moorebus/moorebus/internal/jsondiff"
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

// Fork says what a run goes on from, and how it was changed there.
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
// times, hashes, latencies and sources are what differs between any two runs, so
// they do not count; ids count by where the same one comes again. A fork is compared
// with the events that it has of its parent, and without what only its beginning
// brings: so two runs that come from one part where they go on differently. Errors
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
