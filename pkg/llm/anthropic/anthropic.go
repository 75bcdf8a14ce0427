// Package anthropic calls Anthropic's models by its Messages API, and servers
// that are compatible with it.
//
// What it promises:
//   - The conversation is sent as the API wants it: the system prompt separately,
//     all results of a reply in one user message, failures marked, messages of the
//     same role merged, no empty text. Tools are named as [llmhttp.ToolNames] says,
//     and the ids of calls are made valid and unique for the request. Arguments
//     that are no JSON object are sent inside of one. Images and files that the
//     model does not take are named in words.
//   - Tools, system prompt and the conversation's end are marked for the prompt
//     cache, so that each request reads from it what the one before it sent.
//   - The entire reply is scanned: tool calls outrank text in any order, and their
//     text is kept. Streamed arguments are given back as the model
//     wrote them, valid or not.
//   - Blocks that are neither text nor calls, such as thinking, are the reply's
//     Reasoning. They are sent back unchanged, where they stood, to the model that
//     wrote them. Where a model binds them to all that stood before, they are left
//     out once any of that has changed.
//   - How much a model thinks is said in the way that its row in the table of models
//     has it. Settings that it does not take are omitted; the reply's Adjusted has
//     them.
//   - A reply that the provider pauses is continued, up to 8 times, and is one reply
//     with the usage of all requests.
//   - An output schema is offered as a tool: forced where it is the only one and
//     the model does not think, else with words that say when to call it.
//   - A stream is complete with its stop reason. One that ends before that, or is
//     silent for too long, is an error of [llm.KindBroken]. What was billed is not
//     sent twice: only a request that the server refuses for its stream, or for the
//     thinking that goes back with it, is sent once more without.
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
	"slices"
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
	// Keys gives keys that expire, in place of APIKey. It is called for each request, also
	// concurrently. After an answer of status 401 it is called once more with the key that
	// was refused, and the request is repeated. An error counts as an outage of the provider.
	Keys func(ctx context.Context, refused string) (string, error)
	// BaseURL is the address before /v1/messages. Default: Anthropic's own.
	BaseURL string
	// Model is used by requests that name none.
	Model string
	// Header is sent with every request, such as anthropic-beta.
	Header http.Header
	// MaxTokens bounds the replies to requests that do not, in tokens; thinking
	// comes on top of it. Default 4096.
	MaxTokens int
	// Timeout bounds one request. Default 10 minutes.
	Timeout time.Duration
	// Silence is how long a stream that has begun may bring no line, not even a
	// ping, before it counts as broken. Default 2 minutes: models think.
	Silence time.Duration
	// MaxBytes bounds one reply of the server, in bytes. Default 32 MiB.
	MaxBytes int64
	// HTTPClient sends the requests. Default is a separate client with the proxy of the
	// environment.
	HTTPClient *http.Client
	// Like names the row of the table of models for a server at another address, and
	// Capabilities, a JSON object, sets what differs from it; see docs/models.md.
	Like         string
	Capabilities json.RawMessage
	// ExtraBody are further keys of every request, and Query are parameters of its address.
	ExtraBody map[string]json.RawMessage
	Query     map[string]string
}

// caller is one provider.
type caller struct {
	opts Options
	http *llmhttp.Client
}

// New returns an [llm.Described], or an error that says which option to set. It sends nothing. The
// Close of what it returns closes idle connections.
func New(opts Options) (*llmhttp.Caller, error) {
	client, err := llmhttp.New(providers.Anthropic, llmhttp.Options{
		APIKey: opts.APIKey, Keys: opts.Keys, BaseURL: opts.BaseURL, Header: opts.Header, Timeout: opts.Timeout, Silence: opts.Silence,
		MaxBytes: opts.MaxBytes, HTTPClient: opts.HTTPClient, Like: opts.Like, Capabilities: opts.Capabilities,
		ExtraBody: opts.ExtraBody, Query: opts.Query,
	})
	if err != nil {
		return nil, err
	}
	if opts.MaxTokens <= 0 {
		opts.MaxTokens = defaultMaxTokens
	}
	c := &caller{opts: opts, http: client}
	return client.Caller(c.call, opts.Model, "anthropic %s/ %q %d", client.Address(), opts.Model, opts.MaxTokens), nil
}

func (c *caller) call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	x := &exchange{caller: c, req: req, names: llmhttp.NamesOf(req), model: cmp.Or(req.Model, c.opts.Model)}
	x.caps = c.http.Capabilities(x.model)
	if err := x.write(); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	for range 1 + maxPauses {
		res, err := c.http.Ask(ctx, x, stream)
		if err != nil {
			return nil, x.billed(err)
		}
		if !x.paused {
			return res, nil
		}
		x.goOn(res.About().RequestSHA256)
	}
	return nil, x.billed(&llm.Error{Kind: llm.KindOther, Message: fmt.Sprintf("the provider paused the reply more than %d times", maxPauses)})
}

// Without leaves out the thinking that a request sends back.
func (x *exchange) Without(param string) bool {
	if param != llmhttp.ReturnedReasoning || !x.returned || x.paused {
		return false
	}
	x.fill(false)
	return true
}

// maxPauses bounds how often a reply that the provider paused is continued.
const maxPauses = 8

// goOn puts what came so far at the end of the request, for the provider to continue with.
// sha256 is the digest of the request that was sent.
func (x *exchange) goOn(sha256 string) {
	x.sha256 = cmp.Or(x.sha256, sha256)
	var content []block
	for _, p := range x.sofar.parts {
		if p.kind != kindText || !blank(p.text) {
			content = append(content, block{raw: p.block()})
		}
	}
	x.params.Messages = slices.Clone(x.messages)
	if len(content) > 0 {
		x.params.Messages = append(x.params.Messages, message{Role: roleAssistant, Content: content})
	}
}

// billed adds to an error what came before it of the reply.
func (x *exchange) billed(err error) error {
	var e *llm.Error
	if errors.As(err, &e) && e.Reply == nil && x.sha256 != "" {
		_ = llmhttp.Unused(e, x.meta(x.sofar, false))
	}
	return err
}
