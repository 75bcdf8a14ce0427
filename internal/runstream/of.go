package runstream

import (
	"encoding/json"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Of returns the outputs of an event that was just folded into mem, in this order: what the
// model reasoned, the call that it ends, what was decided, the state that it leads to, the calls that begin there,
// and last the answer or the error. Events that only change memory have none, except for
// results of calls. Of depends on its arguments only.
func Of(t *reducer.Table, mem *reducer.Memory, e *events.Event) []Output {
	out := reasoned(e)
	ended := finished(mem, e)
	out = append(out, ended...)
	if !moves(t, e) {
		return out
	}
	terminal := t.Terminal(e.To)
	if len(ended) == 0 && e.Type() != events.TypeStart && !terminal {
		out = append(out, action(mem, e))
	}
	if e.From != e.To {
		out = append(out, StateStarted{N: e.N, Step: mem.Step, State: e.To})
	}
	for _, call := range started(mem, e) {
		out = append(out, ToolCallStarted{N: e.N, CallID: call.ID, Name: call.Name, Arguments: call.Arguments})
	}
	if last := outcome(mem, e, terminal); last != nil {
		out = append(out, last)
	}
	return out
}

// moves reports whether the event is a transition. A fork's first event is one too, though
// the table has no row for it.
func moves(t *reducer.Table, e *events.Event) bool {
	return e.Type() == events.TypeForked || t.Transition(e.From, e.Type())
}

func action(mem *reducer.Memory, e *events.Event) Action {
	data := ""
	if last := len(mem.Trace) - 1; last >= 0 {
		data = mem.Trace[last].Data
	}
	return Action{N: e.N, Step: mem.Step, State: e.From, Event: e.Type(), Data: data}
}

// reasoned is what the model reasoned before a reply, if it is known.
func reasoned(e *events.Event) []Output {
	f := events.FactsOf(e.Data)
	if f == nil || len(f.Reasoning) == 0 && f.ReasoningRef == nil {
		return nil
	}
	return []Output{Reasoned{N: e.N, Text: f.Reasoning.Text(), Opaque: f.Reasoning.Opaque(), Items: f.Reasoning.Items(), Ref: f.ReasoningRef}}
}

// finished is the call that the event answers, if any.
func finished(mem *reducer.Memory, e *events.Event) []Output {
	var o *events.ToolOutcome
	switch p := e.Data.(type) {
	case *events.ToolSuccess:
		o = p.Outcome
	case *events.ToolFailure:
		o = p.Outcome
	case *events.ToolCallResult:
		o = &p.ToolOutcome
	}
	if o == nil || o.CallID == "" {
		return nil
	}
	name := ""
	if call := mem.ToolCalls[o.CallID]; call != nil {
		name = call.Name
	}
	return []Output{ToolCallFinished{
		N: e.N, CallID: o.CallID, Name: name, Success: o.Success, Observation: o.Observation, Code: o.Code, LatencyMS: o.LatencyMS,
	}}
}

// started lists the calls that the event sends to their tools.
func started(mem *reducer.Memory, e *events.Event) []events.Call {
	switch p := e.Data.(type) {
	case *events.LLMToolCall:
		return p.Calls
	case *events.LLMParallelToolCalls:
		return p.Calls
	case *events.HumanApproved, *events.HumanModified, *events.HumanApprovedParallel:
		var calls []events.Call
		for i := range mem.Control.Calls {
			if call := &mem.Control.Calls[i]; !call.Answered {
				calls = append(calls, call.Call)
			}
		}
		return calls
	}
	return nil
}

// outcome is what ends a run, or a turn of a conversation; nil if the event does
// neither.
func outcome(mem *reducer.Memory, e *events.Event, terminal bool) Output {
	switch p := e.Data.(type) {
	case *events.LLMMessageComplete:
		return FinalAnswer{N: e.N, MessageID: p.MessageID, State: e.To, Content: p.Content, Incomplete: p.Incomplete, Annotations: p.Citations}
	case *events.CancelledRun:
		return Error{N: e.N, Code: "cancelled", Message: p.Reason}
	}
	switch {
	case !terminal:
		return nil
	case mem.Error != nil:
		return Error{N: e.N, Code: mem.Error.Code, Message: mem.Error.Message}
	case mem.Mode == events.ModeChat:
		return nil // each turn has its answer
	}
	answer := FinalAnswer{N: e.N, State: e.To, Incomplete: mem.Control.Incomplete}
	if p, ok := e.Data.(*events.LLMFinalAnswer); ok {
		answer.MessageID, answer.Annotations = p.MessageID, p.Citations
	}
	if mem.FinalAnswer != nil {
		answer.Content = *mem.FinalAnswer
	}
	return answer
}

// chunk is what planners send to the live feed: text, reasoning or a piece of a call.
type chunk struct {
	MessageID string `json:"message_id"`
	Kind      string `json:"kind"`
	Offset    int    `json:"offset"`
	Index     int    `json:"index"`
	Name      string `json:"name"`
	Text      string `json:"text"`
}

// The kinds of a chunk. Text may have none.
const (
	chunkText      = "text"
	chunkReasoning = "reasoning"
	chunkToolCall  = "tool_call"
)

// OfChunk returns the output of a chunk of the live feed, or nil if data is no chunk or of an
// unknown kind.
func OfChunk(data []byte) Output {
	var c chunk
	if json.Unmarshal(data, &c) != nil || c.MessageID == "" {
		return nil
	}
	switch c.Kind {
	case "", chunkText:
		return LLMToken{MessageID: c.MessageID, Offset: c.Offset, Text: c.Text}
	case chunkReasoning:
		return ReasoningToken{MessageID: c.MessageID, Offset: c.Offset, Text: c.Text}
	case chunkToolCall:
		return ToolCallDelta{MessageID: c.MessageID, Index: c.Index, Name: c.Name, Text: c.Text}
	}
	return nil
}
