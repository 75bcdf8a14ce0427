package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/custom"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Handler does the work of a state. It returns the next event, made by [Emit], or, in a
// built-in state, the event of [Work.Next] or another one that is legal there. The graph must have a row for the event out of the state, otherwise the
// run ends with invalid_transition.
//
// An error, a panic, a nil event and an event that cannot be stored count as a failed
// attempt. The handler is called again a few times, with growing pauses. Then the run ends
// with attempts_exhausted. Return an *[events.FatalError] if another attempt cannot help.
//
// A Handler is called from several goroutines and returns soon after ctx ends. It is called
// again after a crash even if it did its work, so it must make repeated work harmless.
type Handler func(ctx context.Context, w *Work) (events.Payload, error)

// Emit makes a custom event. data is a value whose JSON is an object; nil is an empty one.
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

// Data reads the data of a custom event, see [Emit]. Other events are an error.
func Data(e *events.Event, into any) error {
	p, ok := e.Data.(*events.Custom)
	if !ok {
		return fmt.Errorf("event %s is not of the application's own", e.Type())
	}
	return json.Unmarshal(p.Data, into)
}

// Graph is the built-in transition table with custom states, events, transitions and folds.
// A transition replaces an earlier one out of the same state by the same event, including
// built-in ones.
//
// A run is bound to its graph. A program without that graph leaves the run alone and logs
// which graph is missing. So every process that serves the run needs the same Graph. A
// changed graph applies to new runs. Folds must not change while runs are unfinished.
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

// NewGraph returns the built-in graph.
func NewGraph() *Graph {
	g := &Graph{
		spec: reducer.DefaultTable().Spec(), rows: map[edge]events.State{}, folds: map[events.Type]reducer.Fold{}, states: map[events.State]Handler{},
	}
	for _, row := range g.spec.Rows {
		g.rows[edge{row.From, row.Event}] = row.To
	}
	return g
}

// Event adds an event. Upcasters convert older versions of its data, if the data changed
// since runs were recorded.
func (g *Graph) Event(event events.Type, upcasters ...events.Upcaster) *Graph {
	g.types = append(g.types, events.TypeSpec{Type: event, Upcasters: upcasters})
	return g
}

// State adds a state with its handler. With a nil handler, a run that reaches the state
// ends with no_handler_for_state.
//
// State also changes what a built-in state does: planning, acting and parallel_acting (whose
// handlers are called for each tool call), observing, reflecting and paging. The handler
// wraps the state's own work, which [Work.Next] does, or replaces it. The event is appended
// by the role that owns the state, under the same rules as its own: so a call still needs its
// approval, and an event that is not legal there ends the run. Such a graph differs from the
// built-in one, so only programs with the handler serve its runs.
func (g *Graph) State(state events.State, handler Handler) *Graph {
	g.states[state] = handler
	return g
}

// Terminal adds states that end a run.
func (g *Graph) Terminal(states ...events.State) *Graph {
	g.spec.Terminal = append(g.spec.Terminal, states...)
	return g
}

// Row adds a transition: event leads from one state to another. An empty from means every
// state that is not terminal.
func (g *Graph) Row(from events.State, event events.Type, to events.State) *Graph {
	g.rows[edge{from, event}] = to
	return g
}

// Stay adds custom events that change only memory, in any state.
func (g *Graph) Stay(types ...events.Type) *Graph {
	g.spec.Stay = append(g.spec.Stay, types...)
	return g
}

// Fold adds a function that changes memory after each event of a type, which may be built
// in. See [reducer.Fold], [reducer.Memory.Keep] and [reducer.Memory.Note].
func (g *Graph) Fold(event events.Type, fold reducer.Fold) *Graph {
	g.folds[event] = fold
	return g
}

// Timeout bounds one call of a handler. Default 10 min.
func (g *Graph) Timeout(d time.Duration) *Graph { g.timeout = d; return g }

// built returns a copy of the graph; nil stays nil.
func (g *Graph) built() *Graph {
	if g == nil {
		return nil
	}
	c := *g
	c.spec.Terminal, c.spec.Stay = slices.Clone(g.spec.Terminal), slices.Clone(g.spec.Stay)
	c.rows, c.folds, c.states, c.types = maps.Clone(g.rows), maps.Clone(g.folds), maps.Clone(g.states), slices.Clone(g.types)
	return &c
}

// Machine returns the machine that folds runs of the graph, for verification and replay. A
// nil graph is the built-in one. The error says what is wrong with the table.
func (g *Graph) Machine() (*reducer.Machine, error) {
	if g == nil {
		return reducer.NewMachine(reducer.MachineOptions{}), nil
	}
	spec, types := g.spec, g.types
	spec.Rows = nil
	for state := range g.states {
		if custom.Wraps(state) { // an event that never happens makes the table another one
			mark := events.Type("Handles" + strings.ReplaceAll(string(state), "_", ""))
			spec.Stay, types = append(slices.Clip(spec.Stay), mark), append(slices.Clip(types), events.TypeSpec{Type: mark})
		}
	}
	slices.Sort(spec.Stay[len(g.spec.Stay):])
	for key, to := range g.rows {
		spec.Rows = append(spec.Rows, reducer.Row{From: key.from, Event: key.event, To: to})
	}
	table, err := reducer.NewTable(spec)
	if err == nil {
		err = g.check(table)
	}
	if err != nil {
		return nil, fmt.Errorf("graph: %w", err)
	}
	codec, err := events.NewCodec(types...)
	if err != nil {
		return nil, fmt.Errorf("graph: %w", err)
	}
	o := reducer.MachineOptions{Table: table, Folds: g.folds}
	if len(types) > 0 {
		o.Codec = codec
	}
	return reducer.NewMachine(o), nil
}

// check reports inconsistent names, which are usually misspelled.
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
		case custom.Wraps(state):
			if g.states[state] == nil {
				return fmt.Errorf("state %s: is built in and needs a handler to change what it does", state)
			}
		case slices.Contains(builtIn, state):
			return fmt.Errorf("state %s: is built in and has no work", state)
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

// own returns the graph's own states.
func (g *Graph) own() []events.State {
	if g == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(g.states)), custom.Wraps)
}

// handlers returns the handlers by state; none for a nil graph. They use the tools of the
// registry.
func (g *Graph) handlers(h *host.Host, tools *toolset.Registry) map[events.State]custom.Handler {
	handlers := map[events.State]custom.Handler{}
	if g == nil {
		return handlers
	}
	for state, handler := range g.states {
		if handler == nil {
			handlers[state] = nil
			continue
		}
		handlers[state] = func(ctx context.Context, v custom.Visit) (events.Payload, error) {
			w, end := newWork(h, tools, v)
			defer end()
			return handler(ctx, w)
		}
	}
	return handlers
}

// handlerTimeout bounds one call of a handler; 0 is the default.
func (g *Graph) handlerTimeout() time.Duration {
	if g == nil {
		return 0
	}
	return g.timeout
}
