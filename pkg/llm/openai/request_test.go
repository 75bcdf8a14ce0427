package openai

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/stretchr/testify/require"
)

// capture makes one call and gives what the server got.
func capture(t *testing.T, opts Options, req llm.Request, stream func(llm.Chunk)) (string, http.Header, string) {
	t.Helper()
	type got struct {
		body, path string
		header     http.Header
	}
	requests := make(chan got, 1)
	c := serve(t, opts, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		requests <- got{string(data), r.URL.Path, r.Header}
		if stream != nil {
			_, _ = io.WriteString(w, sse(delta(`"content":"x"`, "stop"), done))
			return
		}
		_, _ = io.WriteString(w, plainHello)
	})
	_, err := c.Call(t.Context(), req, stream)
	require.NoError(t, err)
	g := <-requests
	return g.body, g.header, g.path
}

func TestTheConversationIsSentAsItIs(t *testing.T) {
	zero, seed := 0.0, 7
	req := llm.Request{
		Model: "m",
		Messages: []llm.Message{
			{Role: llm.RoleSystem, Content: "Be <brief> & good."},
			{Role: llm.RoleUser, Content: ""},
			{Role: llm.RoleAssistant, Content: "Looking.", Calls: []llm.Call{
				{ID: "a", Name: "f", Arguments: `{"n": 1.50, "big": 12345678901234567890}`},
				{ID: "a", Name: "f", Arguments: ``},
			}},
			{Role: llm.RoleTool, CallID: "a", Name: "f", Content: ""},
			{Role: llm.RoleTool, CallID: "a", Name: "not a name!", Content: "ERROR: x"},
			{Role: llm.RoleAssistant, Calls: []llm.Call{{ID: "b", Name: "g", Arguments: `{"cut": `}}},
			{Role: llm.RoleTool, CallID: "b", Name: "g", Content: `{"deep": ["ü"]}`},
			{Role: llm.RoleAssistant, Content: ""},
			{Role: llm.RoleUser, Content: "go\non"},
		},
		Tools: []llm.Tool{
			{Name: "f", Description: "does f", Schema: json.RawMessage(`{"type":"object","maximum":1.0,"x-a":"<b>"}`)},
			{Name: "g"},
		},
		Sampling: llm.Sampling{Temperature: &zero, Seed: &seed, MaxTokens: 100, Stop: []string{"END"}},
	}
	want := `{"model":"m","messages":[` +
		`{"role":"system","content":"Be <brief> & good."},` +
		`{"role":"user","content":""},` +
		`{"role":"assistant","content":"Looking.","tool_calls":[` +
		`{"id":"a","type":"function","function":{"name":"f","arguments":"{\"n\": 1.50, \"big\": 12345678901234567890}"}},` +
		`{"id":"a","type":"function","function":{"name":"f","arguments":""}}]},` +
		`{"role":"tool","content":"","tool_call_id":"a","name":"f"},` +
		`{"role":"tool","content":"ERROR: x","tool_call_id":"a","name":"not_a_name_"},` +
		`{"role":"assistant","content":null,"tool_calls":[` +
		`{"id":"b","type":"function","function":{"name":"g","arguments":"{\"cut\": "}}]},` +
		`{"role":"tool","content":"{\"deep\": [\"ü\"]}","tool_call_id":"b","name":"g"},` +
		`{"role":"assistant","content":""},` +
		`{"role":"user","content":"go\non"}],` +
		`"tools":[{"type":"function","function":{"name":"f","description":"does f",` +
		`"parameters":{"type":"object","maximum":1.0,"x-a":"<b>"}}},` +
		`{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{}}}}],`
	const sampling = `"temperature":0,"seed":7,"max_tokens":100,"stop":["END"]}`

	body, header, path := capture(t, Options{}, req, nil)
	require.Equal(t, want+sampling, body)
	require.Equal(t, "/v1/chat/completions", path)
	require.Equal(t, "Bearer "+testKey, header.Get("Authorization"))
	require.Equal(t, "application/json", header.Get("Content-Type"))

	body, header, _ = capture(t, Options{}, req, func(llm.Chunk) {})
	require.Equal(t, want+`"stream":true,"stream_options":{"include_usage":true},`+sampling, body)
	require.Equal(t, "text/event-stream", header.Get("Accept"))
}

func TestReasoningModels(t *testing.T) {
	half := 0.5
	sampling := llm.Sampling{Temperature: &half, TopP: &half, MaxTokens: 50, Stop: []string{"x"}}
	for model, reasoning := range map[string]bool{
		"o1": true, "o3-mini": true, "o4-mini-2025-04-16": true, "gpt-5": true, "gpt-5.1-mini": true, "openai/o3": true,
		"ft:o4-mini:acme": true, "gpt-6-astra": true,
		"gpt-4o": false, "gpt-5-chat-latest": false, "gpt-50": false, "olmo": false, "o1000": false, "llama3:8b": false,
	} {
		t.Run(model, func(t *testing.T) {
			req := ask()
			req.Model, req.Sampling = model, sampling
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				body, _, _ := capture(t, Options{ReasoningEffort: "low"}, req, stream)
				var got map[string]any
				require.NoError(t, json.Unmarshal([]byte(body), &got))
				require.Equal(t, model, got["model"])
				if reasoning {
					require.InDelta(t, 50.0, got["max_completion_tokens"], 0)
					require.Equal(t, "low", got["reasoning_effort"])
					for _, key := range []string{"max_tokens", "temperature", "top_p", "stop"} {
						require.NotContains(t, got, key)
					}
					continue
				}
				require.InDelta(t, 50.0, got["max_tokens"], 0)
				require.InDelta(t, 0.5, got["temperature"], 0)
				require.NotContains(t, got, "max_completion_tokens")
				require.NotContains(t, got, "reasoning_effort")
			}
		})
	}
}

func TestOutputSchema(t *testing.T) {
	req := ask()
	req.OutputSchema = json.RawMessage(`{"type":"object","properties":{"a":{"type":"number"}},"required":["a"],"additionalProperties":false}`)
	body, _, _ := capture(t, Options{}, req, nil)
	require.Contains(t, body, `"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":`+
		string(req.OutputSchema)+`,"strict":true}}`)

	body, _, _ = capture(t, Options{NoOutputSchema: true}, req, nil)
	require.NotContains(t, body, "response_format")
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	c, err := New(Options{APIKey: testKey})
	require.NoError(t, err)
	tests := []struct {
		name, want string
		req        llm.Request
	}{
		{"no model", "no model", llm.Request{}},
		{"tool schema", `schema of tool "f" is not valid JSON`,
			llm.Request{Model: "m", Tools: []llm.Tool{{Name: "f", Schema: json.RawMessage(`{`)}}}},
		{"output schema", "output schema is not valid JSON", llm.Request{Model: "m", OutputSchema: json.RawMessage(`{`)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				_, err := c.Call(t.Context(), tt.req, stream)
				require.Contains(t, wantError(t, err, llm.KindInvalid).Message, tt.want)
			}
		})
	}
}
