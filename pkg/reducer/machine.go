package reducer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/moorebus/moorebus/pkg/events"
)

// Fold changes memory by one event that was found legal. It must depend on
// nothing but its arguments, and change nothing but [Memory.Custom] and
// [Memory.Note]'s part of the conversation. One that panics poisons the run at
// that event.
type Fold func(mem *Memory, e *events.Event)

// MachineOptions are an application's extensions; the zero value is Moorebus as
// it comes.
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
		m.codec = events.DefaultCodec()
	}
	return m
}

// Table returns the machine's transition table.
func (m *Machine) Table() *Table { return m.table }

// Codec returns the machine's codec.
func (m *Machine) Codec() *events.Codec { return m.codec }

// MemoryVersion is the version of [Memory]'s shape, and of what the fold makes of
// the same events. Raise it with either, so that no snapshot of an older one is
// taken for the fold.
const MemoryVersion = 2

// FoldName names what the machine makes of events, the same for machines that make
// the same of them: the version of the memory and the hash of the table. It is
// empty for a machine with folds or a codec of an application's own, of which
// nothing is known here.
func (m *Machine) FoldName() string {
	if m.own {
		return ""
	}
	return strconv.Itoa(MemoryVersion) + "/" + m.table.Hash()
}

// Initial returns the memory of a run before its first event, with room for what
// every run has.
func (m *Machine) Initial(run string) *Memory {
	return &Memory{
		RunID: run, State: m.table.Initial(), TaskType: "default", ConfidenceScore: 1,
		PendingToolCalls: []ToolCall{}, ParallelResults: []ToolResult{}, History: []HistoryEntry{},
		Messages: make([]Message, 0, 2), Tools: map[string]ToolInfo{}, ToolCalls: map[string]*ToolCallRecord{},
		WorkingMemory: []MemoryEntry{}, ThinkingLog: []Thought{}, Blacklist: []string{}, Trace: make(Trace, 0, 8),
		Control: Control{Wake: map[events.State]uint64{}, Turns: make([]Turn, 0, 4)},
	}
}

// Transition returns the function that takes a memory to the one after a
// record. Unlike [Machine.Apply] it leaves its argument as it is.
func (m *Machine) Transition(subject string, body []byte) func(*Memory) *Memory {
	return func(mem *Memory) *Memory {
		next := mem.Clone()
		_, _ = m.Apply(next, subject, body) // an illegal record is in the memory too
		return next
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

// StrayError says that a record belongs to no run, since its subject is none of
// the log's.
type StrayError struct{ Err error }

// Error names the subject.
func (e *StrayError) Error() string { return "a record of no run: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *StrayError) Unwrap() error { return e.Err }

// Apply folds the run's next record into mem. It returns the event, or an
// *IllegalError for a record that cannot be read or is not legal here; such a
// record is counted, and the run is poisoned from then on, see
// [Control.Poison]. A record whose subject cannot be read is a *StrayError and
// changes nothing; nor does a fork's first event before its parent's memory was
// adopted, which is a *[ParentError], and the first event of a run of another
// transition table, which is a *[TableError].
func (m *Machine) Apply(mem *Memory, subject string, body []byte) (*events.Event, error) {
	s, err := events.ParseSubject(subject)
	if err != nil {
		return nil, &StrayError{err}
	}
	hash := events.Hash(body)
	e, err := m.codec.Decode(body)
	if err != nil {
		return nil, m.poison(mem, typeOf(body), err.Error(), hash)
	}
	return e, m.ApplyEvent(mem, s, e, hash)
}

// typeOf returns the type of a body that is no event, as far as it has one.
func typeOf(body []byte) events.Type {
	var envelope struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(body, &envelope) // what cannot be read has no type
	return events.Type(cut(envelope.Type, traceTextLimit))
}

// ApplyEvent is [Machine.Apply] for a record that is decoded already; hash is
// the [events.Hash] of its body.
func (m *Machine) ApplyEvent(mem *Memory, s events.Subject, e *events.Event, hash string) error {
	err := m.check(mem, s, e)
	if err == nil {
		err = checkPlace(s, e)
	}
	if err != nil {
		return m.refuse(mem, e, err, hash)
	}
	if err := m.checkTable(mem, e); err != nil {
		return err
	}
	if reason := m.fold(mem, s, e, hash); reason != "" {
		mem.N--
		return m.poison(mem, e.Type(), reason, hash)
	}
	return nil
}

// refuse poisons the run by an event that is not legal, unless it only cannot be
// judged yet.
func (m *Machine) refuse(mem *Memory, e *events.Event, err error, hash string) error {
	var parent *ParentError
	if errors.As(err, &parent) {
		return parent
	}
	return m.poison(mem, e.Type(), err.Error(), hash)
}

func (m *Machine) poison(mem *Memory, t events.Type, reason, hash string) error {
	mem.N++
	mem.base = nil
	mem.Control.Head = hash
	if mem.Control.Poison == nil && !m.table.Terminal(mem.State) {
		mem.Control.Poison = &events.Poison{Type: string(t), N: mem.N, Reason: cut(reason, 500)}
	}
	return &IllegalError{N: mem.N, Type: t, Reason: reason}
}

// fold applies a legal event. The order matters: the payload's fold sees the
// state before the event. It returns why the application's own fold failed, and
// then leaves the run where it was.
func (m *Machine) fold(mem *Memory, s events.Subject, e *events.Event, hash string) (reason string) {
	c := &mem.Control
	mem.N = e.N
	m.foldPayload(mem, e)
	mem.base = nil
	typ := e.Type()
	if fold := m.folds[typ]; fold != nil && c.Poison == nil {
		if reason := foldOwn(fold, mem, e); reason != "" {
			return reason
		}
	}
	mem.Trace = append(mem.Trace, TraceEntry{
		Step: mem.Step, State: string(e.From), Event: string(typ), Data: describe(e.Data), Timestamp: e.Time,
	})
	if rearms(e) || m.table.Transition(e.From, typ) {
		c.Armed = e.N
		c.Attempts = nil
	}
	if e.From != e.To && !c.QueuedPass && typ != events.TypeForked {
		c.SinceUser.Changes++
	}
	switch {
	case e.N == 1:
		c.Observed = 0 // a fork has its parent's
	case e.From == events.Observing && e.To != events.Observing:
		c.Observed = e.N
	}
	mem.State = e.To
	mem.wake(s, e)
	mem.Updated = e.Time
	c.Head, c.LastID = hash, e.ID
	return ""
}

// foldOwn runs an application's fold. Where the run stands is not its matter, and
// one that panics must not take the process with it: every reader of the log would
// go the same way, again and again.
func foldOwn(fold Fold, mem *Memory, e *events.Event) (reason string) {
	run, state := mem.RunID, mem.State
	defer func() {
		mem.RunID, mem.N, mem.State = run, e.N, state
		if p := recover(); p != nil {
			reason = fmt.Sprintf("the application's fold of %s panicked: %v", e.Type(), p)
		}
	}()
	fold(mem, e)
	return ""
}

// rearms reports whether an event that is no transition makes the model call in
// flight obsolete.
func rearms(e *events.Event) bool {
	if e.From != events.Planning {
		return false
	}
	switch e.Data.(type) {
	case *events.ContextWindowExpanded, *events.ToolCallsAddedToContext:
		return true
	}
	return false
}

// wake notes whose delivery drives what: work is done under the delivery of the
// last event that went to its state, so an older one can be dropped.
func (mem *Memory) wake(s events.Subject, e *events.Event) {
	c := &mem.Control
	if s.To == events.Nobody {
		return
	}
	c.Wake[s.To] = e.N
	if s.To != events.Acting && s.To != events.ParallelActing {
		return
	}
	if _, last := e.Data.(*events.ToolCallResult); last {
		return
	}
	dispatched, single := e.Data.(*events.ToolCallDispatched)
	for i := range c.Calls {
		call := &c.Calls[i]
		// A call that was started is left to the delivery that started it: no
		// other one may conclude that its outcome is unknown.
		if call.Answered || call.running() || (c.Batch && call.Pool != s.Pool) || (single && call.ID != dispatched.CallID) {
			continue
		}
		call.Wake = e.N
	}
}
