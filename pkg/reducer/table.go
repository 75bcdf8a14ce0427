package reducer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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

// TableSpec is a transition table in the making. Start from [DefaultSpec] to
// extend the built-in one.
type TableSpec struct {
	Initial  events.State
	Terminal []events.State
	Rows     []Row
	// Stay are the events that leave the state as it is, in every state that is
	// not terminal.
	Stay []events.Type
}

type edge struct {
	from  events.State
	event events.Type
}

// exit is what an event does in a state: where it leads, and whether by a row
// rather than by leaving the state as it is.
type exit struct {
	to  events.State
	row bool
}

// Table is a checked transition table. It never changes after [NewTable]; what
// is not in it cannot happen.
type Table struct {
	initial  events.State
	terminal map[events.State]bool
	states   []events.State
	rows     []Row
	index    map[edge]events.State
	stay     map[events.Type]bool
	// exits holds what the fields before it say, by state and then by event.
	exits map[events.State]map[events.Type]exit
	hash  string
}

// NewTable checks a table: no row twice, none out of a terminal state, every
// state reachable from the initial one, and a way out of every state that is
// not terminal. The error names the first row or state that is wrong.
func NewTable(spec TableSpec) (*Table, error) {
	t := &Table{
		initial: spec.Initial, terminal: map[events.State]bool{}, rows: slices.Clone(spec.Rows),
		index: map[edge]events.State{}, stay: map[events.Type]bool{},
	}
	for _, s := range spec.Terminal {
		t.terminal[s] = true
	}
	for _, typ := range spec.Stay {
		t.stay[typ] = true
	}
	if !events.ValidToken(string(spec.Initial)) || reserved(spec.Initial) {
		return nil, fmt.Errorf("initial state %q: is not a state of [a-z0-9][a-z0-9_-]{0,62}", spec.Initial)
	}
	slices.SortFunc(t.rows, compareRows)
	for _, row := range t.rows {
		if err := t.add(row); err != nil {
			return nil, err
		}
	}
	t.states = t.allStates()
	if err := t.checkStates(); err != nil {
		return nil, err
	}
	t.hash = t.digest()
	t.exits = t.allExits()
	return t, nil
}

// allExits works out every event of every state.
func (t *Table) allExits() map[events.State]map[events.Type]exit {
	types := t.StayTypes()
	for _, row := range t.rows {
		types = append(types, row.Event)
	}
	exits := make(map[events.State]map[events.Type]exit, len(t.states))
	for _, s := range t.states {
		out := map[events.Type]exit{}
		for _, typ := range types {
			if to, ok := t.next(s, typ); ok {
				out[typ] = exit{to: to, row: t.transition(s, typ)}
			}
		}
		exits[s] = out
	}
	return exits
}

func compareRows(a, b Row) int {
	if c := strings.Compare(string(a.From), string(b.From)); c != 0 {
		return c
	}
	return strings.Compare(string(a.Event), string(b.Event))
}

func (t *Table) add(row Row) error {
	switch {
	case row.Event == "" || !events.ValidToken(string(row.To)) || (row.From != "" && !events.ValidToken(string(row.From))):
		return fmt.Errorf("transition %s + %s -> %s: states are [a-z0-9][a-z0-9_-]{0,62} and the event has a name", row.From, row.Event, row.To)
	case row.Event == events.TypeForked:
		return fmt.Errorf("transition %s + %s: a fork goes on in the state that its parent was in, and has no row", row.From, row.Event)
	case reserved(row.From) || reserved(row.To):
		return fmt.Errorf("transition %s + %s -> %s: %s and %s are no states", row.From, row.Event, row.To, events.Control, events.Nobody)
	case t.terminal[row.From]:
		return fmt.Errorf("transition %s + %s: %s is terminal, nothing leaves it", row.From, row.Event, row.From)
	}
	key := edge{row.From, row.Event}
	if to, twice := t.index[key]; twice {
		return fmt.Errorf("transition %s + %s: stands there twice, to %s and to %s", row.From, row.Event, to, row.To)
	}
	t.index[key] = row.To
	return nil
}

func reserved(s events.State) bool { return s == events.Control || s == events.Nobody }

func (t *Table) allStates() []events.State {
	set := map[events.State]bool{t.initial: true}
	for _, row := range t.rows {
		set[row.To] = true
		if row.From != "" {
			set[row.From] = true
		}
	}
	for s := range t.terminal {
		set[s] = true
	}
	states := make([]events.State, 0, len(set))
	for s := range set {
		states = append(states, s)
	}
	slices.Sort(states)
	return states
}

func (t *Table) checkStates() error {
	reached := map[events.State]bool{t.initial: true}
	for grew := true; grew; {
		grew = false
		for _, row := range t.rows {
			if (row.From == "" || reached[row.From]) && !reached[row.To] {
				reached[row.To], grew = true, true
			}
		}
	}
	for _, s := range t.states {
		if !reached[s] {
			return fmt.Errorf("state %s: nothing leads there from %s", s, t.initial)
		}
		if !t.terminal[s] && !slices.ContainsFunc(t.rows, func(r Row) bool { return r.From == s && r.To != s }) {
			return fmt.Errorf("state %s: no row leads out of it; add one or declare it terminal", s)
		}
	}
	return nil
}

// digest is the sha256 of the table's canonical text.
func (t *Table) digest() string {
	var b strings.Builder
	fmt.Fprintf(&b, "initial %s\n", t.initial)
	for _, s := range t.states {
		if t.terminal[s] {
			fmt.Fprintf(&b, "terminal %s\n", s)
		}
	}
	for _, row := range t.rows {
		fmt.Fprintf(&b, "%s %s %s\n", row.From, row.Event, row.To)
	}
	for _, typ := range t.StayTypes() {
		fmt.Fprintf(&b, "stay %s\n", typ)
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:])
}

// Next returns the state that the event leads to, and whether the table allows
// it at all.
func (t *Table) Next(from events.State, event events.Type) (events.State, bool) {
	if out, known := t.exits[from]; known {
		way, ok := out[event]
		return way.to, ok
	}
	return t.next(from, event)
}

// next is Next by the rows, for any state, also one that is none of the table's.
func (t *Table) next(from events.State, event events.Type) (events.State, bool) {
	if t.terminal[from] {
		return "", false
	}
	if to, ok := t.index[edge{from, event}]; ok {
		return to, true
	}
	if to, ok := t.index[edge{"", event}]; ok {
		return to, true
	}
	if t.stay[event] && from != t.initial {
		return from, true
	}
	return "", false
}

// Forks returns the states that a Forked may lead to from the initial one,
// sorted: every one that a run can go on in. Which one it is its parent's log
// says, so Forked has no row and is no part of the table's identity.
func (t *Table) Forks() []events.State {
	return slices.DeleteFunc(t.States(), func(s events.State) bool { return s == t.initial || t.terminal[s] })
}

// Transition reports whether the event is a row's (of this state or of every
// state) rather than one that only changes memory.
func (t *Table) Transition(from events.State, event events.Type) bool {
	if way, ok := t.exits[from][event]; ok {
		return way.row
	}
	return t.transition(from, event)
}

// transition is Transition by the rows.
func (t *Table) transition(from events.State, event events.Type) bool {
	_, own := t.index[edge{from, event}]
	_, any := t.index[edge{"", event}]
	return own || any
}

// Terminal reports whether the state ends a run.
func (t *Table) Terminal(s events.State) bool { return t.terminal[s] }

// Initial returns the state before the first event.
func (t *Table) Initial() events.State { return t.initial }

// States returns every state, sorted.
func (t *Table) States() []events.State { return slices.Clone(t.states) }

// Rows returns every row, sorted by state and event.
func (t *Table) Rows() []Row { return slices.Clone(t.rows) }

// StayTypes returns the events that leave the state as it is, sorted.
func (t *Table) StayTypes() []events.Type {
	types := make([]events.Type, 0, len(t.stay))
	for typ := range t.stay {
		types = append(types, typ)
	}
	slices.Sort(types)
	return types
}

// Hash identifies the table: equal tables have equal hashes, whatever order
// their rows were given in.
func (t *Table) Hash() string { return t.hash }
