package reducer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// Edge is one way that an event can take over the bus: what stands in its
// subject for `<from>`, `<to>` and `<pool>`. The pool is [events.Wildcard] where
// it is that of a tool.
type Edge struct {
	From, To events.State
	Pool     string
}

// only are the states in which an event that leaves the state as it is can be
// legal; those that are not named are legal in all.
var only = map[events.Type][]events.State{
	events.TypeToolCallDispatched: {events.ParallelActing},
	events.TypeToolCallStarted:    {events.Acting, events.ParallelActing},
	events.TypeToolCallResult:     {events.ParallelActing},
	events.TypeHumanDecision:      {events.WaitingForHuman},
	events.TypeHandedOff:          {events.Acting},
}

// Edges returns every edge that a legal event can take in some run, sorted. It
// is to permissions what [Origins] and [Route] are to one event of one run:
// whatever those give for a legal event is among them.
func Edges(t *Table) []Edge {
	found := map[Edge]bool{}
	for _, state := range t.states {
		for _, typ := range t.eventsIn(state) {
			for _, from := range originsIn(t, state, typ) {
				for _, way := range routesIn(t, state, typ) {
					way.From = from
					found[way] = true
				}
			}
		}
	}
	edges := make([]Edge, 0, len(found))
	for e := range found {
		if e.Pool == events.Wildcard || !found[Edge{e.From, e.To, events.Wildcard}] {
			edges = append(edges, e)
		}
	}
	slices.SortFunc(edges, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Pool, b.Pool))
	})
	return edges
}

// CheckEdge reports an event that is legal on its subject in no run: one of another
// run, one that the table does not have there, one whose `<from>` does not belong to
// whoever may say such a thing, or an end that is not where ends are. It is what a
// reader can hold an event to that does not fold its run; nil is no proof.
func CheckEdge(t *Table, s events.Subject, e *events.Event) error {
	typ := e.Type()
	to, ok := t.Next(e.From, typ)
	if typ == events.TypeForked {
		to, ok = e.To, e.From == t.initial && slices.Contains(t.Forks(), e.To)
	}
	switch {
	case e.Run != s.Run.ID:
		return fmt.Errorf("belongs to run %s (subject: %s)", e.Run, s.Run.ID)
	case !ok:
		return &TransitionError{From: e.From, Event: typ}
	case e.To != to:
		return fmt.Errorf("to is %s, the table leads from %s by %s to %s", e.To, e.From, typ, to)
	case !slices.Contains(originsIn(t, e.From, typ), s.From):
		return fmt.Errorf("%s in state %s may not come from %s", typ, e.From, s.From)
	case s.To != e.To && (t.terminal[s.To] || t.terminal[e.To]):
		return fmt.Errorf("leads to %s and is on a subject to %s", e.To, s.To)
	}
	return nil
}

// eventsIn returns the types that can be legal in a state.
func (t *Table) eventsIn(state events.State) []events.Type {
	var types []events.Type
	add := func(typ events.Type) {
		states, limited := only[typ]
		if _, ok := t.Next(state, typ); ok && (!limited || slices.Contains(states, state)) {
			types = append(types, typ)
		}
	}
	for _, row := range t.rows {
		if row.From == state || row.From == "" {
			add(row.Event)
		}
	}
	for typ := range t.stay {
		add(typ)
	}
	if state == t.initial {
		// A fork's own first event stands beside the table: it leads wherever the
		// other run stood.
		types = append(types, events.TypeForked)
	}
	return types
}

// originsIn is [Origins] for every run in that state.
func originsIn(t *Table, state events.State, typ events.Type) []events.State {
	switch typ {
	case events.TypeCancelled, events.TypePaused, events.TypeResumed, events.TypeBudgetRaised:
		return []events.State{events.Control}
	case events.TypeUserMessage:
		if state == events.WaitingForUser {
			return withControl(state, true)
		}
		return []events.State{events.Control}
	case events.TypeFatalError:
		return append(t.States(), events.Control)
	case events.TypeLLMAttemptFailed:
		if state != events.Planning && state != t.initial {
			return []events.State{state, events.Planning} // see [events.LLMAttemptFailed.Interrupted]
		}
	case events.TypeBudgetExceeded, events.TypeContextWindowExpanded, events.TypeToolCallsAddedToContext,
		events.TypeToolCallResult, events.TypeToolFailure:
		return withControl(state, true)
	case events.TypeToolCallDispatched:
		return []events.State{events.Planning}
	}
	return []events.State{state}
}

// routesIn is [Route] for every run in that state.
func routesIn(t *Table, state events.State, typ events.Type) []Edge {
	nobody := Edge{To: events.Nobody, Pool: events.DefaultPool}
	switch typ {
	case events.TypeToolCallDispatched:
		return []Edge{tools(events.ParallelActing)}
	case events.TypeToolCallResult, events.TypeLLMParallelToolCalls:
		return []Edge{tools(events.ParallelActing), nobody}
	case events.TypeHandedOff:
		return []Edge{{To: events.Nobody, Pool: events.AgentsPool}}
	case events.TypeHumanDecision:
		return []Edge{plain(events.WaitingForHuman), nobody}
	case events.TypeResumed:
		return redrives(state)
	case events.TypeForked:
		var ways []Edge
		for _, at := range t.states {
			if !t.terminal[at] && at != t.initial {
				ways = append(ways, redrives(at)...)
			}
		}
		return ways
	case events.TypeContextWindowExpanded, events.TypeToolCallsAddedToContext:
		if state == events.Planning {
			return []Edge{plain(events.Planning), nobody}
		}
		return []Edge{nobody}
	case events.TypeLLMToolCall, events.TypeHumanApproved, events.TypeHumanModified:
		return []Edge{tools(events.Acting)}
	case events.TypeHumanApprovedParallel:
		return redrives(events.ParallelActing)
	}
	if !t.Transition(state, typ) {
		return []Edge{nobody}
	}
	next, _ := t.Next(state, typ)
	if t.terminal[next] {
		return []Edge{plain(next), {To: next, Pool: events.AgentsPool}}
	}
	return []Edge{plain(next)}
}

// redrives are the ways on which a state's work can be driven once more.
func redrives(state events.State) []Edge {
	switch state {
	case events.Acting:
		return []Edge{tools(state)}
	case events.ParallelActing:
		return []Edge{tools(state), plain(events.Planning)}
	}
	return []Edge{plain(state)}
}

func tools(to events.State) Edge { return Edge{To: to, Pool: events.Wildcard} }

func plain(to events.State) Edge { return Edge{To: to, Pool: events.DefaultPool} }
