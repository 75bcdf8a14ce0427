package verify

import (
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// fields is what memory shows of the fields that SPEC section 3 gives an owner,
// cheap enough to be taken before every event.
type fields struct {
	step        int
	current     reducer.ToolCall
	hasCurrent  bool
	observation string
	hasObserved bool
	answer      string
	hasAnswer   bool
	failure     reducer.RunError
	hasFailure  bool
	mode        events.Mode
	history     ends[reducer.HistoryEntry]
	trace       ends[reducer.TraceEntry]
}

// ends is a list by its length and by copies of its first and last entry.
type ends[T any] struct {
	n           int
	first, last T
}

func endsOf[T any](all []T) ends[T] {
	e := ends[T]{n: len(all)}
	if e.n > 0 {
		e.first, e.last = all[0], all[e.n-1]
	}
	return e
}

// note copies the fields of a memory.
func (f *fields) note(mem *reducer.Memory) {
	f.step, f.mode, f.history, f.trace = mem.Step, mem.Mode, endsOf(mem.History), endsOf(mem.Trace)
	f.current, f.hasCurrent = value(mem.CurrentToolCall)
	f.observation, f.hasObserved = value(mem.LastObservation)
	f.answer, f.hasAnswer = value(mem.FinalAnswer)
	f.failure, f.hasFailure = value(mem.Error)
}

// begun makes the fields what an event found, after it was folded: what a fork
// begins with is its parent's writing, and only the fork's own entry of the trace is
// the event's.
func (f *fields) begun(after *reducer.Memory, e *events.Event) {
	if e.Type() == events.TypeForked {
		f.note(after)
		f.trace = endsOf(after.Trace[:len(after.Trace)-1])
	}
}

func value[T any](p *T) (v T, ok bool) {
	if p == nil {
		return v, false
	}
	return *p, true
}

// change is what an event did to a field.
type change int

const (
	kept change = iota
	written
	cleared
	// replaced is a list that lost what was in it.
	replaced
)

func slot[T comparable](before T, had bool, after T, has bool) change {
	switch {
	case had == has && before == after:
		return kept
	case has:
		return written
	}
	return cleared
}

// list compares by length and ends, so that the check does not grow with the
// run.
func list[T comparable](before, after ends[T]) change {
	switch {
	case after.n < before.n, before.n > 0 && after.first != before.first:
		return replaced
	case after.n > before.n:
		return written
	case after.last != before.last:
		return replaced
	}
	return kept
}

// grant lets events change a field: those of a state, or those of the named
// types, or of both. Empty means any.
type grant struct {
	change change
	state  events.State
	types  []events.Type
	mode   events.Mode
}

func (g grant) covers(what change, e *events.Event, mode events.Mode) bool {
	return g.change == what && (g.state == "" || g.state == e.From) &&
		(len(g.types) == 0 || slices.Contains(g.types, e.Type())) && (g.mode == "" || g.mode == mode)
}

// owner says who may change a field of memory.
type owner struct {
	field  string
	diff   func(before, after *fields) change
	grants []grant
}

// owners is SPEC section 3's table of who may write what. Errors are the
// exception to its letter: whatever leads to Error by the transition table says
// why, from any state.
var owners = []owner{
	{
		field: "step",
		diff: func(a, b *fields) change {
			if b.step < a.step {
				return cleared
			}
			return slot(a.step, true, b.step, true)
		},
		grants: []grant{{change: written, state: events.Planning}},
	},
	{
		field: "current_tool_call",
		diff:  func(a, b *fields) change { return slot(a.current, a.hasCurrent, b.current, b.hasCurrent) },
		grants: []grant{
			{change: written, state: events.Planning},
			{change: written, state: events.WaitingForHuman, types: []events.Type{events.TypeHumanModified}},
			{change: cleared, state: events.Observing},
		},
	},
	{
		field: "last_observation",
		diff:  func(a, b *fields) change { return slot(a.observation, a.hasObserved, b.observation, b.hasObserved) },
		grants: []grant{
			{change: written, state: events.Acting},
			{change: written, state: events.WaitingForHuman, types: []events.Type{events.TypeHumanRejected, events.TypeApprovalExpired}},
			{change: cleared, state: events.Observing},
		},
	},
	{
		field: "final_answer",
		diff:  func(a, b *fields) change { return slot(a.answer, a.hasAnswer, b.answer, b.hasAnswer) },
		grants: []grant{
			{change: written, state: events.Planning},
			{change: cleared, types: []events.Type{events.TypeUserMessage}, mode: events.ModeChat},
		},
	},
	{
		field: "error",
		diff:  func(a, b *fields) change { return slot(a.failure, a.hasFailure, b.failure, b.hasFailure) },
		grants: []grant{{change: written, types: []events.Type{
			events.TypeMaxSteps, events.TypeFatalError, events.TypeBudgetExceeded,
		}}},
	},
	{
		field: "history",
		diff:  func(a, b *fields) change { return list(a.history, b.history) },
		grants: []grant{
			{change: written, state: events.Observing},
			// A summary of nothing adds the first entry.
			{change: written, state: events.Reflecting},
			{change: replaced, state: events.Reflecting},
		},
	},
	{
		field:  "trace",
		diff:   func(a, b *fields) change { return list(a.trace, b.trace) },
		grants: []grant{{change: written}},
	},
}

// checkOwnership returns what is wrong with an event's changes to memory; empty
// if nothing is.
func checkOwnership(before, after *fields, e *events.Event) string {
	for _, o := range owners {
		what := o.diff(before, after)
		if what == kept {
			continue
		}
		if !slices.ContainsFunc(o.grants, func(g grant) bool { return g.covers(what, e, after.mode) }) {
			return fmt.Sprintf("%s %s %s, which %s may not do", e.Type(), verb(what), o.field, e.From.Name())
		}
	}
	if after.trace.n != before.trace.n+1 {
		return fmt.Sprintf("%s adds %d entries to trace, every event adds one", e.Type(), after.trace.n-before.trace.n)
	}
	return ""
}

func verb(c change) string {
	switch c {
	case cleared:
		return "clears"
	case replaced:
		return "replaces"
	}
	return "writes"
}
