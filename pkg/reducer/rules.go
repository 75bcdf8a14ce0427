package reducer

import (
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// move is a transition of the built-in table. An empty from stands for every state
// that is not terminal.
type move struct{ from, to events.State }

// origin is a set of those whose `<from>` an event's subject may have.
type origin uint8

const (
	// own is the state that the run is in.
	own origin = 1 << iota
	// control is the source of clients' requests and timers: [events.Control].
	control
	// planning is the planner, whatever state the run is in.
	planning
	// everyState is the worker of any state.
	everyState
)

// rule is a row: all that the reducer knows of an event type. It says where the event may
// happen, who may publish it, where it goes, when it is legal and what it does to memory. A
// new type needs a row in the file of its theme, and one in the file of the same name in
// package events. TestEveryTypeIsComplete names the columns that are missing.
type rule struct {
	typ events.Type

	// moves are the type's transitions in the built-in table. stays says that it leaves
	// the state as it is where it has none. in are the states in which it can be legal;
	// nil: all in which the table has it.
	moves []move
	stays bool
	in    []events.State

	// from is who may publish the event, ownIn the states in which the state's own
	// worker may do so too. fromNow narrows that down to one event of one run; nil: no
	// further. agents says that the subject must be on the pool of agents.
	from    origin
	ownIn   []events.State
	fromNow func(mem *Memory, p events.Payload) origin
	agents  bool

	// ways are the `<to>` and `<pool>` of the event's subject in any run that is in the
	// state; route is the one in this run. Both nil: where the table leads.
	ways  func(t *Table, state events.State) []Edge
	route func(mem *Memory, p events.Payload) (events.State, string)
	// drives returns the one call that the event's delivery is responsible for if it goes to an
	// actor, empty for none. Nil: every call of the pool that nobody works on.
	drives func(p events.Payload) string

	// check says why the payload is not legal in the run. legality is the version of
	// everything that decides so; raise it, and [Revision], when that changes.
	check    func(mem *Memory, e *events.Event) error
	legality int
	// form returns the revision that brought the form of this payload, where that is
	// younger than its type; nil: it is not.
	form func(mem *Memory, e *events.Event) int

	// steps is how many planning calls the event accounts for; nil: none.
	steps func(mem *Memory, p events.Payload) int
	fold  func(mem *Memory, e *events.Event)
	// adds says that the fold changes no turn of the conversation whose calls are all
	// answered, and no such answer: it only adds turns and results. It saves work, so it
	// stands only where runs are long.
	adds bool
	// rearms says that the event makes a model call in flight obsolete although the
	// run stays in Planning.
	rearms bool
	// trace is the event's text in [Memory.Trace]. It is a part of memory, so it is
	// never changed for events that are in logs.
	trace func(p events.Payload) string
}

// rules are the built-in types.
var rules = slices.Concat(startRules, planningRules, toolsRules, observingRules, humansRules, contextRules, controlRules)

var ruleOf = func() map[events.Type]*rule {
	all := make(map[events.Type]*rule, len(rules))
	for i := range rules {
		all[rules[i].typ] = &rules[i]
	}
	return all
}()

// customRule is that of an application's own types.
var customRule = rule{
	from: own, check: always, fold: nothing, trace: traced(func(p *events.Custom) string { return string(p.Data) }),
}

// ruleFor returns the rule of a built-in type, and for any other type that of applications'
// types.
func ruleFor(typ events.Type) *rule {
	if r := ruleOf[typ]; r != nil {
		return r
	}
	return &customRule
}

func always(*Memory, *events.Event) error { return nil }

func nothing(*Memory, *events.Event) {}

func oneStep(*Memory, events.Payload) int { return 1 }

// stepsOf is how many planning calls the event counts as.
func (r *rule) stepsOf(mem *Memory, p events.Payload) int {
	if r.steps == nil {
		return 0
	}
	return r.steps(mem, p)
}

// workers are the states whose workers have work in the run's state: its own, and
// Planning where the calls of a batch have to be dispatched.
func (mem *Memory) workers() origin {
	if _, one := mem.singlePool(); mem.State == events.ParallelActing && !one {
		return own | planning
	}
	return own
}

// traced makes the trace text of one type from its payload, shortened.
func traced[P events.Payload](text func(P) string) func(events.Payload) string {
	return func(p events.Payload) string { return cut(text(p.(P)), traceTextLimit) }
}

func says(text string) func(events.Payload) string {
	return func(events.Payload) string { return text }
}
