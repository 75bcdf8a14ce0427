package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// Difference is where two runs part.
type Difference struct {
	// Equal is true for runs that do not differ; then the rest is empty.
	Equal bool `json:"equal"`
	// N is the first event that differs, counted from 1.
	N uint64 `json:"n,omitempty"`
	// A and B are the events there; nil for a run that has no such event.
	A *Side `json:"a,omitempty"`
	B *Side `json:"b,omitempty"`
	// Event lists how the two events differ, Memory how the memories after them
	// do.
	Event  []Change `json:"event,omitempty"`
	Memory []Change `json:"memory,omitempty"`
}

// Side is one run's event at the place where two runs differ.
type Side struct {
	Type    events.Type  `json:"type,omitempty"`
	From    events.State `json:"from"`
	To      events.State `json:"to"`
	Illegal string       `json:"illegal,omitempty"`
}

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
// they do not count; ids count by where the same one comes again. Errors are the
// logs' and the context's, [journal.ErrNotFound] for a run that is not there.
func Diff(ctx context.Context, machine *reducer.Machine, logA journal.Log, runA events.Run, logB journal.Log, runB events.Run) (*Difference, error) {
	a, stopA := newSide(ctx, machine, logA, runA)
	defer stopA()
	b, stopB := newSide(ctx, machine, logB, runB)
	defer stopB()
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
			return &Difference{Equal: true}, nil
		}
		d := &differ{limit: maxChanges}
		if d.compare("", a.tree(), b.tree()); len(d.changes) == 0 {
			continue
		}
		m := &differ{limit: maxChanges}
		m.compare("", a.memory(), b.memory())
		return &Difference{N: n, A: a.now, B: b.now, Event: d.changes, Memory: m.changes}, nil
	}
}

// side is one of two runs that are compared.
type side struct {
	log  journal.Log
	run  events.Run
	fold *runlog.Fold
	mem  *reducer.Memory // the fold's
	pull func() (journal.Record, error, bool)

	now     *Side
	body    []byte
	subject events.Subject
	aliases aliases
}

func newSide(ctx context.Context, machine *reducer.Machine, log journal.Log, run events.Run) (*side, func()) {
	pull, stop := iter.Pull2(log.Read(ctx, run, 0))
	fold := runlog.NewFold(log, machine, run)
	return &side{log: log, run: run, fold: fold, mem: fold.Memory(), pull: pull, aliases: aliases{}}, stop
}

// advance folds the next record and reports whether there was one.
func (s *side) advance(ctx context.Context) (bool, error) {
	for {
		rec, err, more := s.pull()
		if !more || err != nil {
			s.now, s.body = nil, nil
			return false, err
		}
		subject, reason := place(s.log, s.run.Shard, rec.Subject)
		if reason != "" {
			continue // it belongs to no run
		}
		now := &Side{From: s.mem.State}
		e, err := s.fold.Apply(ctx, rec)
		if err != nil && !runlog.Refused(err) {
			return false, err
		}
		now.To = s.mem.State
		if ill, ok := err.(*reducer.IllegalError); ok {
			now.Type, now.Illegal = ill.Type, ill.Reason
		} else {
			now.Type = e.Type()
		}
		s.now, s.body, s.subject = now, rec.Body, subject
		return true, nil
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

// memory is the memory that SPEC names, without the runtime's own part, and
// without the trace, which repeats the events.
func (s *side) memory() any {
	text, err := json.Marshal(s.mem)
	if err != nil {
		return err.Error()
	}
	tree, ok := document(text).(map[string]any)
	if !ok {
		return string(text)
	}
	for _, key := range []string{"control", "trace", "run_id"} {
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
	"updated": true, "started_at": true, "deadline": true,
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
	if d.Equal {
		_, err := io.WriteString(w, "the runs do not differ\n")
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the runs differ at event %d\n  a: %s\n  b: %s\n", d.N, d.A, d.B)
	if d.A != nil && d.B != nil {
		writeChanges(&b, "the events", d.Event)
	}
	writeChanges(&b, "the memories after it", d.Memory)
	_, err := io.WriteString(w, b.String())
	return err
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
