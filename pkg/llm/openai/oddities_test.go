package openai

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/llm"
)

// A name that a server splits over chunks is put together. One that it repeats, and the name of
// another tool, are not.
func TestToolNamesOverChunks(t *testing.T) {
	call := func(fields string) string { return delta(`"tool_calls":[{`+fields+`}]`, "") }
	for name, c := range map[string]struct {
		chunks []string
		want   []llm.Call
	}{
		"split in three": {
			[]string{call(`"index":0,"id":"x","function":{"name":"get"}`), call(`"index":0,"function":{"name":"_wea"}`), call(`"index":0,"function":{"name":"ther","arguments":"{}"}`)},
			[]llm.Call{{ID: "x", Name: "get_weather", Arguments: "{}"}},
		},
		"split, without arguments and index": {
			[]string{call(`"id":"x","function":{"name":"get_"}`), call(`"id":"x","function":{"name":"weather"}`)},
			[]llm.Call{{ID: "x", Name: "get_weather", Arguments: "{}"}},
		},
		"repeated": {
			[]string{call(`"index":0,"id":"x","function":{"name":"get"}`), call(`"index":0,"id":"x","function":{"name":"get","arguments":"{}"}`)},
			[]llm.Call{{ID: "x", Name: "get", Arguments: "{}"}},
		},
		"another one": {
			[]string{call(`"function":{"name":"get"}`), call(`"function":{"name":"s"}`)},
			[]llm.Call{{Name: "get", Arguments: "{}"}, {Name: "s", Arguments: "{}"}},
		},
		"another one under a new id": {
			[]string{call(`"index":0,"id":"x","function":{"name":"get"}`), call(`"index":0,"id":"y","function":{"name":"_weather"}`)},
			[]llm.Call{{ID: "x", Name: "get", Arguments: "{}"}, {ID: "y", Name: "_weather", Arguments: "{}"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			body := sse(append(c.chunks, delta("", "tool_calls"), usage, done)...)
			caller := cannedCaller(t, canned{body: func() io.Reader { return strings.NewReader(body) }}, Options{Model: "m-1"})
			req := ask()
			for _, tool := range []string{"get", "get_weather", "gets", "s"} {
				req.Tools = append(req.Tools, llm.Tool{Name: tool})
			}
			shown := map[int]string{}
			res, err := caller.Call(t.Context(), req, func(c llm.Chunk) { shown[c.Index] += c.Name })
			require.NoError(t, err)
			got := res.(llm.ToolCalls).Calls
			require.Len(t, got, len(c.want))
			for i, want := range c.want {
				require.Equal(t, want.Name, got[i].Name)
				require.Equal(t, want.Name, shown[i])
				require.Equal(t, want.Arguments, got[i].Arguments)
			}
		})
	}
}

// The text of older completions is the answer, in one piece and streamed.
func TestTextOfAChoice(t *testing.T) {
	plain := `{"model":"m-1","choices":[{"index":0,"text":"Two.","finish_reason":"stop"}]}`
	chunks := sse(`{"model":"m-1","choices":[{"index":0,"text":"Tw"}]}`, `{"model":"m-1","choices":[{"index":0,"text":"o.","finish_reason":"stop"}]}`, done)
	caller := cannedCaller(t, canned{body: func() io.Reader { return strings.NewReader(chunks) }, plain: plain}, Options{Model: "m-1"})
	for way, stream := range map[string]func(llm.Chunk){"plain": nil, "streamed": func(llm.Chunk) {}} {
		res, err := caller.Call(t.Context(), ask(), stream)
		require.NoError(t, err, way)
		require.Equal(t, "Two.", res.(llm.Text).Content, way)
	}
}

// An error that is a string is stated in the provider's words, wherever it stands.
func TestErrorIsAString(t *testing.T) {
	for _, said := range []string{`"out of pasta"`, `{"error":"out of pasta"}`, `{"choices":[{"index":0,"delta":{"content":"Hm"},"error":"out of pasta"}]}`} {
		stream := sse(delta(`"content":"A"`, ""), said)
		caller := cannedCaller(t, canned{body: func() io.Reader { return strings.NewReader(stream) }, plain: said}, Options{Model: "m-1"})
		for way, stream := range map[string]func(llm.Chunk){"plain": nil, "streamed": func(llm.Chunk) {}} {
			_, err := caller.Call(t.Context(), ask(), stream)
			var e *llm.Error
			require.ErrorAs(t, err, &e, "%s %s", way, said)
			require.Equal(t, "out of pasta", e.Message, "%s %s", way, said)
		}
	}
}
