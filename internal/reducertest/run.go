// Package reducertest makes runs for tests: [Run] appends to a run in memory as
// a worker appends to the log, and [Next] draws a random event that is legal
// there. It is for tests only.
package reducertest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Record is an event as it is stored.
type Record struct {
	Subject string
	Body    []byte
}

// Run is a run in the making: its memory, and the records that lead to it. Ids
// and times are made from counters, so equal calls give equal bytes.
type Run struct {
	Machine *reducer.Machine
	ID      events.Run
	Mem     *reducer.Memory
	Records []Record
	// Applied is the number of records that were legal.
	Applied int

	ids int
	now time.Time

	// parent and at are what a fork continues from.
	parent *Run
	at     uint64
}

// NewRun returns an empty run of the machine; nil for the default one.
func NewRun(m *reducer.Machine) *Run {
	if m == nil {
		m = reducer.NewMachine(reducer.MachineOptions{})
	}
	r := &Run{Machine: m, now: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}
	r.ID = events.NewRun(events.DefaultNamespace, r.NewID(), 1)
	r.Mem = m.Initial(r.ID.ID)
	return r
}

// Fork returns a run that continues from the run's event at; p is its first event,
// which need not say from where. The error is the draft's or the fold's.
func (r *Run) Fork(at uint64, p events.Forked) (*Run, error) {
	f := &Run{Machine: r.Machine, ids: r.ids, now: r.now, parent: r, at: at}
	f.ID = events.NewRun(events.DefaultNamespace, f.NewID(), 1)
	f.Mem = f.initial()
	p.Run, p.At, p.Hash = r.ID.ID, at, events.Hash(r.Records[at-1].Body)
	_, _, err := f.Append(events.Idle, &p)
	return f, err
}

// initial is the memory that the run's first record is folded into.
func (r *Run) initial() *reducer.Memory {
	mem := r.Machine.Initial(r.ID.ID)
	if r.parent != nil {
		mem.Adopt(r.parent.At(r.at))
	}
	return mem
}

// At folds the run's first n records.
func (r *Run) At(n uint64) *reducer.Memory {
	mem := r.initial()
	for _, rec := range r.Records[:n] {
		_, _ = r.Machine.Apply(mem, rec.Subject, rec.Body) // poison is in the memory
	}
	return mem
}

// NewID returns the run's next id, a UUIDv7.
func (r *Run) NewID() string {
	r.ids++
	return fmt.Sprintf("01932c07-0000-7000-8000-%012x", r.ids)
}

// Draft makes the run's next event and its body, and leaves the run as it is.
func (r *Run) Draft(origin events.State, p events.Payload) (events.Subject, *events.Event, []byte, error) {
	r.now = r.now.Add(time.Second)
	Pin(r.Machine, p)
	stamp := reducer.Stamp{ID: r.NewID(), Source: "moorebus/test/1", Time: r.now}
	s, e, err := r.Machine.Draft(r.Mem, r.ID, origin, p, stamp)
	if err != nil {
		return s, nil, nil, err
	}
	body, err := r.Machine.Codec().Encode(e)
	return s, e, body, err
}

// Append drafts an event, folds it as its writer does and keeps the record. The
// error is the draft's or the fold's.
func (r *Run) Append(origin events.State, p events.Payload) (events.Subject, *events.Event, error) {
	s, e, body, err := r.Draft(origin, p)
	if err != nil {
		return s, nil, err
	}
	if err := r.Machine.ApplyEvent(r.Mem, s, e, events.Hash(body)); err != nil {
		return s, nil, err
	}
	r.Applied++
	r.Records = append(r.Records, Record{Subject: s.String(), Body: body})
	return s, e, nil
}

// Store keeps a record that somebody else stored, legal or not, and folds it.
func (r *Run) Store(subject string, body []byte) error {
	r.Records = append(r.Records, Record{Subject: subject, Body: body})
	_, err := r.Machine.Apply(r.Mem, subject, body)
	if err == nil {
		r.Applied++
	}
	return err
}

// Effects returns what the run wants.
func (r *Run) Effects() []effects.Effect { return effects.Of(r.Machine.Table(), r.Mem) }

// Fold folds the run's records from the beginning.
func (r *Run) Fold() *reducer.Memory { return r.At(uint64(len(r.Records))) }

// Clone returns an independent copy of the run as it stands, its memory taken
// through a snapshot.
func (r *Run) Clone() *Run {
	c := *r
	c.Mem = r.Mem.Clone()
	c.Records = append([]Record(nil), r.Records...)
	return &c
}

// Canonical returns a memory as JSON, by which memories are compared.
func Canonical(mem *reducer.Memory) string {
	text, err := json.Marshal(mem)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// WorkingMemoryTokens estimates the size of working memory as a quarter of its bytes.
func WorkingMemoryTokens(mem *reducer.Memory) int {
	total := 0
	for _, entry := range mem.WorkingMemory {
		total += (len(strings.Join(entry.Tags, " "))+3)/4 + (len(entry.Value)+3)/4
	}
	return total
}

// Tools are the tools of [StartOf]: three pools, every class of effect.
func Tools() []events.ToolSpec {
	schema := json.RawMessage(`{ "type": "object" }`)
	return []events.ToolSpec{
		{Name: "alpha", Description: "first", Schema: schema, Effect: "pure", Pool: "default", Risk: "low"},
		{Name: "beta", Description: "second", Schema: schema, Effect: "once", Pool: "web", Risk: "high"},
		{Name: "gamma", Description: "third", Effect: "idempotent", Pool: "web", Risk: "medium"},
		{Name: "delta", Description: "fourth", Schema: json.RawMessage(`null`), Effect: "pure", Pool: "math"},
	}
}

// Pin makes a Start of [StartOf] one of the machine's table.
func Pin(m *reducer.Machine, p events.Payload) {
	if start, ok := p.(*events.Start); ok && start.TableHash == reducer.DefaultTable().Hash() {
		start.TableHash = m.Table().Hash()
	}
}

// StartOf returns a Start with the default configuration and [Tools].
func StartOf(task string, mode events.Mode) *events.Start {
	agent := events.DefaultAgent()
	agent.Name, agent.Mode, agent.LLM.Provider, agent.SystemPrompt = "tester", mode, "scripted", "You test."
	agent.Blacklist = []string{"forbidden"}
	agent, err := agent.Resolve()
	if err != nil {
		panic(err)
	}
	return &events.Start{
		Agent: agent, AgentHash: "agent-hash", Task: task, Mode: mode, TaskType: "default",
		Tools: Tools(), TableHash: reducer.DefaultTable().Hash(),
	}
}
