package events

import (
	"encoding/json"
	"fmt"
)

// How runs begin, and how a run continues under another agent.
const (
	TypeStart     Type = "Start"
	TypeForked    Type = "Forked"
	TypeHandedOff Type = "HandedOff"
)

var startRows = []row{
	define("A run begins with an agent, its tools and a task.", func(p *Start) string { return p.Agent.Name + ": " + Shown(p.Task, p.Parts) }).
		nextWhere(func(p Payload) bool { return !p.(*Start).Agent.PlainModels() }),
	define("A run begins as a copy of another run after one of its events.", func(p *Forked) string { return fmt.Sprintf("from event %d of %s", p.At, p.Run) }).
		nextWhere(func(p Payload) bool { f := p.(*Forked); return f.Agent != nil && !f.Agent.PlainModels() }),
	define("The run continues under another agent.", func(p *HandedOff) string { return "to " + p.Agent.Name }).broughtBy(2),
}

// Start opens a run. It pins all that a replay needs. Parts are there where the task is more
// than text; Task is then their [TextOf].
type Start struct {
	Agent     Agent      `json:"agent"`
	AgentHash string     `json:"agent_hash"`
	Task      string     `json:"task"`
	Mode      Mode       `json:"mode"`
	TaskType  string     `json:"task_type"`
	Tools     []ToolSpec `json:"tools"`
	TableHash string     `json:"table_hash"`
	Parent    *Parent    `json:"parent,omitempty"`
	Parts     []Part     `json:"parts,omitempty"`
	// MessageID is the id of the task's message; empty: that of the event.
	MessageID string `json:"message_id,omitempty"`
	// Custom is what the run's custom memory begins with, by key.
	Custom map[string]json.RawMessage `json:"custom,omitempty"`
	// Queued is true where the run waits for its [Admitted] before it works. Priority is its
	// place in that queue; empty: [PriorityNormal].
	Queued   bool     `json:"queued,omitempty"`
	Priority Priority `json:"priority,omitempty"`
	// Labels are those of the request, over those of the run's parent, over those of its agent.
	Labels Labels `json:"labels,omitempty"`
}

// Priority says which of an agent's queued runs goes first.
type Priority string

// The priorities.
const (
	PriorityHigh   Priority = "high"
	PriorityNormal Priority = "normal"
	PriorityLow    Priority = "low"
)

// Valid reports whether p is a priority, or empty.
func (p Priority) Valid() bool {
	return p == "" || p == PriorityHigh || p == PriorityNormal || p == PriorityLow
}

func (*Start) eventType() Type { return TypeStart }

// Parent names the call of another run that this run answers.
type Parent struct {
	Run    string `json:"run"`
	CallID string `json:"call_id"`
	// Depth counts the runs above this one: 1 where the parent has none.
	Depth int `json:"depth,omitempty"`
}

// Answers reports whether the run of p answers that call of that run; a run
// without a parent answers none.
func (p *Parent) Answers(run, callID string) bool {
	return p != nil && p.Run == run && p.CallID == callID
}

// Forked opens a run that begins as another one did, up to its event At, whose
// body has the Hash. Patch is the requested change; its result is pinned
// too, as Start pins it, so that a replay need not apply the patch. An empty field is
// as the parent had it.
type Forked struct {
	Run   string          `json:"run"`
	At    uint64          `json:"at"`
	Hash  string          `json:"hash"`
	Patch json.RawMessage `json:"patch,omitempty"`

	Task     string `json:"task,omitempty"`
	TaskType string `json:"task_type,omitempty"`
	Mode     Mode   `json:"mode,omitempty"`
	// Agent, AgentHash and Tools are there together or not at all.
	Agent     *Agent     `json:"agent,omitempty"`
	AgentHash string     `json:"agent_hash,omitempty"`
	Tools     []ToolSpec `json:"tools,omitempty"`
}

func (*Forked) eventType() Type { return TypeForked }

// HandedOff lets a run continue under another agent, pinned as by Start. It comes before
// the result of the call that asked for it.
type HandedOff struct {
	Agent     Agent      `json:"agent"`
	AgentHash string     `json:"agent_hash"`
	Tools     []ToolSpec `json:"tools"`
	CallID    string     `json:"call_id"`
	Reason    string     `json:"reason,omitempty"`
}

func (*HandedOff) eventType() Type { return TypeHandedOff }
