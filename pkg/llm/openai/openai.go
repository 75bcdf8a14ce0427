// Package openai calls models that speak OpenAI's chat completions: OpenAI's own
// and every compatible server (Groq, Together, Ollama, llama.cpp, vLLM, …).
//
// What it promises:
//   - The conversation is sent as it is: one message for each message, in order,
//     nothing added, empty tool results as empty strings, arguments and schemas
//     verbatim. Only tools are named as [llmhttp.ToolNames] says, and images of tool
//     results follow them in a user message.
//   - What differs between servers and models is as the table of models says
//     ([providers.Capabilities]): how reasoning goes back, effort, refused settings,
//     structured answers. Settings that were changed for the server are in the reply's
//     Adjusted. A structured answer together with tools may take two requests, see
//     [llmhttp.SecondPass].
//   - The entire reply is scanned: tool calls outrank text in any order, and their
//     text is kept. Arguments are given back as the model wrote
//     them, valid or not. A call without an id gets "call_<reply>_<k>".
//   - Replies and chunks are read in every form that servers are known to give them.
//     Reasoning is kept from whichever field or tags it stands in.
//   - A stream that breaks before its ending (a finish_reason, a usage alone, or
//     [DONE] after content), or is silent for too long, is an error of
//     [llm.KindBroken]. Nothing is sent twice, unless the server refuses to stream, or
//     refuses the reasoning that goes back.
//   - Every failure is an *llm.Error with a kind, the provider's own message and
//     the wait it asked for, except the context's own error. No message holds
//     the key.
//   - At most [Options.MaxBytes] of a reply are read.
//
// It reads no environment variables.
package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
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
	// ReasoningEffort is sent to reasoning models as reasoning_effort where it is
	// not empty.
	ReasoningEffort string
	// Like names a row of the table of models (docs/models.md) for servers that are not found
	// by their address, and Capabilities is a JSON object with keys of that table that differ
	// for this server.
	Like         string
	Capabilities json.RawMessage
	// ExtraBody are further keys of every request, and Query are parameters of its address.
	ExtraBody map[string]json.RawMessage
	Query     map[string]string
	// NoOutputSchema keeps a request's OutputSchema from servers that refuse
	// response_format; replies are then plain text.
	NoOutputSchema bool
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
}

// New returns an [llm.Described], or an error that says which option to set. It sends nothing. The
// Close of what it returns closes idle connections.
func New(opts Options) (*llmhttp.Caller, error) {
	client, err := llmhttp.New(providers.OpenAI, llmhttp.Options{
		APIKey: opts.APIKey, Keys: opts.Keys, BaseURL: opts.BaseURL, Header: opts.Header, Timeout: opts.Timeout, Silence: opts.Silence,
		MaxBytes: opts.MaxBytes, HTTPClient: opts.HTTPClient,
		Like: opts.Like, Capabilities: opts.Capabilities, ExtraBody: opts.ExtraBody, Query: opts.Query,
	})
	if err != nil {
		return nil, err
	}
	c := &caller{opts: opts, http: client}
	return client.Caller(c.call, opts.Model, "openai %s %q %q %t", client.Address(), opts.Model, opts.ReasoningEffort, opts.NoOutputSchema), nil
}

func (c *caller) call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	x := c.exchange(req)
	if err := x.prepare(); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	if x.outputSchema() != providers.SecondPass {
		return c.http.Ask(ctx, x, stream)
	}
	return llmhttp.SecondPass(ctx, req, stream, c.call)
}

func (c *caller) exchange(req llm.Request) *exchange {
	return &exchange{caller: c, req: req, model: cmp.Or(req.Model, c.opts.Model), names: llmhttp.NamesOf(req)}
}

// exchange is one request and what its reply is read with.
type exchange struct {
	caller *caller
	req    llm.Request
	model  string
	names  *llmhttp.ToolNames
	asking
}
