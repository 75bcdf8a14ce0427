package events

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/replyitem"
)

// Call is one tool call as the log names it. ID is unique in the run;
// ProviderID is the provider's own id where that had to be renamed. Arguments
// is the model's text, verbatim.
type Call struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Arguments  string `json:"arguments"`
	ProviderID string `json:"provider_id,omitempty"`
}

// Refusal is a call that was answered without being run.
type Refusal struct {
	Call
	Observation string `json:"observation"`
	Code        string `json:"code"`
	// Place is the call's place in the model's reply, counted from 1; 0 where
	// nobody counted: after all that were not refused.
	Place int `json:"place,omitempty"`
}

// Answer is the observation that a refused call got, by the call's id.
type Answer struct {
	ID          string `json:"id"`
	Observation string `json:"observation"`
	Code        string `json:"code"`
}

// Usage counts the tokens of one reply. Total is Input plus Output, Cached a
// part of Input.
type Usage struct {
	Input   int      `json:"input"`
	Output  int      `json:"output"`
	Cached  int      `json:"cached"`
	Total   int      `json:"total"`
	CostUSD *float64 `json:"cost_usd,omitempty"`
}

// Ref points to a result that was too large for the log.
type Ref struct {
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
	Size   int    `json:"size"`
	SHA256 string `json:"sha256"`
}

// Facts are the metadata that the log keeps of any reply of a model: how it ended, what the model
// reasoned, and with which settings it was asked.
type Facts struct {
	// Finish is how the reply ended: stop, tool_calls, length, content_filter, refusal,
	// error or unknown; empty in logs of builds that did not record it. FinishRaw is the
	// provider's own word.
	Finish    string `json:"finish,omitempty"`
	FinishRaw string `json:"finish_raw,omitempty"`
	// Reasoning is what the model reasoned, in order. ReasoningRef points to it where it
	// is too large for the log; its bytes are the JSON of the list.
	Reasoning    Reasoning `json:"reasoning,omitempty"`
	ReasoningRef *Ref      `json:"reasoning_ref,omitempty"`
	// Citations are the sources that the reply's text names.
	Citations []Citation `json:"annotations,omitempty"`
	// Asked is who was asked: the provider by the name that agents use, and the model.
	Asked *Asked `json:"asked,omitempty"`
	// Adjusted are settings that were sent otherwise than the agent has them.
	Adjusted []Adjusted `json:"adjusted,omitempty"`
	// Dialect is the API that was asked: openai (chat completions), responses or anthropic, or
	// client for a model that is the run's client; empty where none was.
	Dialect string `json:"dialect,omitempty"`
	// RequestSHA256 is the digest of the request's body as it was sent, in lower-case hex;
	// empty where nothing was sent.
	RequestSHA256 string `json:"request_sha256,omitempty"`
	// ContextDropped says that the server read only a part of the request.
	ContextDropped *ContextDropped `json:"context_dropped,omitempty"`
}

// ContextDropped is how many tokens of a request a server read, by its own count, and how
// many were sent at least, by a low estimate.
type ContextDropped struct {
	Read int `json:"read"`
	Sent int `json:"sent"`
}

// The values of Finish that are nothing unusual.
const (
	finishStop      = "stop"
	finishToolCalls = "tool_calls"
)

// Asked names the provider and the model that a request went to. Provider is the name that agents
// use. Empty: unknown, which counts as the same one.
type Asked struct {
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model,omitempty"`
}

// Matches reports whether what a asked may be sent to b: both name the same provider and model, as
// far as they are known.
func (a Asked) Matches(b Asked) bool {
	same := func(x, y string) bool { return x == "" || y == "" || x == y }
	return same(a.Provider, b.Provider) && same(a.Model, b.Model)
}

// Citation is a source of a passage of a reply's text. Type is the provider's own word. Start
// and End bound the passage, in characters of the text from 0; both are 0 where the provider
// does not say. Quote is the passage of the source. Only Type is always set.
type Citation struct {
	Type  string `json:"type"`
	URL   string `json:"url,omitempty"`
	Title string `json:"title,omitempty"`
	Quote string `json:"quote,omitempty"`
	Start int    `json:"start,omitempty"`
	End   int    `json:"end,omitempty"`
}

// Adjusted is a setting that was sent otherwise than the agent has it. Key is the setting as agents
// write it, such as reasoning.effort or temperature. Sent is what was sent, as JSON, nil where it was
// omitted.
type Adjusted struct {
	Key  string          `json:"key"`
	Sent json.RawMessage `json:"sent,omitempty"`
}

// The kinds of a [ReasoningPart].
const (
	// ReasoningText is the model's reasoning in its own words.
	ReasoningText = "text"
	// ReasoningSummary is a summary of it that the provider gives.
	ReasoningSummary = "summary"
	// ReasoningOpaque is a value of the provider's own: one that only it can read, such as a
	// signature or encrypted reasoning, or a part of the reply that is neither text, nor a
	// call, nor reasoning, such as a search that the provider made.
	ReasoningOpaque = "opaque"
)

// ReasoningPart is one part of a model's reasoning. Text is set for text and summary, Data, valid
// JSON as the provider gave it, for opaque. ID is the provider's name for what the part belongs to,
// such as a call or an item, where sending it back needs that.
type ReasoningPart struct {
	Kind string          `json:"kind"`
	Text string          `json:"text,omitempty"`
	Data json.RawMessage `json:"data,omitempty"`
	ID   string          `json:"id,omitempty"`
}

// Reasoning is a model's reasoning in order. In logs of older builds it is an object of the
// provider's adapter, which is read as one opaque part. It has no separate version: those
// builds pass on what they read, and so the list as well.
type Reasoning []ReasoningPart

// UnmarshalJSON reads the list, or the object of older builds.
func (r *Reasoning) UnmarshalJSON(data []byte) error {
	if data = bytes.TrimSpace(data); len(data) > 0 && data[0] != '[' && string(data) != "null" {
		*r = Reasoning{{Kind: ReasoningOpaque, Data: bytes.Clone(data)}}
		return nil
	}
	var parts []ReasoningPart
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	*r = parts
	return nil
}

// Text returns what can be read of the reasoning, a part after another.
func (r Reasoning) Text() string {
	var b strings.Builder
	for _, p := range r {
		if p.Text != "" && b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString(p.Text)
	}
	return b.String()
}

// Items says in a line each what the provider's own tools did for the reply, and what else is
// in it that is neither text, nor a call, nor reasoning.
func (r Reasoning) Items() (lines []string) {
	for _, p := range r {
		if line := replyitem.Shown(p.Data); p.Kind == ReasoningOpaque && line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// Opaque returns how many parts only the provider can read.
func (r Reasoning) Opaque() (n int) {
	for _, p := range r {
		if p.Kind == ReasoningOpaque && replyitem.Type(p.Data) == "" {
			n++
		}
	}
	return n
}

// modelReply is where a payload that comes of asking a model holds what every such
// payload has: its usage, and the text with its timing where it has any.
type modelReply struct {
	usage  *Usage
	text   *string
	chunks *Chunks
	facts  *Facts
}

func (r *Reply) modelReply() modelReply { return modelReply{&r.Usage, &r.Content, &r.Chunks, &r.Facts} }

func (r *ToolCallReply) modelReply() modelReply {
	return modelReply{&r.Usage, &r.Content, &r.Chunks, &r.Facts}
}

func (r *RefusedReply) modelReply() modelReply {
	return modelReply{&r.Usage, &r.Content, &r.Chunks, &r.Facts}
}

func (r *ContextReply) modelReply() modelReply {
	if r == nil {
		return modelReply{} // an edit from outside
	}
	return modelReply{&r.Usage, &r.Content, &r.Chunks, &r.Facts}
}

func (p *AnswerTooShort) modelReply() modelReply {
	return modelReply{&p.Usage, &p.Content, &p.Chunks, &p.Facts}
}

func (p *LowConfidence) modelReply() modelReply { return modelReply{usage: &p.Usage, facts: &p.Facts} }

func (p *ReflectDone) modelReply() modelReply { return modelReply{usage: p.Usage} }

func (p *LLMAttemptFailed) modelReply() modelReply {
	return modelReply{usage: p.Usage, facts: &p.Facts}
}

func (p *FatalError) modelReply() modelReply { return modelReply{usage: p.Usage, facts: &p.Facts} }

func modelReplyOf(p Payload) modelReply {
	if r, ok := p.(interface{ modelReply() modelReply }); ok {
		return r.modelReply()
	}
	return modelReply{}
}

// Billed returns where a payload holds the usage of a model's reply or of an
// attempt at one, so that the caller can fill in the cost; nil if it holds none.
func Billed(p Payload) *Usage { return modelReplyOf(p).usage }

// FactsOf returns where a payload that comes of a model's reply keeps the [Facts] of it; nil
// for every other payload.
func FactsOf(p Payload) *Facts { return modelReplyOf(p).facts }

// AllCalls returns every call of the reply in the model's own order: accepted
// ones, those that wait for their turn, and refused ones at their places.
func (r *ToolCallReply) AllCalls() []Call {
	total := len(r.Calls) + len(r.Queued) + len(r.Refused)
	at := make(map[int]Call, len(r.Refused))
	var late []Call
	for _, refused := range r.Refused {
		if _, taken := at[refused.Place]; taken || refused.Place < 1 || refused.Place > total {
			late = append(late, refused.Call) // a writer that did not count
		} else {
			at[refused.Place] = refused.Call
		}
	}
	rest := make([]Call, 0, total)
	rest = append(append(append(rest, r.Calls...), r.Queued...), late...)
	all := make([]Call, 0, total)
	for i := range total {
		if call, refused := at[i+1]; refused {
			all = append(all, call)
		} else {
			all, rest = append(all, rest[0]), rest[1:]
		}
	}
	return all
}

// Chunks is how the text of a reply came: for each part the milliseconds since the
// call began, and how many bytes of the text it has. The bytes add up to the text.
type Chunks [][2]int64

// ChunksOf returns a reply's text and how it came; no chunks where that was not
// recorded, or does not fit the text.
func ChunksOf(p Payload) (text string, chunks Chunks) {
	r := modelReplyOf(p)
	switch {
	case r.text == nil:
		return "", nil
	case !r.chunks.fit(*r.text):
		return *r.text, nil
	}
	return *r.text, *r.chunks
}

// SetChunks notes in a reply that is about to be written how its text came, where
// that fits the text.
func SetChunks(p Payload, chunks Chunks) {
	if r := modelReplyOf(p); r.text != nil && chunks.fit(*r.text) {
		*r.chunks = chunks
	}
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

// MarshalJSON writes the registered event's data as it is.
func (c *Custom) MarshalJSON() ([]byte, error) { return rawOrEmpty(c.Data), nil }

// UnmarshalJSON keeps the data as it is.
func (c *Custom) UnmarshalJSON(data []byte) error {
	c.Data = append(json.RawMessage(nil), data...)
	return nil
}

// MarshalJSON writes the single call's outcome, or `{}` after a batch.
func (p *ToolSuccess) MarshalJSON() ([]byte, error) { return appendPayload(nil, p) }

// UnmarshalJSON reads either form.
func (p *ToolSuccess) UnmarshalJSON(data []byte) (err error) {
	p.Outcome, err = unmarshalOutcome(data)
	return err
}

// MarshalJSON writes the single call's outcome, or `{}` after a batch.
func (p *ToolFailure) MarshalJSON() ([]byte, error) { return appendPayload(nil, p) }

// UnmarshalJSON reads either form.
func (p *ToolFailure) UnmarshalJSON(data []byte) (err error) {
	p.Outcome, err = unmarshalOutcome(data)
	return err
}

// appendPayload and unmarshalPayload spare the payloads that have a form of their
// own the second pass that package json makes over it.

func appendPayload(b []byte, p Payload) ([]byte, error) { return codec.Append(b, written(p)) }

// written returns the value that is written for a payload.
func written(p Payload) any {
	var o *ToolOutcome
	switch p := p.(type) {
	case *ToolSuccess:
		o = p.Outcome
	case *ToolFailure:
		o = p.Outcome
	default:
		return p
	}
	if o == nil {
		return struct{}{}
	}
	return o
}

func unmarshalPayload(data []byte, p Payload) error {
	switch p := p.(type) {
	case *ToolSuccess:
		return p.UnmarshalJSON(data)
	case *ToolFailure:
		return p.UnmarshalJSON(data)
	case *Custom:
		return json.Unmarshal(data, p)
	}
	return codec.Unmarshal(data, p)
}

// PayloadSize is the length of a payload as it stands in an event's body, in bytes;
// 0 for one that has no JSON, which [Codec.Encode] refuses.
func PayloadSize(p Payload) int { return codec.Size(written(p)) }

func unmarshalOutcome(data []byte) (*ToolOutcome, error) {
	var o ToolOutcome
	if err := codec.Unmarshal(data, &o); err != nil {
		return nil, err
	}
	if o.CallID == "" && o.Code == "" {
		return nil, nil
	}
	return &o, nil
}

func rawOrEmpty(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("{}")
	}
	return raw
}
