package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/custom"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Handler does the work of a state of one's own. The memory is a copy, to be read and
// dropped. It returns the event that follows, made by [Emit], for which the graph has a
// row out of the state; an event without one ends the run (invalid_transition).
//
// An error, a panic, no event at all and one that cannot be stored count as a failed
// attempt: the handler is asked again, a few times, ever later, and then the run ends
// (attempts_exhausted). What cannot be mended by another attempt is an
// *[events.FatalError].
//
// It is called from several goroutines and returns soon after ctx ends. After a crash
// it is asked again although it may have done its work, so it looks before it does
// anything twice.
type Handler func(ctx context.Context, mem *Memory) (events.Payload, error)

// Emit makes an event of one's own, with data that JSON writes as an object; nil is
// an empty one.
func Emit(event events.Type, data any) (events.Payload, error) {
	if data == nil {
		return &events.Custom{Name: event, Data: json.RawMessage("{}")}, nil
	}
	text, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", event, err)
	}
	if !bytes.HasPrefix(text, []byte("{")) {
		return nil, fmt.Errorf("event %s: its data is %.20s, not a JSON object", event, text)
	}
	return &events.Custom{Name: event, Data: text}, nil
}

// Data reads what [Emit] put into an event; nothing is read from other events.
func Data(e *events.Event, into any) error {
	p, ok := e.Data.(*events.Custom)
	if !ok {
		return fmt.Errorf("event %s is not of the application's own", e.Type())
	}
	return json.Unmarshal(p.Data, into)
}

// Graph is the built-in transition table with states, events, transitions and memory
// of one's own. Of two transitions out of one state by one event the last holds,
// also over a built-in one.
//
// A run is bound to its graph: a program without it leaves the run alone, and
// says which one is missing. So every process that serves the bus of such a run has
// the same Graph, and one that changes gets runs of its own. What its folds do
// must not change while runs go on.
type Graph struct {
	spec    reducer.TableSpec
	rows    map[edge]events.State
	types   []events.TypeSpec
	folds   map[events.Type]reducer.Fold
	states  map[events.State]Handler
	timeout time.Duration
}

type edge struct {
	from  events.State
	event events.Type
}

// NewGraph begins with the built-in graph.
func NewGraph() *Graph {
	g := &Graph{
		spec: reducer.DefaultSpec(), rows: map[edge]events.State{}, folds: map[events.Type]reducer.Fold{}, states: map[events.State]Handler{},
	}
	for _, row := range g.spec.Rows {
		g.rows[edge{row.From, row.Event}] = row.To
	}
	return g
}

// Event adds events by their names. The older versions of an event are lifted by
// upcasters, if its data changed since runs were recorded.
func (g *Graph) Event(event events.Type, upcasters ...events.Upcaster) *Graph {
	g.types = append(g.types, events.TypeSpec{Type: event, Upcasters: upcasters})
	return g
}

// State adds a state with its handler. With a nil handler a run that comes there
// ends (no_handler_for_state).
func (g *Graph) State(state events.State, handler Handler) *Graph {
	g.states[state] = handler
	return g
}

// Terminal adds states in which a run ends.
func (g *Graph) Terminal(states ...events.State) *Graph {
	g.spec.Terminal = append(g.spec.Terminal, states...)
	return g
}

// Row adds the transition by which event leads from one state to another. An empty
// from stands for every state that does not end the run.
func (g *Graph) Row(from events.State, event events.Type, to events.State) *Graph {
	g.rows[edge{from, event}] = to
	return g
}

// Stay adds events of one's own that change memory alone, in any state.
func (g *Graph) Stay(types ...events.Type) *Graph {
	g.spec.Stay = append(g.spec.Stay, types...)
	return g
}

// Fold has a function change memory after each event of a type, built-in ones
// too, see [reducer.Fold], [reducer.Memory.Keep] and [reducer.Memory.Note].
func (g *Graph) Fold(event events.Type, fold reducer.Fold) *Graph {
	g.folds[event] = fold
	return g
}

// Timeout bounds one call of a handler. Default 10 min.
func (g *Graph) Timeout(d time.Duration) *Graph { g.timeout = d; return g }

// built returns the graph as it is now; nil stays nil.
func (g *Graph) built() *Graph {
	if g == nil {
		return nil
	}
	c := *g
	c.spec.Terminal, c.spec.Stay = slices.Clone(g.spec.Terminal), slices.Clone(g.spec.Stay)
	c.rows, c.folds, c.states, c.types = maps.Clone(g.rows), maps.Clone(g.folds), maps.Clone(g.states), slices.Clone(g.types)
	return &c
}

// Machine returns the machine that folds runs of the graph, to verify and replay
// them with. A nil graph is the built-in one. The error names what is wrong with
// the table.
func (g *Graph) Machine() (*reducer.Machine, error) {
	if g == nil {
		return reducer.NewMachine(reducer.MachineOptions{}), nil
	}
	spec := g.spec
	spec.Rows = nil
	for key, to := range g.rows {
		spec.Rows = append(spec.Rows, reducer.Row{From: key.from, Event: key.event, To: to})
	}
	table, err := reducer.NewTable(spec)
	if err != nil {
		return nil, fmt.Errorf("graph: %w", err)
	}
	codec, err := events.NewCodec(g.types...)
	if err != nil {
		return nil, fmt.Errorf("graph: %w", err)
	}
	o := reducer.MachineOptions{Table: table, Folds: g.folds}
	if len(g.types) > 0 {
		o.Codec = codec
	}
	if err := g.check(table); err != nil {
		return nil, fmt.Errorf("graph: %w", err)
	}
	return reducer.NewMachine(o), nil
}

// check reports names that do not belong together: most of them are misspelled.
func (g *Graph) check(table *reducer.Table) error {
	known := events.Types()
	for _, t := range g.types {
		known = append(known, t.Type)
	}
	used := slices.Clone(g.spec.Stay)
	for key := range g.rows {
		used = append(used, key.event)
	}
	used = slices.AppendSeq(used, maps.Keys(g.folds))
	slices.Sort(used)
	for _, event := range used {
		if !slices.Contains(known, event) {
			return fmt.Errorf("event %s: is used, but not added with Event", event)
		}
	}
	builtIn := reducer.DefaultTable().States()
	for _, state := range slices.Sorted(maps.Keys(g.states)) {
		switch {
		case slices.Contains(builtIn, state):
			return fmt.Errorf("state %s: is built in, its work cannot be replaced", state)
		case table.Terminal(state):
			return fmt.Errorf("state %s: is terminal, so it has no work", state)
		case !slices.Contains(table.States(), state):
			return fmt.Errorf("state %s: no row leads there", state)
		}
	}
	for _, state := range table.States() {
		_, has := g.states[state]
		if !has && !table.Terminal(state) && !slices.Contains(builtIn, state) {
			return fmt.Errorf("state %s: is in a row, but neither added with State nor with Terminal", state)
		}
	}
	return nil
}

// handlers are the states that are served; none for a nil graph.
func (g *Graph) handlers() map[events.State]custom.Handler {
	if g == nil {
		return nil
	}
	handlers := map[events.State]custom.Handler{}
	for state, handler := range g.states {
		handlers[state] = custom.Handler(handler)
	}
	return handlers
}

// handlerTimeout is what bounds a handler, 0 for the default.
func (g *Graph) handlerTimeout() time.Duration {
	if g == nil {
		return 0
	}
	return g.timeout
}
