package providerfile_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/compose/providerfile"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

// Provider openai takes the API that the table of models names for the request, and says
// once for each model which one that is.
func TestOpenAITakesTheAPIThatTheModelNeeds(t *testing.T) {
	var paths []string
	turn := llmtest.Turn{Reply: llm.Text{Content: "hello"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		format := llmtest.Wire(llmtest.OpenAI{})
		if strings.HasSuffix(r.URL.Path, "/responses") {
			format = llmtest.Responses{}
		}
		_, _ = io.WriteString(w, format.Plain(turn, llmtest.WireRequest{}))
	}))
	defer server.Close()
	var log bytes.Buffer
	previous := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(previous)

	file := write(t, "like: {kind: openai, like: openai, base_url: "+server.URL+"/v1}\n"+
		"unlike: {kind: openai, base_url: "+server.URL+"/v1}\n"+
		"always: {kind: openai, base_url: "+server.URL+"/v1, capabilities: {api: responses}}\n"+
		"kind: {kind: responses, base_url: "+server.URL+"/v1}\n")
	callers, err := providerfile.Providers(file, env(nil))
	require.NoError(t, err)
	tools := []llm.Tool{{Name: "f"}}
	for _, c := range []struct {
		provider, model, effort string
		tools                   []llm.Tool
		want                    string
	}{
		{"like", "gpt-4o", "", tools, "chat/completions"},
		{"like", "gpt-5.5", "", tools, "responses"},
		{"like", "gpt-5.5", "", nil, "chat/completions"},
		{"like", "gpt-5.5", "", tools, "responses"},
		{"like", "gpt-5.4", "", tools, "chat/completions"},
		{"like", "gpt-5.4", "high", tools, "responses"},
		{"like", "gpt-5.6", "none", tools, "chat/completions"},
		{"unlike", "local-model", "high", tools, "chat/completions"},
		{"always", "local-model", "", nil, "responses"},
		{"kind", "local-model", "", nil, "responses"},
	} {
		paths = nil
		res, err := callers[c.provider].Call(t.Context(), llm.Request{Model: c.model, Tools: c.tools, Sampling: llm.Sampling{Effort: c.effort}}, nil)
		require.NoError(t, err)
		require.Equal(t, "hello", res.(llm.Text).Content)
		require.Equal(t, []string{"/v1/" + c.want}, paths, c)
	}
	require.Equal(t, 1, strings.Count(log.String(), "model=gpt-5.5 api=responses"))
	require.Equal(t, 1, strings.Count(log.String(), `model=gpt-4o api="chat completions"`))
}

// A server that is not in the table may have a model of OpenAI's and chat completions only.
func TestServersWithoutTheResponsesAPI(t *testing.T) {
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, strings.TrimPrefix(r.URL.Path, "/v1/"))
		if strings.HasSuffix(r.URL.Path, "/responses") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, llmtest.OpenAI{}.Plain(llmtest.Turn{Reply: llm.Text{Content: "hello"}}, llmtest.WireRequest{}))
	}))
	defer server.Close()
	callers, err := providerfile.Providers(write(t, "unlike: {kind: openai, base_url: "+server.URL+"/v1}\n"+
		"like: {kind: openai, like: openai, base_url: "+server.URL+"/v1}\n"), env(nil))
	require.NoError(t, err)
	req := llm.Request{Model: "gpt-5.5", Tools: []llm.Tool{{Name: "f"}}}
	for range 2 {
		_, err = callers["unlike"].Call(t.Context(), req, nil)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"responses", "chat/completions", "chat/completions"}, paths)
	_, err = callers["like"].Call(t.Context(), req, nil)
	require.Error(t, err, "OpenAI has it")
}
