// Package anthropic calls Anthropic's models by its Messages API, and servers
// that are compatible with it.
//
// What it promises:
//   - The conversation is sent as the API wants it: the system prompt separately,
//     all results of a reply in one user message, failures marked, messages of the
//     same role merged, no empty text. Tools are named as [llmhttp.ToolNames] says,
//     and the ids of calls are made valid and unique for the request. Arguments
//     that are no JSON object are sent inside of one.
//   - Tools, system prompt and the conversation's end are marked for the prompt
//     cache, so that each request reads from it what the one before it sent.
//   - A reply is scanned whole: tool calls outrank text wherever they stand, and
//     the text beside them is kept. Streamed arguments are given back as the model
//     wrote them, valid or not.
//   - The thinking before a reply with calls is its Reasoning. It is sent back
//     unchanged and first in its message, to the model that wrote it.
//   - An output schema is offered as a tool: forced where it is the only one and
//     the model does not think, else with words that say when to call it.
//   - A stream that ends before message_stop, or is silent for too long, is an
//     error of [llm.KindBroken]. Nothing is sent twice, unless the server refuses to
//     stream.
//   - Every failure is an *llm.Error with a kind, the provider's own message and
//     the wait it asked for, except the context's own error. No message holds
//     the key.
//   - At most [Options.MaxBytes] of a reply are read.
//
// It reads no environment variables.
package anthropic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
)

// defaultMaxTokens bounds a reply where neither agent nor provider says how.
const defaultMaxTokens = 4096

// Options configure a [Caller]. The zero value lacks only a key or a base URL.
type Options struct {
	// APIKey is sent as x-api-key. It may be empty where BaseURL is set, for
	// servers that want none.
	APIKey string
	// BaseURL is the address before /v1/messages. Default: Anthropic's own.
	BaseURL string
	// Model is used by requests that name none.
	Model string
	// Header is sent with every request, such as anthropic-beta.
	Header http.Header
	// MaxTokens bounds the replies to requests that do not, in tokens; thinking
	// comes on top of it. Default 4096.
	MaxTokens int
	// Timeout bounds one Call in all. Default 10 minutes.
	Timeout time.Duration
	// Silence is how long a stream that has begun may bring no line, not even a
	// ping, before it counts as broken. Default 2 minutes: models think.
	Silence time.Duration
	// MaxBytes bounds one reply of the server, in bytes. Default 32 MiB.
	MaxBytes int64
	// HTTPClient does the requests. Default is one of its own with the proxy of
	// the environment.
	HTTPClient *http.Client
}

// Caller calls one provider. It is safe for concurrent use.
type Caller struct {
	opts Options
	http *llmhttp.Client
}

var _ llm.Described = (*Caller)(nil)

// New returns a Caller, or an error that says which option to set. It sends
// nothing.
func New(opts Options) (*Caller, error) {
	row, _ := providers.Find(providers.Anthropic)
	client, err := llmhttp.New(row, llmhttp.Options{
		APIKey: opts.APIKey, BaseURL: opts.BaseURL, Header: opts.Header, Timeout: opts.Timeout, Silence: opts.Silence,
		MaxBytes: opts.MaxBytes, HTTPClient: opts.HTTPClient,
	})
	if err != nil {
		return nil, err
	}
	if opts.MaxTokens <= 0 {
		opts.MaxTokens = defaultMaxTokens
	}
	return &Caller{opts: opts, http: client}, nil
}

// Describe returns the default model, and an identity of address, model and the bound of
// replies.
func (c *Caller) Describe() llm.Description {
	return llm.Description{
		Identity:     fmt.Sprintf("anthropic %s/ %q %d", c.http.Address(), c.opts.Model, c.opts.MaxTokens),
		DefaultModel: c.opts.Model,
	}
}

// Close closes idle connections. Calls in flight go on.
func (c *Caller) Close() { c.http.Close() }

// Call asks the provider for one reply; see [llm.Caller].
func (c *Caller) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	x := &exchange{caller: c, req: req, names: llmhttp.NamesOf(req), model: cmp.Or(req.Model, c.opts.Model)}
	if err := x.write(); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	return c.http.Ask(ctx, x, stream)
}

// Read reads a message in one piece.
func (x *exchange) Read(r *llmhttp.Reply) (llm.Response, error) {
	var m answer
	if err := r.Decode(&m); err != nil {
		return nil, err
	}
	if m.StopReason == "" && len(m.Content) == 0 {
		return nil, r.Unfit(errors.New("it has neither content nor a stop reason"))
	}
	whole, err := fromMessage(m)
	if err != nil {
		return nil, r.Unfit(err)
	}
	return x.response(whole)
}

// reasoning is the form of [llm.Meta] Reasoning: the thinking blocks of a reply as
// they came, signatures included, and which model they may be sent back to.
type reasoning struct {
	Provider string            `json:"provider"`
	Model    string            `json:"model"`
	Blocks   []json.RawMessage `json:"blocks"`
}

const provider = "anthropic"

func writeReasoning(model string, blocks []json.RawMessage) []llm.ReasoningPart {
	if len(blocks) == 0 {
		return nil
	}
	raw, err := json.Marshal(reasoning{provider, model, blocks})
	if err != nil {
		return nil // blocks are valid JSON
	}
	return []llm.ReasoningPart{{Kind: llm.ReasoningOpaque, Data: raw}}
}

// readReasoning returns the blocks, or none if another provider or model wrote
// them: a signature is good for its own model only.
func readReasoning(parts []llm.ReasoningPart, model string) []json.RawMessage {
	var r reasoning
	if len(parts) == 0 || json.Unmarshal(parts[0].Data, &r) != nil || r.Provider != provider || r.Model != model {
		return nil
	}
	return r.Blocks
}

// thinks reports whether the model thinks before this reply. It cannot begin to
// in the middle of a turn: the API refuses thinking where the calls that were
// answered last came without it.
func (x *exchange) thinks() bool {
	if x.req.Sampling.ThinkingTokens <= 0 {
		return false
	}
	for i := len(x.req.Messages) - 1; i >= 0; i-- {
		if m := x.req.Messages[i]; m.Role == llm.RoleAssistant {
			return len(m.Calls) == 0 || len(readReasoning(m.Reasoning, x.model)) > 0
		}
	}
	return true
}
