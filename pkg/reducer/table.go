package reducer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// Row is one edge: in state From, event Event leads to state To. A row with an
// empty From stands for every state that is not terminal.
type Row struct {
	From  events.State
	Event events.Type
	To    events.State
}

// TableSpec is a transition table in the making. Start from the [Table.Spec] of
// [DefaultTable] to extend the built-in one.
type TableSpec struct {
	Initial  events.State
	Terminal []events.State
	Rows     []Row
	// Stay are the events that leave the state as it is, in every state that is
	// not terminal.
	Stay []events.Type
}

// defaultSpec returns the rows of the built-in table.
func defaultSpec() TableSpec {
	spec := TableSpec{Initial: events.Idle, Terminal: []events.State{events.Done, events.Errored, events.Cancelled}}
	for i := range rules {
		r := &rules[i]
		for _, m := range r.moves {
			spec.Rows = append(spec.Rows, Row{From: m.from, Event: r.typ, To: m.to})
		}
		if r.stays {
			spec.Stay = append(spec.Stay, r.typ)
		}
	}
	return spec
}

// DefaultTable returns the built-in table.
func DefaultTable() *Table {
	t, err := NewTable(defaultSpec())
	if err != nil {
		panic("the built-in transition table is wrong: " + err.Error())
	}
	return t
}

// cell is what an event does in a state.
type cell struct {
	to events.State
	// moves says that a row has it, rather than that it leaves the state as it is.
	moves bool
	// from is who may publish it there.
	from origin
	// young says that not every run which the table can read may hold it.
	young bool
	rule  *rule
}

// Table is a checked transition table. It never changes after [NewTable]; what
// is not in it cannot happen.
type Table struct {
	spec     TableSpec
	terminal map[events.State]bool
	states   []events.State
	// cells are the types of each state; those under the empty state are what any
	// state has that is not the table's.
	cells map[events.State]map[events.Type]cell
	// revision is that of the builds which have this table, hash the table's identity,
	// and revisions has that of each identity that it can read.
	revision  int
	hash      string
	revisions map[string]int
	// older is the hash of the release before this one.
	older string
}

// NewTable checks a table: no row twice, none out of a terminal state, every
// state reachable from the initial one, and a way out of every state that is
// not terminal. The error names the first row or state that is wrong.
func NewTable(spec TableSpec) (*Table, error) { return newTable(spec, Revision) }

func newTable(spec TableSpec, revision int) (*Table, error) {
	t := &Table{
		spec: TableSpec{
			Initial: spec.Initial, Terminal: slices.Compact(slices.Sorted(slices.Values(spec.Terminal))), Rows: slices.Clone(spec.Rows),
			Stay: slices.Compact(slices.Sorted(slices.Values(spec.Stay))),
		},
		terminal: map[events.State]bool{}, revision: revision,
	}
	for _, s := range spec.Terminal {
		t.terminal[s] = true
	}
	if !events.ValidToken(string(spec.Initial)) || reserved(spec.Initial) {
		return nil, fmt.Errorf("initial state %q: is not a state of [a-z0-9][a-z0-9_-]{0,62}", spec.Initial)
	}
	slices.SortStableFunc(t.spec.Rows, compareRows)
	for i, row := range t.spec.Rows {
		if err := t.checkRow(row); err != nil {
			return nil, err
		}
		if i > 0 && compareRows(t.spec.Rows[i-1], row) == 0 {
			return nil, fmt.Errorf("transition %s + %s: stands there twice, to %s and to %s", row.From, row.Event, t.spec.Rows[i-1].To, row.To)
		}
	}
	t.states = t.allStates()
	if err := t.checkStates(); err != nil {
		return nil, err
	}
	t.identify()
	t.cells = map[events.State]map[events.Type]cell{"": t.cellsOf("")}
	for _, s := range t.states {
		t.cells[s] = t.cellsOf(s)
	}
	return t, nil
}

func compareRows(a, b Row) int {
	if c := strings.Compare(string(a.From), string(b.From)); c != 0 {
		return c
	}
	return strings.Compare(string(a.Event), string(b.Event))
}

func (t *Table) checkRow(row Row) error {
	switch {
	case row.Event == "" || !events.ValidToken(string(row.To)) || (row.From != "" && !events.ValidToken(string(row.From))):
		return fmt.Errorf("transition %s + %s -> %s: states are [a-z0-9][a-z0-9_-]{0,62} and the event has a name", row.From, row.Event, row.To)
	case row.Event == events.TypeForked:
		return fmt.Errorf("transition %s + %s: a fork continues in the state that its parent was in, and has no row", row.From, row.Event)
	case reserved(row.From) || reserved(row.To):
		return fmt.Errorf("transition %s + %s -> %s: %s and %s are no states", row.From, row.Event, row.To, events.Control, events.Nobody)
	case t.terminal[row.From]:
		return fmt.Errorf("transition %s + %s: %s is terminal, nothing leaves it", row.From, row.Event, row.From)
	}
	return nil
}

func reserved(s events.State) bool { return s == events.Control || s == events.Nobody }

func (t *Table) allStates() []events.State {
	set := maps.Clone(t.terminal)
	set[t.spec.Initial] = true
	for _, row := range t.spec.Rows {
		set[row.To] = true
		if row.From != "" {
			set[row.From] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func (t *Table) checkStates() error {
	reached := map[events.State]bool{t.spec.Initial: true}
	for grew := true; grew; {
		grew = false
		for _, row := range t.spec.Rows {
			if (row.From == "" || reached[row.From]) && !reached[row.To] {
				reached[row.To], grew = true, true
			}
		}
	}
	for _, s := range t.states {
		if !reached[s] {
			return fmt.Errorf("state %s: nothing leads there from %s", s, t.spec.Initial)
		}
		if !t.terminal[s] && !slices.ContainsFunc(t.spec.Rows, func(r Row) bool { return r.From == s && r.To != s }) {
			return fmt.Errorf("state %s: no row leads out of it; add one or declare it terminal", s)
		}
	}
	return nil
}

// cellsOf works out what each type does in a state. A row of the state goes before
// one of every state, and both before leaving the state as it is.
func (t *Table) cellsOf(state events.State) map[events.Type]cell {
	cells := map[events.Type]cell{}
	if t.terminal[state] {
		return cells
	}
	put := func(typ events.Type, to events.State, moves bool) {
		r := ruleFor(typ)
		from := r.from
		if slices.Contains(r.ownIn, state) {
			from |= own
		}
		since := max(events.Since(typ), rowsSince[Row{From: state, Event: typ, To: to}])
		cells[typ] = cell{to: to, moves: moves, from: from, young: r.form != nil || since > anyoneReads, rule: r}
	}
	if state != t.spec.Initial {
		for _, typ := range t.spec.Stay {
			put(typ, state, false)
		}
	}
	// The rows are sorted, those of every state first.
	for _, row := range t.spec.Rows {
		if row.From == "" || row.From == state {
			put(row.Event, row.To, true)
		}
	}
	return cells
}

// cell returns what an event does in a state, and whether the table allows it there.
func (t *Table) cell(state events.State, typ events.Type) (cell, bool) {
	cells, known := t.cells[state]
	if !known {
		cells = t.cells[""]
	}
	c, ok := cells[typ]
	if c.to == "" {
		c.to = state
	}
	return c, ok
}

// Next returns the state that the event leads to, and whether the table allows
// it at all.
func (t *Table) Next(from events.State, event events.Type) (events.State, bool) {
	c, ok := t.cell(from, event)
	if !ok {
		return "", false
	}
	return c.to, true
}

// forks returns the states that a Forked may lead to from the initial one,
// sorted: every one that a run can continue in. Which one it is its parent's log
// says, so Forked has no row and is no part of the table's identity.
func (t *Table) forks() []events.State {
	return slices.DeleteFunc(t.States(), func(s events.State) bool { return s == t.spec.Initial || t.terminal[s] })
}

// Transition reports whether the event is a row's (of this state or of every
// state) rather than one that only changes memory.
func (t *Table) Transition(from events.State, event events.Type) bool {
	c, ok := t.cell(from, event)
	return ok && c.moves
}

// Terminal reports whether the state ends a run.
func (t *Table) Terminal(s events.State) bool { return t.terminal[s] }

// Initial returns the state before the first event.
func (t *Table) Initial() events.State { return t.spec.Initial }

// States returns every state, sorted.
func (t *Table) States() []events.State { return slices.Clone(t.states) }

// Spec returns what the table was made of, sorted.
func (t *Table) Spec() TableSpec {
	s := t.spec
	s.Terminal, s.Rows, s.Stay = slices.Clone(s.Terminal), slices.Clone(s.Rows), slices.Clone(s.Stay)
	return s
}
