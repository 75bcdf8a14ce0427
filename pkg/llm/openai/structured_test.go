package openai

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

const (
	totalSchema = `{"type":"object","properties":{"total":{"type":"number"}},"required":["total"],"additionalProperties":false}`
	used        = `"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}`
)

func booking() llm.Request {
	req := ask()
	req.Tools, req.OutputSchema = []llm.Tool{{Name: "f"}}, json.RawMessage(totalSchema)
	return req
}

// grammar is a server that makes a grammar of a schema from the first token: with a
// response_format it can only write JSON. It keeps the bodies that it got.
func grammar(bodies *[]string, free string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		*bodies = append(*bodies, string(data))
		message := free
		if strings.Contains(string(data), "response_format") {
			message = `"content":"{\"total\": 1}"`
		}
		if r.Header.Get("Accept") == "text/event-stream" {
			_, _ = io.WriteString(w, sse(delta(message, "stop"), `{"choices":[],`+used+`}`, done))
			return
		}
		plain := plainReply(message, "stop")
		_, _ = io.WriteString(w, strings.TrimSuffix(plain, "}")+","+used+"}")
	}
}

// TestSecondPass: on a server that is not known, the schema follows in a second request.
func TestSecondPass(t *testing.T) {
	for _, streamed := range []bool{false, true} {
		var bodies []string
		c := serve(t, Options{}, grammar(&bodies, `"content":"It is one."`))
		var h heard
		var stream func(llm.Chunk)
		if streamed {
			stream = h.add
		}
		res, err := c.Call(t.Context(), booking(), stream)
		require.NoError(t, err)
		got, ok := res.(llm.Structured)
		require.True(t, ok, "%T", res)
		require.JSONEq(t, `{"total":1}`, got.Content)
		require.Equal(t, llm.Usage{Input: 18, Output: 8, Total: 26}, got.Usage, "both are billed")
		require.Equal(t, []events.Adjusted{{Key: "output_schema", Sent: json.RawMessage(`"second_pass"`)}}, got.Adjusted)
		require.Len(t, bodies, 2)
		require.Contains(t, bodies[0], `"tools"`)
		require.NotContains(t, bodies[0], "response_format")
		require.NotContains(t, bodies[1], `"tools"`)
		require.Contains(t, bodies[1], `{"role":"assistant","content":"It is one."},{"role":"user"`)
		if streamed {
			require.JSONEq(t, `{"total":1}`, h.text.String(), "only the answer is shown")
		}
	}
}

// TestOnePassIsEnough for calls, and for an answer that already has the form.
func TestOnePassIsEnough(t *testing.T) {
	call := `"content":"Wait.","tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]`
	for _, stream := range []bool{false, true} {
		for message, want := range map[string]string{call: "Wait.", `"content":"{\"total\": 2}"`: `{"total": 2}`} {
			var bodies []string
			c := serve(t, Options{}, grammar(&bodies, message))
			var h heard
			emit := h.add
			if !stream {
				emit = nil
			}
			res, err := c.Call(t.Context(), booking(), emit)
			require.NoError(t, err)
			require.Len(t, bodies, 1)
			switch r := res.(type) {
			case llm.ToolCalls:
				require.Equal(t, want, r.Content)
			case llm.Structured:
				require.Equal(t, want, r.Content)
			default:
				t.Fatalf("%T", res)
			}
			if stream {
				require.Equal(t, want, h.text.String())
			}
		}
	}
}

// TestASecondPassThatFails says what the first one cost.
func TestASecondPassThatFails(t *testing.T) {
	first := true
	c := serve(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		if !first {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		first = false
		_, _ = io.WriteString(w, strings.TrimSuffix(plainReply(`"content":"One."`, "stop"), "}")+","+used+"}")
	})
	_, err := c.Call(t.Context(), booking(), nil)
	require.Equal(t, &llm.Usage{Input: 9, Output: 4, Total: 13}, wantError(t, err, llm.KindOverloaded).Usage)
}

// TestFinalTool: servers without response_format beside tools get the schema as a tool.
func TestFinalTool(t *testing.T) {
	answer := `"content":null,"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"final_answer","arguments":"{\"total\": 3}"}}]`
	for _, tt := range []struct {
		like, model   string
		tools, forced bool
	}{{"groq", "llama-3.3-70b", true, false}, {"groq", "llama-3.3-70b", false, true}, {"deepseek", "deepseek-v4", false, false}} {
		req := booking()
		req.Model = tt.model
		if !tt.tools {
			req.Tools = nil
		}
		for _, streamed := range []bool{false, true} {
			var body string
			c := serve(t, Options{Like: tt.like}, func(w http.ResponseWriter, r *http.Request) {
				data, _ := io.ReadAll(r.Body)
				body = string(data)
				script(sse(delta(answer, "tool_calls"), done), plainReply(answer, "tool_calls"))(w, r)
			})
			var h heard
			stream := h.add
			if !streamed {
				stream = nil
			}
			res, err := c.Call(t.Context(), req, stream)
			require.NoError(t, err)
			got, ok := res.(llm.Structured)
			require.True(t, ok, "%T", res)
			require.Equal(t, `{"total": 3}`, got.Content)
			require.Contains(t, body, `"name":"final_answer","description":"Gives the final answer.`)
			require.NotContains(t, body, "response_format")
			require.Equal(t, tt.forced, strings.Contains(body, `"tool_choice":{"function":{"name":"final_answer"},"type":"function"}`))
			if streamed {
				require.Equal(t, `{"total": 3}`, h.text.String(), "it is shown as the text that it becomes")
			}
		}
	}
}

func TestExtraBodyAndQuery(t *testing.T) {
	type got struct {
		body, query string
	}
	requests := make(chan got, 1)
	c := serve(t, Options{
		Like:      "kimi",
		ExtraBody: map[string]json.RawMessage{"thinking": json.RawMessage(`{"keep":"none"}`), "max_completion_tokens": json.RawMessage(`7`), "top_k": json.RawMessage(`1`)},
		Query:     map[string]string{"api-version": "v 1"},
	}, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		requests <- got{string(data), r.URL.RawQuery}
		_, _ = io.WriteString(w, plainHello)
	})
	req := ask()
	req.Model, req.Sampling.MaxTokens = "kimi-k2.6", 50
	_, err := c.Call(t.Context(), req, nil)
	require.NoError(t, err)
	g := <-requests
	require.Equal(t, `{"model":"kimi-k2.6","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":7,`+
		`"thinking":{"type":"enabled","keep":"none"},"top_k":1}`, g.body)
	require.Equal(t, "api-version=v+1", g.query)

	_, err = New(Options{APIKey: testKey, ExtraBody: map[string]json.RawMessage{"tools": json.RawMessage(`[]`)}})
	require.ErrorContains(t, err, "extra_body.tools: is set by Moorebus itself")
	with, err := New(Options{APIKey: testKey, Query: map[string]string{"key": "secret-of-the-query"}, BaseURL: "http://127.0.0.1:1/v1"})
	require.NoError(t, err)
	require.NotContains(t, with.Describe().Identity, "secret")
	_, err = with.Call(t.Context(), ask(), nil)
	require.NotContains(t, wantError(t, err, llm.KindNetwork).Message, "secret")
}
