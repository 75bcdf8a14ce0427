// Package llm is the port to language models: one request, one reply.
//
// A [Caller] takes a [Request] and returns exactly one [Response] or one *[Error].
// It keeps no conversation: the request holds everything that the model should see,
// so any process can continue a run. A Caller is safe for concurrent use, returns
// soon after its context ends, and never retries by itself. The caller of the Caller
// records attempts and decides when to try again.
//
// Every Caller returns unusual replies in the same way:
//   - How the reply ended is its [Meta] Finish, and the provider's own word for it.
//   - A refusal of the model or its provider is a [Text] with its words, or
//     [RefusedText] if there are none, and finish [FinishRefusal]. Its calls are
//     dropped, and it is never [Structured].
//   - A reply that was truncated is the reply as far as it came, with finish
//     [FinishLength]. The last call of such a reply may lack its end and must not
//     run, even if its arguments are valid. The same holds for [FinishContentFilter]
//     and [FinishError].
//   - A stream that ended without an ending is an *[Error] of [KindBroken] that holds
//     what was billed. A Caller does not ask again by itself.
//
// The adapters openai, responses, anthropic and scripted are in sub-packages. All adapters pass
// one suite; those of a provider's API also pass a suite of faults on the wire.
package llm

import (
	"context"
	"encoding/json"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
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
	// Parts are, in a user or tool message, its content where that is more than text:
	// text, images and files in order. Content is then the text alone. A Caller whose
	// model does not take a part says in words that it was omitted. Parts with a Ref are
	// loaded before a Caller gets them.
	Parts []events.Part
	// Reasoning is, in an assistant message, the [Meta] Reasoning of the reply, and Asked
	// who was asked for it. A Caller sends back what its provider wants back, and
	// nothing of another provider or model.
	Reasoning events.Reasoning
	Asked     events.Asked
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
	// Effort is how much the model is to reason, as agents write it (none, minimal, low,
	// medium, high, xhigh, max); empty: as the provider does it.
	Effort string
	// ThinkingTokens bounds the reasoning before an answer, in tokens; 0 means no bound,
	// and without an Effort nothing is asked for. Providers without such a setting
	// ignore it.
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
	// Provider is the name under which agents know the Caller, see [events.Asked]; may be empty.
	Provider string
	// Model is the model's name; empty means the Caller's own default.
	Model    string
	Messages []Message
	Tools    []Tool
	// ProviderTools are tools that the provider itself carries out, such as a web search:
	// JSON objects in its API's own form, which are sent as they are. A tool of Tools that
	// has the name of one of them is not described a second time.
	ProviderTools []json.RawMessage
	Sampling      Sampling
	// OutputSchema, when set, is the JSON Schema that a final answer has to
	// satisfy. A Caller that can ask its provider for that does so and answers
	// with [Structured].
	OutputSchema json.RawMessage
	// Settings is the agent's `llm` block as JSON, for settings of one adapter: the
	// scripted one reads its script there.
	Settings json.RawMessage
	// Rest says that the request asks for the rest of a reply that was truncated. The reply
	// and the request to continue are its last two messages.
	Rest bool
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

// Plus returns the usage of two requests. Its cost is known if that of each is; no tokens
// cost nothing.
func (u Usage) Plus(v Usage) Usage {
	sum := Usage{Input: u.Input + v.Input, Output: u.Output + v.Output, Cached: u.Cached + v.Cached, Total: u.Total + v.Total}
	known, cost := true, 0.0
	for _, one := range []Usage{u, v} {
		switch {
		case one.CostUSD != nil:
			cost += *one.CostUSD
		case one != Usage{}:
			known = false
		}
	}
	if known && (u.CostUSD != nil || v.CostUSD != nil) {
		sum.CostUSD = &cost
	}
	return sum
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
	// Finish is how the reply ended, and FinishRaw the provider's own word for it, empty if
	// there is none. Empty counts as [FinishStop], or [FinishToolCalls] for a reply with
	// calls.
	Finish    Finish
	FinishRaw string
	// Reasoning is what the model reasoned, in order.
	Reasoning events.Reasoning
	// ReasoningBack says that the provider wants the text of the reasoning back in later
	// requests, not only its opaque parts.
	ReasoningBack bool
	// Citations are the sources that the reply's text names.
	Citations []events.Citation
	// Adjusted are settings that were sent otherwise than the request has them.
	Adjusted []events.Adjusted
	// Dialect is the API that was asked, as its adapter is called: openai, responses or
	// anthropic. Empty: none was.
	Dialect string
	// RequestSHA256 is the lower-case hex digest of the request's body as it was sent; the
	// first one's where the reply took several. Empty: nothing was sent.
	RequestSHA256 string
}

// Cut reports whether the reply was truncated, so that its last call or its text may lack
// the end.
func (m Meta) Cut() bool {
	return m.Finish == FinishLength || m.Finish == FinishContentFilter || m.Finish == FinishError
}

// Finish says how a reply ended.
type Finish string

// The endings of a reply.
const (
	FinishStop      Finish = "stop"
	FinishToolCalls Finish = "tool_calls"
	// FinishLength is a reply that was truncated at a token limit.
	FinishLength Finish = "length"
	// FinishContentFilter is one that the provider cut off or withheld for its content.
	FinishContentFilter Finish = "content_filter"
	FinishRefusal       Finish = "refusal"
	// FinishError is one that the provider cut off by its own failure.
	FinishError Finish = "error"
	// FinishUnknown is one whose ending the provider names with a word that says nothing here.
	FinishUnknown Finish = "unknown"
)

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

// ToolCalls is a reply that asks for at least one tool call, with the reply's
// text.
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
	ChunkText      ChunkKind = "text"
	ChunkReasoning ChunkKind = "reasoning"
	ChunkToolCall  ChunkKind = "tool_call"
)

// Chunk is a part of a streamed reply. Chunks are only for display: the reply that
// Call returns is complete without them.
type Chunk struct {
	Kind ChunkKind
	// Text is the new text (ChunkText, ChunkReasoning), or new argument text
	// (ChunkToolCall).
	Text string
	// Index and Name tell which call a ChunkToolCall belongs to; Name may be
	// empty after the first chunk of a call.
	Index int
	Name  string
}

// Caller asks a model for one reply.
//
// With a non-nil stream the reply is streamed: stream is called in order, from one
// goroutine, before Call returns, and must not block. If a stream breaks, the error is of
// [KindBroken], and the chunks so far are void. Every error is an *Error, except the context's own.
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

// Writer is a [Caller] that can write a request without sending it.
type Writer interface {
	// Write returns the request that Call would send first: for a streamed reply if stream
	// says so, and to the API of that [Meta] Dialect if the caller has a choice and dialect
	// is not empty. The error is that of a request which cannot be written.
	Write(ctx context.Context, req Request, dialect string, stream bool) (Written, error)
}

// Written is a request as it goes over the wire. Dialect is the API, as in [Meta].
type Written struct {
	Dialect string
	Body    []byte
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

// The kinds of errors. The first four pass with time; the others do not.
const (
	// KindBroken is a reply that came in part, without an ending.
	KindBroken         ErrorKind = "broken_reply"
	KindRateLimited    ErrorKind = "rate_limited"
	KindOverloaded     ErrorKind = "overloaded"
	KindNetwork        ErrorKind = "network"
	KindAuth           ErrorKind = "auth"
	KindInvalid        ErrorKind = "invalid"
	KindContextTooLong ErrorKind = "context_too_long"
	// KindSchemaRefused is an output schema or a tool's schema that the server refuses.
	KindSchemaRefused ErrorKind = "schema_refused"
	// KindToolUse is a reply whose calls or form the server could not read, and so withheld.
	// The message tells the model what was wrong, and holds what it wrote if the server
	// shows that.
	KindToolUse ErrorKind = "tool_use_failed"
	KindOther   ErrorKind = "other"
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
	// Reply is what is known of a reply that came and is not used, nil if none came.
	Reply *Meta
	// Status is the HTTP status, or 0.
	Status int
	// Err is the cause, if any.
	Err error
}

// Error returns kind and message.
func (e *Error) Error() string { return string(e.Kind) + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
