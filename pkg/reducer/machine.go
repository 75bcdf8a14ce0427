package reducer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// Fold changes memory by one legal event. It must depend on its arguments only, and
// change only [Memory.Custom] and, by [Memory.Note], the conversation. A fold that panics
// poisons the run at that event.
type Fold func(mem *Memory, e *events.Event)

// MachineOptions are an application's extensions. The zero value has none.
type MachineOptions struct {
	// Table is the transition table; nil for [DefaultTable].
	Table *Table
	// Codec knows the application's own event types; nil for the built-in ones.
	Codec *events.Codec
	// Folds run after the built-in fold, by event type.
	Folds map[events.Type]Fold
}

// Machine folds runs by one table. It does not change and may be shared; a
// [Memory] may not be used from two goroutines at once.
type Machine struct {
	table *Table
	codec *events.Codec
	folds map[events.Type]Fold
	// own says that an application changed more than the table.
	own bool
}

// NewMachine returns a machine.
func NewMachine(o MachineOptions) *Machine {
	m := &Machine{table: o.Table, codec: o.Codec, folds: o.Folds, own: o.Codec != nil || len(o.Folds) > 0}
	if m.table == nil {
		m.table = DefaultTable()
	}
	if m.codec == nil {
		m.codec = new(events.Codec)
	}
	return m
}

// Table returns the machine's transition table.
func (m *Machine) Table() *Table { return m.table }

// Codec returns the machine's codec.
func (m *Machine) Codec() *events.Codec { return m.codec }

// memoryVersion is the version of [Memory]'s shape and of the built-in fold. Raise it when
// either changes, so that snapshots of older builds are not used.
const memoryVersion = 8

// FoldName identifies the machine's fold by the version of the memory and the hash of the
// table. Machines of one name fold equally. It is empty for a machine with an
// application's own folds or codec.
func (m *Machine) FoldName() string {
	if m.own {
		return ""
	}
	return foldName(m.table.Hash())
}

func foldName(table string) string { return strconv.Itoa(memoryVersion) + "/" + table }

// AcceptsFold reports whether the machine folds equally to the fold of that name: its own,
// or that of an earlier revision of its table.
func (m *Machine) AcceptsFold(name string) bool {
	table, ok := strings.CutPrefix(name, foldName(""))
	return ok && !m.own && m.table.revisions[table] > 0
}

// Initial returns the memory of a run before its first event.
func (m *Machine) Initial(run string) *Memory {
	return &Memory{
		RunID: run, State: m.table.Initial(), TaskType: "default", ConfidenceScore: 1,
		PendingToolCalls: []ToolCall{}, ParallelResults: []ToolResult{}, History: []HistoryEntry{},
		Messages: make([]Message, 0, 2), Tools: map[string]ToolInfo{}, ToolCalls: map[string]*ToolCallRecord{},
		WorkingMemory: []MemoryEntry{}, ThinkingLog: []Thought{}, Blacklist: []string{}, Trace: make(Trace, 0, 8),
		Control: Control{Wake: map[events.State]uint64{}, Turns: make([]Turn, 0, 4)},
	}
}

// IllegalError says why a stored record is not a legal event of its run.
type IllegalError struct {
	// N is the record's place in the run.
	N uint64
	// Type is the event type, as far as it could be read.
	Type events.Type
	// Reason says what is wrong.
	Reason string
}

// Error names place, type and reason.
func (e *IllegalError) Error() string {
	if e.Type == "" {
		return fmt.Sprintf("event %d is not legal: %s", e.N, e.Reason)
	}
	return fmt.Sprintf("event %d (%s) is not legal: %s", e.N, e.Type, e.Reason)
}

// ErrSubject says that a record belongs to no run, because its subject cannot be read.
var ErrSubject = errors.New("a record of no run")

// Apply folds the run's next record into mem and returns the event. The error is an
// *[IllegalError] for a record that cannot be decoded or is not legal here: it is counted,
// and the run is poisoned from then on, see [Control.Poison]. Three errors leave mem as it
// is: an [ErrSubject] for a subject that cannot be read, a *[ParentError] for a fork's
// first event before [Memory.Adopt], and a *[TableError] for what only another program can
// read.
func (m *Machine) Apply(mem *Memory, subject string, body []byte) (*events.Event, error) {
	s, err := events.ParseSubject(subject)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSubject, err)
	}
	hash := events.Hash(body)
	e, err := m.codec.Decode(body)
	if err != nil {
		return nil, m.refuse(mem, typeOf(body), m.checkUnread(mem, s, err), hash)
	}
	return e, m.ApplyEvent(mem, s, e, hash)
}

// ApplyEvent is [Machine.Apply] for a record that is decoded already; hash is
// the [events.Hash] of its body.
func (m *Machine) ApplyEvent(mem *Memory, s events.Subject, e *events.Event, hash string) error {
	c, err := m.check(mem, s, e)
	if err == nil && c.rule.agents && !fromAgents(s) {
		err = fmt.Errorf("%s comes from the actor of agents alone", e.Type())
	}
	if err == nil {
		err = m.fold(mem, c, e)
	}
	if err != nil {
		return m.refuse(mem, e.Type(), err, hash)
	}
	mem.chain(s, c, e, hash)
	if s.To == events.Nobody && m.table.CarriesWakes(mem) {
		mem.carry(e)
	}
	return nil
}

// fromAgents reports whether the subject is that of the actor that serves agents.
func fromAgents(s events.Subject) bool { return s.Pool == events.AgentsPool && s.To == events.Nobody }

// typeOf returns the type in a body that cannot be decoded, empty if there is none.
func typeOf(body []byte) events.Type {
	var envelope struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(body, &envelope) // what cannot be read has no type
	return events.Type(cut(envelope.Type, traceTextLimit))
}

// check says whether e is a legal next event of the run: its place, its chain, the edge,
// the subject that it came on, and its data. It returns what the event does in the run's
// state. A built-in type with an [events.Custom] as data comes from an
// [events.NewerVersionError]; its data is not checked.
func (m *Machine) check(mem *Memory, s events.Subject, e *events.Event) (cell, error) {
	c, typ := &mem.Control, e.Type()
	switch {
	case e.Run != mem.RunID || s.Run.ID != mem.RunID:
		return cell{}, fmt.Errorf("belongs to run %s (subject: %s), not to %s", e.Run, s.Run.ID, mem.RunID)
	case e.N != mem.N+1:
		return cell{}, fmt.Errorf("n is %d, the run's next is %d", e.N, mem.N+1)
	case e.Prev != c.Head:
		return cell{}, fmt.Errorf("prev does not match the hash of event %d", mem.N)
	case mem.N == 0 && e.Cause != "", c.LastID != "" && e.Cause == "":
		// After a first record that cannot be read there may be no cause to name.
		return cell{}, fmt.Errorf("cause is absent in the first event and only there")
	case e.From != mem.State:
		return cell{}, fmt.Errorf("from is %s, the run is in %s", e.From, mem.State)
	}
	here, ok := m.table.cells[mem.State][typ]
	_, unread := e.Data.(*events.Custom)
	switch p := e.Data.(type) {
	case *events.Start:
		if mem.N == 0 && !m.table.knows(p.TableHash) {
			return m.checkForeign(mem, s, e)
		}
	case *events.Custom:
		if mem.N == 0 && begins(typ) {
			return m.checkForeign(mem, s, e)
		}
	case *events.Forked:
		to, err := m.checkFork(mem, p)
		if err != nil {
			return cell{}, err
		}
		here, ok = cell{to: to, moves: true, from: own, rule: ruleOf[typ]}, true
	}
	from := here.from
	switch {
	case !ok:
		return cell{}, &TransitionError{From: mem.State, Event: typ}
	case e.To != here.to:
		return cell{}, fmt.Errorf("to is %s, the table leads from %s by %s to %s", e.To, mem.State, typ, here.to)
	case c.Poison != nil && typ != events.TypeFatalError && typ != events.TypeCancelled:
		return cell{}, fmt.Errorf("the run is poisoned at event %d: only FatalError or Cancelled may follow", c.Poison.N)
	case here.rule.fromNow != nil && !unread:
		from = here.rule.fromNow(mem, e.Data)
	}
	r := here.rule
	switch {
	case (from&own == 0 || s.From != mem.State) && !m.table.allows(from, mem.State, s.From):
		return cell{}, fmt.Errorf("%s in state %s may not come from %s", typ, mem.State, s.From)
	case r.in != nil && !slices.Contains(r.in, mem.State):
		return cell{}, fmt.Errorf("has no place in state %s", mem.State)
	case unread:
		return here, nil
	case len(c.Queued) > 0 && mem.State == events.Planning && r.stepsOf(mem, e.Data) > 0:
		return cell{}, fmt.Errorf("is a reply, but %d calls of the last reply have not gone out yet", len(c.Queued))
	case here.young:
		if err := m.table.checkRevision(mem, r, e); err != nil {
			return cell{}, err
		}
	}
	return here, r.check(mem, e)
}

// begins reports whether an event of the built-in type can be a run's first one: it pins
// the run's table, or takes over another run with its table.
func begins(typ events.Type) bool { return typ == events.TypeStart || typ == events.TypeForked }

// checkForeign checks the first event of a run whose table is another one, or unknown. Only
// a program with that table can say where the event leads and whether its data is legal,
// so neither is checked here: builds that did so poisoned runs of newer builds. But a run
// begins out of its first state in every table. The error is a *[TableError] for a Start
// that is legal so far.
func (m *Machine) checkForeign(mem *Memory, s events.Subject, e *events.Event) (cell, error) {
	if s.From != mem.State {
		return cell{}, fmt.Errorf("%s in state %s may not come from %s", e.Type(), mem.State, s.From)
	}
	if p, ok := e.Data.(*events.Start); ok {
		return cell{}, &TableError{Run: mem.RunID, Table: p.TableHash, Own: m.table.hash}
	}
	return cell{rule: ruleOf[e.Type()]}, nil
}

// checkUnread says what is wrong with a record that could not be decoded. The envelope of a
// payload of a newer version is checked as builds that know the version check it: if it
// is illegal, the run is poisoned. If it is legal, only those builds can read the run, and
// the error is a *[TableError].
//
// Builds of revisions before [tellsVersions] poisoned every run that held such a record,
// and some of those runs have ended. So readers of their logs must poison them too.
func (m *Machine) checkUnread(mem *Memory, s events.Subject, err error) error {
	var newer *events.NewerVersionError
	if !errors.As(err, &newer) {
		return err
	}
	first := mem.N == 0 && begins(newer.Type)
	if !first && m.table.revisions[mem.Control.TableHash] < tellsVersions {
		return err
	}
	c, illegal := m.check(mem, s, newer.Event)
	switch {
	case illegal != nil:
		return illegal
	case c.rule.agents && !fromAgents(s):
		return fmt.Errorf("%s comes from the actor of agents alone", newer.Type)
	case mem.Control.Poison != nil:
		return err
	}
	return &TableError{Run: mem.RunID, Table: mem.Control.TableHash, Own: m.table.hash, Version: newer}
}

// TransitionError says that the table has no row for an event in a state.
type TransitionError struct {
	From  events.State
	Event events.Type
}

// Error names state and event.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("invalid transition: %s in state %s is not in the transition table", e.Event, e.From)
}

// refuse poisons the run by a record that cannot be read or is not legal. It leaves the
// run as it is if only another program can check the record, or only together with the
// run's parent.
func (m *Machine) refuse(mem *Memory, typ events.Type, err error, hash string) error {
	var parent *ParentError
	var table *TableError
	switch {
	case errors.As(err, &parent):
		return parent
	case errors.As(err, &table):
		return table
	}
	mem.N++
	mem.base = nil
	mem.Control.Head = hash
	if mem.Control.Poison == nil && !m.table.Terminal(mem.State) {
		mem.Control.Poison = &events.Poison{Type: string(typ), N: mem.N, Reason: cut(err.Error(), 500)}
	}
	return &IllegalError{N: mem.N, Type: typ, Reason: err.Error()}
}

// fold changes memory by a legal event: by its type's fold, which sees the state before the
// event, and by the application's own fold. If that one fails, the run stands where it was.
func (m *Machine) fold(mem *Memory, here cell, e *events.Event) error {
	c, typ := &mem.Control, e.Type()
	mem.N = e.N
	here.rule.fold(mem, e)
	if p, ok := e.Data.(*events.LLMAttemptFailed); ok {
		m.table.foldByRevision(mem, p)
	}
	mem.base = nil
	own := m.folds[typ]
	if !here.rule.adds || own != nil {
		mem.derived = derived{}
	}
	if own != nil && c.Poison == nil {
		if err := foldOwn(own, mem, e); err != nil {
			mem.N--
			return err
		}
	}
	mem.Trace = append(mem.Trace, TraceEntry{
		Step: mem.Step, State: string(e.From), Event: string(typ), Data: cut(events.UnusualEnding(e.Data), traceTextLimit) + here.rule.trace(e.Data), Timestamp: e.Time,
	})
	if typ != events.TypeForked {
		if here.moves || here.rule.rearms && e.From == events.Planning {
			c.Armed, c.Attempts = e.N, nil
		}
		if e.From != e.To && !c.QueuedPass && c.Compacted != CompactedSummary {
			c.SinceUser.Changes++ // a summary so that a request fits is bounded by the requests
		}
	}
	switch {
	case e.N == 1:
		c.Observed = 0 // a fork has its parent's
	case e.From == events.Observing && e.To != events.Observing:
		c.Observed = e.N
	}
	return nil
}

// foldOwn runs an application's fold, which may not move the run. A panic must not end the
// process: every reader of the log would end in the same way, again and again.
func foldOwn(fold Fold, mem *Memory, e *events.Event) (err error) {
	run, state := mem.RunID, mem.State
	defer func() {
		mem.RunID, mem.N, mem.State = run, e.N, state
		if p := recover(); p != nil {
			err = fmt.Errorf("the application's fold of %s panicked: %v", e.Type(), p)
		}
	}()
	fold(mem, e)
	return nil
}

// chain makes the event the last one of the run, and notes which delivery is responsible:
// work is done under the delivery of the last event that went to its state, so an
// older one can be dropped.
func (mem *Memory) chain(s events.Subject, here cell, e *events.Event, hash string) {
	c := &mem.Control
	mem.State, mem.Updated = e.To, e.Time
	c.Head, c.LastID = hash, e.ID
	if s.To == events.Nobody {
		return
	}
	c.Wake[s.To] = e.N
	if s.To != events.Acting && s.To != events.ParallelActing {
		return
	}
	for i := range c.Calls {
		call := &c.Calls[i]
		// A call that was started is left to the delivery that started it: no
		// other one may conclude that its outcome is unknown.
		if call.Answered || call.Running() || (c.Batch && call.Pool != s.Pool) || (here.rule.drives != nil && call.ID != here.rule.drives(e.Data)) {
			continue
		}
		call.Wake = e.N
		if call.Client && call.Deadline == "" {
			call.Deadline = e.Time.Add(mem.clientTimeout(call.Name)).UTC().Format(events.TimeFormat)
		}
	}
}

// carry makes the last delivery to Planning responsible for the state that an event has led to, since
// the event wakes nobody. That delivery's worker goes on with the run. If it dies, the delivery comes
// again, to another worker.
func (mem *Memory) carry(e *events.Event) {
	if e.From == e.To {
		return
	}
	c := &mem.Control
	c.Wake[e.To] = c.Wake[events.Planning]
	if e.To == events.Acting {
		for i := range c.Calls {
			c.Calls[i].Wake = c.Wake[events.Planning]
		}
	}
}

// Stamp is what an event needs from the world: ids and time are made by the
// shell, never here.
type Stamp struct {
	// ID is the event's id, a UUIDv7.
	ID string
	// Source is moorebus/<role>/<instance>.
	Source string
	// Cause is the id of the event that led to this one; empty for the run's
	// last one.
	Cause       string
	TraceParent string
	Time        time.Time
}

// Draft makes the run's next event out of a payload, with the subject that it has to be
// appended on. origin is the state that the publisher owns, or [events.Control]. The error
// is a *[TransitionError] if the table has no row for the event, an [ErrRevision] if the
// run's own revision does not know it, and otherwise says what makes it illegal. mem is
// not changed.
func (m *Machine) Draft(mem *Memory, run events.Run, origin events.State, p events.Payload, stamp Stamp) (events.Subject, *events.Event, error) {
	// An event that leads nowhere is refused by the check.
	next, _ := m.next(mem, events.TypeOf(p))
	cause := stamp.Cause
	if cause == "" || mem.N == 0 {
		cause = mem.Control.LastID
	}
	e := &events.Event{
		ID: stamp.ID, Source: stamp.Source, Run: mem.RunID, Time: stamp.Time.UTC(), N: mem.N + 1,
		From: mem.State, To: next, Step: mem.Step + ruleFor(events.TypeOf(p)).stepsOf(mem, p), Cause: cause, Prev: mem.Control.Head,
		TraceParent: stamp.TraceParent, Data: p,
	}
	s := events.Subject{Run: run, From: origin}
	// The subject's form does not matter to the check, and routing may rely on
	// what the check establishes.
	c, err := m.check(mem, s, e)
	if newer := m.table.checkWrites(mem, ruleFor(e.Type()), e); newer != nil && next != "" {
		err = newer
	}
	if err != nil {
		return events.Subject{}, nil, err
	}
	s.To, s.Pool = m.table.route(mem, c, p)
	return s, e, nil
}
