package events

import (
	"encoding/json"
	"strings"
)

// ReservedPrefix begins the names of Moorebus' own tools: no other tool may have
// such a name.
const ReservedPrefix = "moorebus_"

// Reserved reports whether a tool's name is one that only Moorebus may give.
func Reserved(name string) bool { return strings.HasPrefix(name, ReservedPrefix) }

// ContextReply is what an event that edits the model's context holds beside the
// edit where the model itself asked for it, by a call of one of Moorebus' own
// tools: the call and its answer. Such calls are no tool calls of the run: they
// are shown to the model while the current loop lasts and stand nowhere else.
type ContextReply struct {
	Content string `json:"content"`
	// MessageID names the reply on the live feed, and its text where there is any.
	MessageID string `json:"message_id,omitempty"`
	// Calls are answered by Results, each by one.
	Calls      []Call   `json:"calls"`
	Results    []Answer `json:"results"`
	Confidence float64  `json:"confidence"`
	Model      string   `json:"model"`
	Usage      Usage    `json:"usage"`
	// Part says that the reply has further calls: their events follow in the same
	// append, and the last one of them is what counts as the reply and has its
	// text and its usage.
	Part bool `json:"part,omitempty"`
	// Reasoning is what the provider wants back with this reply; opaque.
	Reasoning json.RawMessage `json:"reasoning,omitempty"`
	// Chunks are the timing of the text, see [Chunks].
	Chunks Chunks `json:"chunks,omitempty"`
}

// ReplyOf returns what a payload holds of a reply of the model that edited its own
// context; nil for an edit from outside and for every other payload.
func ReplyOf(p Payload) *ContextReply {
	switch p := p.(type) {
	case *ContextWindowExpanded:
		return p.ContextReply
	case *ToolCallsAddedToContext:
		return p.ContextReply
	}
	return nil
}

// Chunks is how the text of a reply came: for each part the milliseconds since the
// call began, and how many bytes of the text it has. The bytes add up to the text.
type Chunks [][2]int64

// ChunksOf returns a reply's text and how it came; no chunks where that was not
// recorded, or does not fit the text.
func ChunksOf(p Payload) (text string, chunks Chunks) {
	said, came := timed(p)
	if said == nil {
		return "", nil
	}
	if !came.fit(*said) {
		return *said, nil
	}
	return *said, *came
}

// SetChunks notes in a reply that is about to be written how its text came, where
// that fits the text.
func SetChunks(p Payload, chunks Chunks) {
	if said, came := timed(p); said != nil && chunks.fit(*said) {
		*came = chunks
	}
}

// timed returns where a payload has a reply's text and its timing, nil where it has
// none.
func timed(p Payload) (*string, *Chunks) {
	switch p := p.(type) {
	case *LLMToolCall:
		return &p.Content, &p.Chunks
	case *LLMParallelToolCalls:
		return &p.Content, &p.Chunks
	case *HumanApprovalRequired:
		return &p.Content, &p.Chunks
	case *LLMFinalAnswer:
		return &p.Content, &p.Chunks
	case *LLMMessageComplete:
		return &p.Content, &p.Chunks
	case *LLMThought:
		return &p.Content, &p.Chunks
	case *AnswerTooShort:
		return &p.Content, &p.Chunks
	case *ToolBlacklisted:
		return &p.Content, &p.Chunks
	case *ReplyInvalid:
		return &p.Content, &p.Chunks
	}
	if r := ReplyOf(p); r != nil {
		return &r.Content, &r.Chunks
	}
	return nil, nil
}

// fit reports whether the parts are those of the text: they add up to it, none is
// empty, and none comes before the one before it.
func (c Chunks) fit(text string) bool {
	last, sum := int64(0), int64(0)
	for _, part := range c {
		if part[0] < last || part[1] <= 0 {
			return false
		}
		last, sum = part[0], sum+part[1]
	}
	return sum == int64(len(text))
}
