package openai

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// TestProviderTools: the provider's tools are sent as they are, and the sources that its reply names
// are the reply's.
func TestProviderTools(t *testing.T) {
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"Größe.",`+
			`"annotations":[{"type":"url_citation","url_citation":{"url":"https://example.org/a","title":"A","content":"q","start_index":2,"end_index":4}},{"type":"url_citation","url_citation":{"url":"https://example.org/b"}}]}}],`+
			`"usage":{"prompt_tokens":3,"completion_tokens":2,"cost":0.02}}`)
	}))
	defer server.Close()
	c, err := New(Options{BaseURL: server.URL, Model: "m"})
	require.NoError(t, err)
	defer c.Close()
	res, err := c.Call(t.Context(), llm.Request{ProviderTools: []json.RawMessage{json.RawMessage(`{"type":"openrouter:web_search","n":1.0}`)}, Tools: []llm.Tool{{Name: "f"}}}, nil)
	require.NoError(t, err)
	require.Contains(t, string(body), `"tools":[{"type":"openrouter:web_search","n":1.0},{"type":"function","function":{"name":"f",`)
	require.Equal(t, []events.Citation{
		{Type: "url_citation", URL: "https://example.org/a", Title: "A", Quote: "q", Start: 2, End: 4},
		{Type: "url_citation", URL: "https://example.org/b", End: 6},
	}, res.About().Citations)
	require.InDelta(t, 0.02, *res.About().Usage.CostUSD, 1e-9)

	own, err := New(Options{APIKey: "k"})
	require.NoError(t, err)
	needs, sure := own.NeedsResponses(llm.Request{Model: "gpt-4o", ProviderTools: []json.RawMessage{json.RawMessage(`{"type":"web_search"}`)}})
	require.True(t, needs && sure, "OpenAI's chat completions have no tools of its own")
	needs, _ = c.NeedsResponses(llm.Request{Model: "m", ProviderTools: []json.RawMessage{json.RawMessage(`{"type":"web_search"}`)}})
	require.False(t, needs)
}
