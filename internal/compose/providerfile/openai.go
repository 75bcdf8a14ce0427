package providerfile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/responses"
)

// openAI calls models by chat completions, and by the Responses API where the table of
// models says that a request needs it.
type openAI struct {
	*llmhttp.Caller
	responses *llmhttp.Caller
	model     string
	// noResponses is set once an unknown server has shown that it lacks the API.
	noResponses atomic.Bool
	// said has the uses of an API that were logged.
	said sync.Map
}

// use is a model's use of an API.
type use struct{ model, api string }

func newOpenAI(client *http.Client, e agentfile.Provider, keys keys) (llm.Caller, error) {
	chat, err := openai.New(openai.Options{
		APIKey: e.APIKey, Keys: keys, BaseURL: e.BaseURL, Model: e.Model, Header: header(e.Headers), HTTPClient: client,
		Like: e.Like, Capabilities: e.Capabilities, ExtraBody: e.ExtraBody, Query: e.Query,
	})
	if err != nil {
		return nil, err
	}
	other, err := newResponses(client, e, keys)
	if err != nil {
		return nil, err
	}
	return &openAI{Caller: chat, responses: other, model: e.Model}, nil
}

func newResponses(client *http.Client, e agentfile.Provider, keys keys) (*llmhttp.Caller, error) {
	return responses.New(responses.Options{
		APIKey: e.APIKey, Keys: keys, BaseURL: e.BaseURL, Model: e.Model, Header: header(e.Headers), HTTPClient: client,
		Like: e.Like, Capabilities: e.Capabilities, ExtraBody: e.ExtraBody, Query: e.Query,
	})
}

// Call asks for one reply; see [llm.Caller]. A server that is not known, and does not have
// the Responses API, is asked for chat completions from then on. The first use of an API for
// a model is logged.
func (c *openAI) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	needs, sure := c.NeedsResponses(req)
	if !needs || !sure && c.noResponses.Load() {
		return c.chat(ctx, req, stream)
	}
	c.log(ctx, req, "responses")
	res, err := c.responses.Call(ctx, req, stream)
	if sure || !missing(err) {
		return res, err
	}
	if res, err = c.chat(ctx, req, stream); err == nil {
		c.noResponses.Store(true)
	}
	return res, err
}

// Write returns the request that Call would send first; see [llm.Writer].
func (c *openAI) Write(ctx context.Context, req llm.Request, dialect string, stream bool) (llm.Written, error) {
	needs, sure := c.NeedsResponses(req)
	switch {
	case dialect == providers.Responses, dialect == "" && needs && (sure || !c.noResponses.Load()):
		return c.responses.Write(ctx, req, dialect, stream)
	}
	return c.Caller.Write(ctx, req, dialect, stream)
}

// missing reports whether the server may not have the API. It may also lack the model.
func missing(err error) bool {
	var e *llm.Error
	return errors.As(err, &e) && (e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed)
}

func (c *openAI) chat(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	c.log(ctx, req, "chat completions")
	return c.Caller.Call(ctx, req, stream)
}

func (c *openAI) log(ctx context.Context, req llm.Request, api string) {
	model := cmp.Or(req.Model, c.model)
	if _, known := c.said.LoadOrStore(use{model, api}, true); !known {
		slog.InfoContext(ctx, "OpenAI API of the model", "model", model, "api", api)
	}
}
