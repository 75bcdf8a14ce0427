// Package runstream turns what a run does into a stream of outputs that people and programs
// are shown, such as the start of a state, a piece of text, or the end of a tool call.
//
// Most outputs come from the log: [Of] is a function of an event and the memory after it.
// So every reader of a run sees the same outputs in the same order, each once, live and in
// a replay. Three kinds come from the live feed only: [LLMToken], [ReasoningToken] and
// [ToolCallDelta] are best effort, may be missing, and are void when a reply begins anew. [Stream] merges both. It
// passes none of a message's tokens on after the event that has the entire message.
//
// [Marshal] writes an output as one JSON object with its kind and its run. [TableText] and its
// like draw transition tables.
package runstream

import (
	"encoding/json"

	"github.com/moorebus/moorebus/pkg/events"
)

// Kind names an output, as its JSON does.
type Kind string

// The kinds.
const (
	KindStateStarted     Kind = "state_started"
	KindLLMToken         Kind = "llm_token"
	KindReasoningToken   Kind = "reasoning_token"
	KindReasoned         Kind = "reasoned"
	KindToolCallDelta    Kind = "tool_call_delta"
	KindToolCallStarted  Kind = "tool_call_started"
	KindToolCallFinished Kind = "tool_call_finished"
	KindAction           Kind = "action"
	KindFinalAnswer      Kind = "final_answer"
	KindError            Kind = "error"
)

// Output is one of the types of this file, nothing else.
type Output interface {
	// Kind says which one.
	Kind() Kind
	isOutput()
}

// StateStarted says that the run came to a state: event N of the run led there.
type StateStarted struct {
	N     uint64       `json:"n"`
	Step  int          `json:"step"`
	State events.State `json:"state"`
}

// LLMToken is a piece of the model's text. Offset counts the bytes of the message before it.
// If it is smaller than expected, the message began anew; if it is larger, something was
// lost.
type LLMToken struct {
	MessageID string `json:"message_id"`
	Offset    int    `json:"offset"`
	Text      string `json:"text"`
}

// ReasoningToken is a piece of what the model reasons. Offset counts the bytes of the
// reasoning before it.
type ReasoningToken struct {
	MessageID string `json:"message_id"`
	Offset    int    `json:"offset"`
	Text      string `json:"text"`
}

// Reasoned is what the model reasoned before a reply: the text of it, and how many parts only
// the provider can read. Ref is where it is if it is too large for the log.
type Reasoned struct {
	N      uint64 `json:"n"`
	Text   string `json:"text"`
	Opaque int    `json:"opaque,omitempty"`
	// Items says what the provider's own tools did.
	Items []string    `json:"items,omitempty"`
	Ref   *events.Ref `json:"ref,omitempty"`
}

// ToolCallDelta is a piece of the arguments of a call that the model is making.
// Index is the call's place in the reply, from 0; Name may be empty after the first
// piece.
type ToolCallDelta struct {
	MessageID string `json:"message_id"`
	Index     int    `json:"index"`
	Name      string `json:"name"`
	Text      string `json:"text"`
}

// ToolCallStarted says that a call went to its tool: it was accepted, and approved if that
// was needed. A call that an approval lets run once more starts again.
type ToolCallStarted struct {
	N         uint64 `json:"n"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// ToolCallFinished is the result of a call.
type ToolCallFinished struct {
	N           uint64 `json:"n"`
	CallID      string `json:"call_id"`
	Name        string `json:"name"`
	Success     bool   `json:"success"`
	Observation string `json:"observation"`
	Code        string `json:"code"`
	LatencyMS   int64  `json:"latency_ms"`
}

// Action is what was decided in a state: an event that moved the run, with its text in the
// trace.
type Action struct {
	N     uint64       `json:"n"`
	Step  int          `json:"step"`
	State events.State `json:"state"`
	Event events.Type  `json:"event"`
	Data  string       `json:"data"`
}

// FinalAnswer is the answer of a run that ended well, and its last output. In chat mode it
// is the answer of a turn. State is the run's state after it. Incomplete says that the answer
// was truncated, and that the agent takes it all the same.
type FinalAnswer struct {
	N         uint64       `json:"n"`
	MessageID string       `json:"message_id,omitempty"`
	State     events.State `json:"state"`
	Content   string       `json:"content"`
	// Incomplete is omitted of JSON if it is false.
	Incomplete bool `json:"incomplete,omitempty"`
	// Annotations are the sources that the answer names.
	Annotations []events.Citation `json:"annotations,omitempty"`
}

// Error says why a run failed or was cancelled. It is the last output.
type Error struct {
	N       uint64 `json:"n"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Kind returns the kind.
func (StateStarted) Kind() Kind { return KindStateStarted }

// Kind returns the kind.
func (LLMToken) Kind() Kind { return KindLLMToken }

// Kind returns the kind.
func (ReasoningToken) Kind() Kind { return KindReasoningToken }

// Kind returns the kind.
func (Reasoned) Kind() Kind { return KindReasoned }

// Kind returns the kind.
func (ToolCallDelta) Kind() Kind { return KindToolCallDelta }

// Kind returns the kind.
func (ToolCallStarted) Kind() Kind { return KindToolCallStarted }

// Kind returns the kind.
func (ToolCallFinished) Kind() Kind { return KindToolCallFinished }

// Kind returns the kind.
func (Action) Kind() Kind { return KindAction }

// Kind returns the kind.
func (FinalAnswer) Kind() Kind { return KindFinalAnswer }

// Kind returns the kind.
func (Error) Kind() Kind { return KindError }

func (StateStarted) isOutput()     {}
func (LLMToken) isOutput()         {}
func (ReasoningToken) isOutput()   {}
func (Reasoned) isOutput()         {}
func (ToolCallDelta) isOutput()    {}
func (ToolCallStarted) isOutput()  {}
func (ToolCallFinished) isOutput() {}
func (Action) isOutput()           {}
func (FinalAnswer) isOutput()      {}
func (Error) isOutput()            {}

// Marshal writes an output as one JSON object on one line: `kind` and `run` first,
// then the output's own keys.
func Marshal(run string, o Output) ([]byte, error) {
	head, err := json.Marshal(struct {
		Kind Kind   `json:"kind"`
		Run  string `json:"run"`
	}{o.Kind(), run})
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return append(append(head[:len(head)-1], ','), body[1:]...), nil
}
