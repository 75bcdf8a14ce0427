// Package responses calls models by OpenAI's Responses API, and servers that are
// compatible with it (Ollama, vLLM, OpenRouter, Azure OpenAI, …).
//
// What it promises:
//   - Every request holds the entire conversation, and nothing is stored by the
//     provider (store: false): the log is the state. A message is an item, and so is
//     each call and each result. Tools are named as [llmhttp.ToolNames] says.
//   - A reply's reasoning is its summaries, its text and the encrypted content of its
//     items. It is sent back unchanged and where it stood, to the model that wrote it.
//   - Reasoning is asked for with a summary. A server that refuses summaries is asked
//     without one from then on.
//   - The entire reply is scanned: tool calls outrank text in any order, and their
//     text is kept. Arguments are given back as the model wrote them, valid
//     or not. A call's id is its call_id.
//   - A stream that ends without response.completed, response.incomplete or
//     response.failed is an error of [llm.KindBroken]. Nothing is sent twice, unless the
//     server refuses to stream, to summarize, or the reasoning that goes back.
//   - A reply that uses all tokens that it may have counts as cut off, whatever its
//     status, where the server cuts without saying so (drops_context in the table).
//   - Every failure is an *llm.Error with a kind, the provider's own message and the
//     wait it asked for, except the context's own error. No message holds the key.
//   - At most [Options.MaxBytes] of a reply are read.
//
// It reads no environment variables.
package responses

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Options configure a [Caller]. The zero value lacks only a key or a base URL.
type Options struct {
	// APIKey is sent as bearer token. It may be empty where BaseURL is set, for
	// servers that want none.
	APIKey string
	// Keys gives keys that expire, in place of APIKey. It is called for each request, also
	// concurrently. After an answer of status 401 it is called once more with the key that
	// was refused, and the request is repeated. An error counts as an outage of the provider.
	Keys func(ctx context.Context, refused string) (string, error)
	// BaseURL is the address up to and including the version, such as
	// http://localhost:11434/v1. Default: OpenAI's own.
	BaseURL string
	// Model is used by requests that name none.
	Model string
	// Header is sent with every request, for what some providers want in addition to
	// the key (an organization, an application's name).
	Header http.Header
	// Like names the row of the table of models whose server this one is like, and
	// Capabilities overrides keys of it (docs/models.md). By default the address and the
	// model's name find the row.
	Like         string
	Capabilities json.RawMessage
	// ExtraBody are further keys of every request, and Query are parameters of its address.
	ExtraBody map[string]json.RawMessage
	Query     map[string]string
	// Timeout bounds one Call in all. Default 10 minutes.
	Timeout time.Duration
	// Silence is how long a stream that has begun may bring no line, not even a
	// comment, before it counts as broken. Default 2 minutes: models think.
	Silence time.Duration
	// MaxBytes bounds one reply of the server, in bytes. Default 32 MiB.
	MaxBytes int64
	// HTTPClient sends the requests. Default is a separate client with the proxy of the
	// environment.
	HTTPClient *http.Client
}

// caller is one provider.
type caller struct {
	opts Options
	http *llmhttp.Client
	// noSummary is set once the server has refused to summarize.
	noSummary atomic.Bool
}

// New returns an [llm.Described], or an error that says which option to set. It sends nothing. The
// Close of what it returns closes idle connections.
func New(opts Options) (*llmhttp.Caller, error) {
	client, err := llmhttp.New(providers.Responses, llmhttp.Options{
		APIKey: opts.APIKey, Keys: opts.Keys, BaseURL: opts.BaseURL, Header: opts.Header, Timeout: opts.Timeout, Silence: opts.Silence,
		MaxBytes: opts.MaxBytes, HTTPClient: opts.HTTPClient, Like: opts.Like, Capabilities: opts.Capabilities,
		ExtraBody: opts.ExtraBody, Query: opts.Query,
	})
	if err != nil {
		return nil, err
	}
	c := &caller{opts: opts, http: client}
	return client.Caller(c.call, opts.Model, "responses %s %q", client.Address(), opts.Model), nil
}

func (c *caller) call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	caps := c.http.Capabilities(cmp.Or(req.Model, c.opts.Model))
	if len(req.OutputSchema) > 0 && len(req.Tools)+len(req.ProviderTools) > 0 && caps.OutputWithTools == providers.SecondPass {
		return llmhttp.SecondPass(ctx, req, stream, c.ask)
	}
	return c.ask(ctx, req, stream)
}

func (c *caller) ask(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	x := &exchange{caller: c, req: req, names: llmhttp.NamesOf(req)}
	if err := x.write(); err != nil {
		return nil, err
	}
	return c.http.Ask(ctx, x, stream)
}
