package reducer

import (
	"cmp"
	"fmt"
	"maps"
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

// tools is the way to the actors of a state, in the pool of a tool; plain is that to
// the state's one inbox, and nobody is for what wakes no worker.
func tools(to events.State) Edge { return Edge{To: to, Pool: events.Wildcard} }

func plain(to events.State) Edge { return Edge{To: to, Pool: events.DefaultPool} }

var nobody = Edge{To: events.Nobody, Pool: events.DefaultPool}

// only are ways that are the same in every state.
func only(ways ...Edge) func(*Table, events.State) []Edge {
	return func(*Table, events.State) []Edge { return ways }
}

// Edges returns every edge that a legal event can take in some run, sorted. Permissions are
// granted on them.
func Edges(t *Table) []Edge {
	found := map[Edge]bool{}
	for _, state := range t.states {
		cells := maps.Clone(t.cells[state])
		if state == t.spec.Initial {
			// A fork's first event is not in the table: it leads to the state of the
			// other run.
			cells[events.TypeForked] = cell{from: own, rule: ruleOf[events.TypeForked]}
		}
		for typ, c := range cells {
			if c.rule.in != nil && !slices.Contains(c.rule.in, state) {
				continue
			}
			for _, from := range t.origins(c.from, state) {
				for _, way := range t.ways(c, state, typ) {
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

// CheckEdge returns an error for an event that is legal on its subject in no run: one of
// another run, one that the table does not have there, one whose `<from>` may not publish
// it, or an end on a subject that does not lead to it. Readers that do not fold the run
// use it. A nil error proves nothing.
func CheckEdge(t *Table, s events.Subject, e *events.Event) error {
	typ := e.Type()
	to, ok := t.Next(e.From, typ)
	if typ == events.TypeForked {
		to, ok = e.To, e.From == t.spec.Initial && slices.Contains(t.forks(), e.To)
	}
	switch {
	case e.Run != s.Run.ID:
		return fmt.Errorf("belongs to run %s (subject: %s)", e.Run, s.Run.ID)
	case !ok:
		return &TransitionError{From: e.From, Event: typ}
	case e.To != to:
		return fmt.Errorf("to is %s, the table leads from %s by %s to %s", e.To, e.From, typ, to)
	case !MayCome(t, typ, e.From, s.From):
		return fmt.Errorf("%s in state %s may not come from %s", typ, e.From, s.From)
	case s.To != e.To && (t.terminal[s.To] || t.terminal[e.To]):
		return fmt.Errorf("leads to %s and is on a subject to %s", e.To, s.To)
	}
	return nil
}

// MayCome reports whether an event of that type that happens in a state may have the
// `<from>` on its subject in some run. The event need not be legal there.
func MayCome(t *Table, typ events.Type, in, from events.State) bool {
	c, ok := t.cell(in, typ)
	if !ok {
		c.from = ruleFor(typ).from
	}
	return t.allows(c.from, in, from)
}

// allows reports whether the origin includes a `<from>` in a state.
func (t *Table) allows(o origin, in, from events.State) bool {
	return o&own != 0 && from == in || o&control != 0 && from == events.Control ||
		o&planning != 0 && from == events.Planning || o&everyState != 0 && slices.Contains(t.states, from)
}

// origins lists the `<from>` that the origin includes in a state.
func (t *Table) origins(o origin, in events.State) []events.State {
	all := append(t.States(), events.Control)
	return slices.DeleteFunc(all, func(from events.State) bool { return !t.allows(o, in, from) })
}

// ways are the `<to>` and `<pool>` that an event can have in a state.
func (t *Table) ways(c cell, state events.State, typ events.Type) []Edge {
	switch {
	case c.rule.ways != nil:
		return c.rule.ways(t, state)
	case !c.moves:
		return []Edge{nobody}
	case t.terminal[c.to]:
		return []Edge{plain(c.to), {To: c.to, Pool: events.AgentsPool}}
	}
	return []Edge{plain(c.to)}
}

// route is where the run's next event goes, which was found legal: the `<to>` and the
// `<pool>` of its subject.
func (t *Table) route(mem *Memory, c cell, p events.Payload) (to events.State, pool string) {
	switch {
	case c.rule.route != nil:
		return c.rule.route(mem, p)
	case !c.moves:
		return events.Nobody, events.DefaultPool
	case t.terminal[c.to] && mem.Control.Parent != nil:
		return c.to, events.AgentsPool
	}
	return c.to, events.DefaultPool
}

// redrives are the ways on which a state's work can be delivered once more.
func redrives(state events.State) []Edge {
	switch state {
	case events.Acting:
		return []Edge{tools(state)}
	case events.ParallelActing:
		return []Edge{tools(state), plain(events.Planning)}
	}
	return []Edge{plain(state)}
}

// anyRedrive are the ways of a fork, which continues in the state of its parent.
func anyRedrive(t *Table, _ events.State) []Edge {
	var ways []Edge
	for _, state := range t.forks() {
		ways = append(ways, redrives(state)...)
	}
	return ways
}
