// Package llm is the port to language models: one request, one reply.
//
// A [Caller] gets a [Request] and gives back exactly one [Response] or one
// *[Error]. It keeps no conversation: everything that the model should see is in
// the request, so that the same run can be continued by any process. A Caller
// is safe for concurrent use, returns soon after its context ends, and never
// retries by itself: how often and when to try again is decided from
// [Policy] by whoever records attempts durably.
//
// A reply that is not what was asked for comes back in the same way from every
// Caller:
//   - A refusal, be it the model's or its provider's, is a [Text] with the words
//     that it came with, or [RefusedText] where there are none; calls beside it
//     are dropped, and it is never [Structured].
//   - A reply that was cut off at the token limit is the reply as far as it came,
//     with Cut set. The last call of such a reply may lack its end and must not
//     be run, even if its arguments are valid.
//   - A reply that a content filter withheld is an *[Error] of [KindInvalid].
//
// Adapters live in the sub-packages (openai, anthropic, scripted, recorded) and
// all pass the suite in package llmtest; those that speak a provider's API also
// pass its suite of what can happen on the wire.
package llm

import (
	"context"
	"encoding/json"
	"time"
)

// Role says who speaks in a [Message].
type Role string

// The roles of a conversation, as every provider names them.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one entry of the conversation sent to the model. An assistant
// message may hold text, calls or both; a tool message answers exactly one call
// and may be empty.
type Message struct {
	Role    Role
	Content string
	// Calls are the tool calls of an assistant message, in order.
	Calls []Call
	// CallID names, in a tool message, the call that it answers.
	CallID string
	// Name is, in a tool message, the name of the tool that was called.
	Name string
	// Failed marks a tool message whose call went wrong.
	Failed bool
	// Reasoning is, in an assistant message, the [Meta] Reasoning that the reply
	// came with; a Caller leaves it out where another one wrote it.
	Reasoning json.RawMessage
	// Raw is true for an assistant message that could not be read: Content is
	// what the model wrote, not what it meant.
	Raw bool
}

// Call is one tool call of the model. Arguments is the model's own text, byte
// for byte as far as the provider shows it, and {} where the model gave none; it
// need not be valid JSON.
type Call struct {
	ID        string
	Name      string
	Arguments string
}

// Tool describes a tool to the model. Schema is a JSON Schema of its arguments.
type Tool struct {
	Name        string
	Description string
	Schema      json.RawMessage
}

// Sampling holds the optional sampling settings; nil and zero leave a setting
// to the provider.
type Sampling struct {
	Temperature *float64
	TopP        *float64
	Seed        *int
	// MaxTokens bounds the reply, in tokens.
	MaxTokens int
	Stop      []string
	// ThinkingTokens bounds what a model may think before it answers, in tokens;
	// 0 means that it does not. Providers without such a setting ignore it.
	ThinkingTokens int
}

// Purpose says what a reply is for.
type Purpose string

// The purposes of a request.
const (
	PurposePlan    Purpose = "plan"
	PurposeReflect Purpose = "reflect"
)

// Request is everything a model needs for one reply.
type Request struct {
	// Run is the run's id, for logs and traces only.
	Run     string
	Purpose Purpose
	// Model is the model's name; empty means the Caller's own default.
	Model    string
	Messages []Message
	Tools    []Tool
	Sampling Sampling
	// OutputSchema, when set, is the JSON Schema that a final answer has to
	// satisfy. A Caller that can ask its provider for that does so and answers
	// with [Structured].
	OutputSchema json.RawMessage
	// Settings is the agent's own `llm` block as JSON: what an adapter
	// understands beyond this struct (the scripted one reads its script there).
	Settings json.RawMessage
	// Replies is the number of replies that the run's log already holds.
	Replies int
	// Observations are the raw results of the run's tool calls, oldest first, where
	// the Settings hold a script that can refer to them.
	Observations []string
	// Memory is set for agents that speak the text protocol, nil for others.
	Memory *Memory
}

// Usage counts the tokens of one reply. Input are all tokens that were sent,
// cached or not; Cached is the part of them that was read from the provider's
// cache. Total is Input plus Output.
type Usage struct {
	Input  int
	Output int
	Cached int
	Total  int
	// CostUSD is the price in US dollars, nil where it is not known.
	CostUSD *float64
}

// Meta is what every reply has beside its content.
type Meta struct {
	// Model is the name that the provider says answered.
	Model string
	Usage Usage
	// Confidence is between 0 and 1. The zero value means that the provider gives
	// none, which counts as 1, unless ZeroConfidence is set.
	Confidence float64
	// ZeroConfidence says that the provider gives a confidence of 0.
	ZeroConfidence bool
	// Cut says that the reply was cut off at the token limit.
	Cut bool
	// Reasoning is what the provider wants back with this reply as long as the
	// calls in it are worked on, such as signed thinking. It is opaque JSON that
	// names its provider; nil where there is none.
	Reasoning json.RawMessage
}

// RefusedText is the text of a refusal that came without words.
const RefusedText = "The model refused to answer."

// Response is a reply: [Text], [ToolCalls] or [Structured], and under the text
// protocol also [Thought] or [Invalid]; nothing else.
type Response interface {
	// About returns what every reply has.
	About() Meta
	isResponse()
}

// Text is a reply in words.
type Text struct {
	Meta
	Content string
}

// ToolCalls is a reply that asks for at least one tool call, with the text that
// stood beside the calls.
type ToolCalls struct {
	Meta
	Content string
	Calls   []Call
}

// Structured is a reply to a request with an OutputSchema that the provider
// was told about. Content is the JSON text; it is not validated here.
type Structured struct {
	Meta
	Content string
}

func (Text) isResponse()       {}
func (ToolCalls) isResponse()  {}
func (Structured) isResponse() {}

// About returns m itself, so that embedding Meta makes a reply.
func (m Meta) About() Meta { return m }

// ChunkKind says what a [Chunk] is a part of.
type ChunkKind string

// The kinds of a chunk.
const (
	ChunkText     ChunkKind = "text"
	ChunkToolCall ChunkKind = "tool_call"
)

// Chunk is a part of a reply in the making. Chunks are for showing only: the
// reply that Call returns is complete without them.
type Chunk struct {
	Kind ChunkKind
	// Text is the new text (ChunkText), or new argument text (ChunkToolCall).
	Text string
	// Index and Name tell which call a ChunkToolCall belongs to; Name may be
	// empty after the first chunk of a call.
	Index int
	Name  string
}

// Caller asks a model for one reply.
//
// With a non-nil stream the reply is streamed: stream is called in order, from
// one goroutine, before Call returns, and must not block. A stream that breaks
// before it is complete falls back once to a plain call inside the same Call;
// chunks already given are then void (the caller sees a complete reply whose
// text starts again). Every error is an *Error, except the context's own.
type Caller interface {
	Call(ctx context.Context, req Request, stream func(Chunk)) (Response, error)
}

// InProcess is a [Caller] that has its replies in this process: no provider limits
// how often it is asked.
type InProcess interface {
	Caller
	// InProcess does nothing.
	InProcess()
}

// CallerFunc makes a function a [Caller].
type CallerFunc func(ctx context.Context, req Request, stream func(Chunk)) (Response, error)

// Call calls f.
func (f CallerFunc) Call(ctx context.Context, req Request, stream func(Chunk)) (Response, error) {
	return f(ctx, req, stream)
}

// ErrorKind sorts what can go wrong with a call by what to do about it.
type ErrorKind string

// The kinds of errors. The first three pass with time; the others do not.
const (
	KindRateLimited    ErrorKind = "rate_limited"
	KindOverloaded     ErrorKind = "overloaded"
	KindNetwork        ErrorKind = "network"
	KindAuth           ErrorKind = "auth"
	KindInvalid        ErrorKind = "invalid"
	KindContextTooLong ErrorKind = "context_too_long"
	KindOther          ErrorKind = "other"
)

// Error is a call that gave no reply.
type Error struct {
	Kind ErrorKind
	// Message is the provider's own message where it gave one. It never holds
	// a key.
	Message string
	// RetryAfter is how long the provider asked to wait; 0 where it did not.
	RetryAfter time.Duration
	// Usage is what was billed all the same, nil where nothing is known of it.
	Usage *Usage
	// Status is the HTTP status, 0 where there was none.
	Status int
	// Err is the cause, if any.
	Err error
}

// Error returns kind and message.
func (e *Error) Error() string { return string(e.Kind) + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
