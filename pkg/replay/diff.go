package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

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
		return fmt.Sprintf("%s in %s, illegal: %s", s.Type, s.From, cut(s.Illegal, 200))
	}
	return fmt.Sprintf("%s, %s -> %s", s.Type, s.From, s.To)
}

// maxChanges bounds how many places a difference lists, of the events and of the
// memories each.
const maxChanges = 50

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
		d := &differ{limit: maxChanges}
		if d.compare("", a.tree(), b.tree()); len(d.changes) == 0 {
			continue
		}
		m := &differ{limit: maxChanges}
		m.compare("", a.memory(), b.memory())
		found.N, found.A, found.B, found.Event, found.Memory = n, a.now, b.now, d.changes, m.changes
		return found, nil
	}
}

// tree is the event without what differs between any two runs.
func (s *side) tree() any {
	if s.now == nil {
		return missing{}
	}
	body, ok := document(s.body).(map[string]any)
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
	tree, ok := document(text).(map[string]any)
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

// WriteText writes the difference for people.
func (d *Difference) WriteText(w io.Writer) error {
	var b strings.Builder
	d.ForkA.write(&b, "a")
	d.ForkB.write(&b, "b")
	if d.Common != nil {
		fmt.Fprintf(&b, "they have run %s up to event %d in common\n", d.Common.Run, d.Common.N)
	}
	switch {
	case d.Equal && d.Common != nil:
		b.WriteString("their events after that do not differ\n")
	case d.Equal:
		b.WriteString("the runs do not differ\n")
	default:
		d.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f *Fork) write(b *strings.Builder, side string) {
	if f == nil {
		return
	}
	fmt.Fprintf(b, "%s is a fork of run %s at event %d", side, f.Run, f.At)
	if len(f.Patch) > 0 {
		fmt.Fprintf(b, ", with the patch %s", short(f.Patch))
	}
	b.WriteByte('\n')
}

func (d *Difference) write(b *strings.Builder) {
	switch {
	case d.A != nil && d.B != nil && d.A.N != d.B.N:
		fmt.Fprintf(b, "the runs differ at event %d of a, which is event %d of b\n", d.A.N, d.B.N)
	case d.A != nil:
		fmt.Fprintf(b, "the runs differ at event %d\n", d.A.N)
	default:
		fmt.Fprintf(b, "the runs differ at event %d\n", d.B.N)
	}
	fmt.Fprintf(b, "  a: %s\n  b: %s\n", d.A, d.B)
	if d.A != nil && d.B != nil {
		writeChanges(b, "the events", d.Event)
	}
	writeChanges(b, "the memories after it", d.Memory)
}

func writeChanges(b *strings.Builder, what string, changes []Change) {
	if len(changes) == 0 {
		fmt.Fprintf(b, "%s are the same\n", what)
		return
	}
	fmt.Fprintf(b, "%s:\n", what)
	for _, c := range changes {
		fmt.Fprintf(b, "  %s\n    a: %s\n    b: %s\n", c.Path, short(c.A), short(c.B))
	}
	if len(changes) == maxChanges {
		fmt.Fprintf(b, "  and maybe more: the first %d are shown\n", maxChanges)
	}
}

// WriteJSON writes the difference as one JSON document, indented.
func (d *Difference) WriteJSON(w io.Writer) error { return writeIndented(w, d) }
