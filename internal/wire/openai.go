package wire

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/openai"
	"github.com/moorebus/moorebus/pkg/llm/responses"
)

// openAI calls models by chat completions, and by the Responses API where the table of
// models says that a request needs it.
type openAI struct {
	*openai.Caller
	responses *responses.Caller
	host      providers.Host
	model     string
	// said has the uses of an API that were logged.
	said sync.Map
}

// use is a model's use of an API.
type use struct{ model, api string }

func newOpenAI(client *http.Client, e agentfile.Provider) (llm.Caller, error) {
	row, _ := providers.Find(providers.OpenAI)
	host, err := providers.HostOf(providers.OpenAI, e.Like, cmp.Or(e.BaseURL, row.BaseURL), e.Capabilities)
	if err != nil {
		return nil, err
	}
	chat, err := openai.New(openai.Options{
		APIKey: e.APIKey, BaseURL: e.BaseURL, Model: e.Model, Header: header(e.Headers), HTTPClient: client,
		Like: e.Like, Capabilities: e.Capabilities, ExtraBody: e.ExtraBody, Query: e.Query,
	})
	if err != nil {
		return nil, err
	}
	other, err := newResponses(client, e)
	if err != nil {
		return nil, err
	}
	return &openAI{Caller: chat, responses: other, host: host, model: e.Model}, nil
}

func newResponses(client *http.Client, e agentfile.Provider) (*responses.Caller, error) {
	return responses.New(responses.Options{
		APIKey: e.APIKey, BaseURL: e.BaseURL, Model: e.Model, Header: header(e.Headers), HTTPClient: client,
		Like: e.Like, Capabilities: e.Capabilities, ExtraBody: e.ExtraBody, Query: e.Query,
	})
}

// Call asks for one reply; see [llm.Caller]. The first use of an API for a model is logged.
func (c *openAI) Call(ctx context.Context, req llm.Request, stream func(llm.Chunk)) (llm.Response, error) {
	model := cmp.Or(req.Model, c.model)
	caller, api := llm.Caller(c.Caller), "chat completions"
	if c.host.Capabilities(model).NeedsResponses(len(req.Tools) > 0, req.Sampling.Effort) {
		caller, api = c.responses, "responses"
	}
	if _, known := c.said.LoadOrStore(use{model, api}, true); !known {
		slog.InfoContext(ctx, "OpenAI API of the model", "model", model, "api", api)
	}
	return caller.Call(ctx, req, stream)
}
