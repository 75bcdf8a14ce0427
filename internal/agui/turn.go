package agui

import (
	"encoding/json"
	"slices"

	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// customKey is the key of the run's custom memory under which [turn] is kept.
const customKey = "ag_ui"

// turn is what a run keeps of the client: its state and context, and the request that opened
// the turn. The event that sets it is the turn's first.
type turn struct {
	RunID   string          `json:"run_id"`
	State   json.RawMessage `json:"state,omitempty"`
	Context json.RawMessage `json:"context,omitempty"`
	// Tools is the digest of the client's tools.
	Tools string `json:"tools"`
	// Messages, Results and Decisions are what the request brings: ids of user messages,
	// message ids of results by call, and ids of calls.
	Messages  []string          `json:"messages,omitempty"`
	Results   map[string]string `json:"results,omitempty"`
	Decisions []string          `json:"decisions,omitempty"`
	// Below are the interrupts of sub-runs that the request answers, with the sub-run's number
	// of events before the decision.
	Below map[string]uint64 `json:"below,omitempty"`
	// Interrupts are those of sub-runs with which the turn before ended. This run's log alone
	// does not say so.
	Interrupts []Interrupt `json:"interrupts,omitempty"`
	// Known are ids of user messages that the thread's earlier runs had.
	Known []string `json:"known,omitempty"`
}

// turnOf returns the turn that the run is in or had last.
func turnOf(mem *reducer.Memory) (t turn) {
	mem.Kept(customKey, &t)
	return t
}

// opens returns the turn that an event opens, if it does.
func opens(e *events.Event) (t turn, ok bool) {
	var value json.RawMessage
	switch p := e.Data.(type) {
	case *events.Start:
		value = p.Custom[customKey]
	case *events.CustomMemorySet:
		if p.Key == customKey {
			value = p.Value
		}
	}
	return t, len(value) > 0 && json.Unmarshal(value, &t) == nil
}

// came reports whether the messages and results that the turn's request brings are in the run.
func (t *turn) came(mem *reducer.Memory) bool {
	for _, id := range t.Messages {
		if !mem.Knows(id) {
			return false
		}
	}
	for id := range t.Results {
		if call := mem.ToolCalls[id]; call != nil && call.Result == nil {
			return false
		}
	}
	return true
}

// rests reports whether a run has ended or waits for its client: for a message, a decision or
// results.
func rests(table *reducer.Table, mem *reducer.Memory) bool {
	switch {
	case table.Terminal(mem.State), mem.State == events.WaitingForUser:
		return true
	case mem.Control.Poison != nil:
		return false
	case mem.State == events.WaitingForHuman:
		return len(decisions.Undecided(mem.PendingApproval)) > 0
	}
	open := 0
	for i := range mem.Control.Calls {
		if !mem.Control.Calls[i].Answered {
			open++
		}
	}
	return open > 0 && len(mem.ClientCalls()) == open
}

// outcomeOf says how a turn ended whose run is as mem says. It is not for a run in error.
func outcomeOf(mem *reducer.Memory) *Outcome {
	switch mem.State {
	case events.Cancelled:
		return &Outcome{Type: "cancelled"}
	case events.WaitingForHuman:
		return &Outcome{Type: "interrupt", Interrupts: interrupts(mem)}
	}
	o := &Outcome{Type: "success"}
	for _, call := range mem.ClientCalls() {
		o.PendingToolCallIDs = append(o.PendingToolCallIDs, call.ID)
	}
	return o
}

// The JSON Schemas of the answers to interrupts: plain values, and bodies of decisions.
var (
	approvalSchema = json.RawMessage(`{"anyOf":[{"type":"boolean"},{"type":"object","properties":{"approved":{"type":"boolean"},"reason":{"type":"string"},"by":{"type":"string"}},"required":["approved"],"additionalProperties":false},{"type":"object","properties":{"decision":{"enum":["approved","rejected","modified"]},"arguments":{"type":"object"},"reason":{"type":"string"},"by":{"type":"string"}},"required":["decision"]}]}`)
	questionSchema = json.RawMessage(`{"anyOf":[{"type":"string"},{"type":"object","properties":{"answer":{"type":"string"},"by":{"type":"string"}},"required":["answer"],"additionalProperties":false},{"type":"object","properties":{"decision":{"const":"modified"},"arguments":{"type":"object","properties":{"question":{"type":"string"},"answer":{"type":"string"}},"required":["question","answer"]},"by":{"type":"string"}},"required":["decision","arguments"]}]}`)
)

func interrupts(mem *reducer.Memory) []Interrupt {
	var all []Interrupt
	undecided := decisions.Undecided(mem.PendingApproval)
	for _, r := range mem.PendingApproval.Requests {
		if !slices.Contains(undecided, r.CallID) {
			continue
		}
		i := Interrupt{
			ID: r.CallID, Reason: "tool_call", Message: r.Reason, ToolCallID: r.CallID, ResponseSchema: approvalSchema,
			ExpiresAt: mem.PendingApproval.Deadline, Metadata: map[string]any{"tool": r.Tool, "arguments": r.Arguments, "risk": r.Risk},
		}
		if r.Asks {
			i.Reason, i.ResponseSchema = "input_required", questionSchema
		}
		all = append(all, i)
	}
	return all
}

// shown is a memory as clients are shown it. Its own keys hide those of the memory.
type shown struct {
	*reducer.Memory
	SystemPrompt *struct{} `json:"system_prompt,omitempty"`
	Tools        *struct{} `json:"tools,omitempty"`
	Config       *struct{} `json:"config,omitempty"`
	Blacklist    *struct{} `json:"blacklist,omitempty"`
	Control      *struct{} `json:"control,omitempty"`
}

// hidden are the members of a memory that [shown] hides.
var hidden = []string{"system_prompt", "tools", "config", "blacklist", "control"}

// stateOf returns the state that clients are shown.
func stateOf(mem *reducer.Memory) (json.RawMessage, error) { return json.Marshal(shown{Memory: mem}) }
