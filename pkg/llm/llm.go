// Package llm is the port to language models: one request, one reply.
//
// A [Caller] takes a [Request] and returns exactly one [Response] or one *[Error].
// It keeps no conversation: the request holds everything that the model should see,
// so any process can continue a run. A Caller is safe for concurrent use, returns
// soon after its context ends, and never retries by itself. The caller of the Caller
// records attempts and decides when to try again.
//
// Every Caller returns unusual replies in the same way:
//   - A refusal of the model or its provider is a [Text] with its words, or
//     [RefusedText] if there are none. Calls beside it are dropped, and it is never
//     [Structured].
//   - A reply that was cut off at the token limit is the reply as far as it came,
//     with Cut set. The last call of such a reply may lack its end and must not
//     run, even if its arguments are valid.
//   - A reply that a content filter withheld is an *[Error] of [KindInvalid].
//
// The adapters openai, anthropic and scripted are in sub-packages. All adapters pass
// one suite; those of a provider's API also pass a suite of faults on the wire.
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
	// Reasoning is, in an assistant message, the [Meta] Reasoning of the reply. A
	// Caller ignores the Reasoning of another one.
	Reasoning json.RawMessage
	// Raw marks an assistant message that could not be read: Content is the model's
	// text as it came.
	Raw bool
}

// Call is one tool call of the model. Arguments is the model's own text, byte for byte
// as far as the provider shows it, and {} if the model gave none. It need not be valid
// JSON.
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

// Sampling holds optional settings; the provider decides about those that are nil or
// zero.
type Sampling struct {
	Temperature *float64
	TopP        *float64
	Seed        *int
	// MaxTokens bounds the reply, in tokens.
	MaxTokens int
	Stop      []string
	// ThinkingTokens bounds the thinking before an answer, in tokens; 0 means no
	// thinking. Providers without such a setting ignore it.
	ThinkingTokens int
}

// Purpose says what a reply is for.
type Purpose string

// The purposes of a request.
const (
	PurposePlan    Purpose = "plan"
	PurposeReflect Purpose = "reflect"
)

// Request is everything a model needs for one reply. What it points to is shared with requests
// of the same run and of other runs: a Caller must not change it, and may keep it.
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
	// Settings is the agent's `llm` block as JSON, for settings of one adapter: the
	// scripted one reads its script there.
	Settings json.RawMessage
	// Replies is the number of replies that the run's log already holds.
	Replies int
	// Observations are the raw results of the run's tool calls, oldest first. They
	// are set if Settings hold a script, which can refer to them.
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

// Meta is the part that all replies have.
type Meta struct {
	// Model is the name that the provider says answered.
	Model string
	Usage Usage
	// Confidence is between 0 and 1. 0 means that the provider gives none, which
	// counts as 1, unless ZeroConfidence is set.
	Confidence float64
	// ZeroConfidence says that the provider gives a confidence of 0.
	ZeroConfidence bool
	// Cut says that the reply was cut off at the token limit.
	Cut bool
	// Reasoning is what the provider wants back with this reply while its calls are
	// answered, such as signed thinking. It is opaque JSON that names its provider,
	// or nil.
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

// Structured is a reply to a request whose OutputSchema was sent to the provider.
// Content is the JSON text, which is not validated.
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

// Chunk is a part of a streamed reply. Chunks are only for display: the reply that
// Call returns is complete without them.
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
// With a non-nil stream the reply is streamed: stream is called in order, from one
// goroutine, before Call returns, and must not block. If a stream breaks, Call falls
// back once to a plain call. The chunks so far are then void: the text starts again.
// Every error is an *Error, except the context's own.
type Caller interface {
	Call(ctx context.Context, req Request, stream func(Chunk)) (Response, error)
}

// Described is a [Caller] that describes itself. Every other caller counts as a remote
// provider without a default model.
type Described interface {
	Caller
	Describe() Description
}

// Description is what the roles have to know of a [Caller]. The zero value describes a
// remote provider.
type Description struct {
	// Identity is equal for callers that can replace each other, such as two with the
	// same address and default model, and differs for others. It holds no key. Empty:
	// the caller's type and program identify it.
	Identity string
	// DefaultModel is the model for requests that name none, or empty.
	DefaultModel string
	// Local says that the replies come from this process: no rate limit applies, and
	// the costs are the caller's own.
	Local bool
	// OwnCost says that a reply costs what its usage says, or nothing. No price is
	// looked up for it.
	OwnCost bool
	// Parsed says that the replies already are thoughts, calls and answers, as in
	// recordings. The text protocol is not put over it.
	Parsed bool
}

// Describe returns the description of c, or the zero value if c has none.
func Describe(c Caller) Description {
	if d, ok := c.(Described); ok {
		return d.Describe()
	}
	return Description{}
}

// CallerFunc makes a function a [Caller].
type CallerFunc func(ctx context.Context, req Request, stream func(Chunk)) (Response, error)

// Call calls f.
func (f CallerFunc) Call(ctx context.Context, req Request, stream func(Chunk)) (Response, error) {
	return f(ctx, req, stream)
}

// ErrorKind sorts the errors of calls by what to do about them.
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
	// Message is the provider's own message if it gave one. It never holds a key.
	Message string
	// RetryAfter is the wait that the provider asked for, or 0.
	RetryAfter time.Duration
	// Usage is what was billed anyway, nil if that is unknown.
	Usage *Usage
	// Status is the HTTP status, or 0.
	Status int
	// Err is the cause, if any.
	Err error
}

// Error returns kind and message.
func (e *Error) Error() string { return string(e.Kind) + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
