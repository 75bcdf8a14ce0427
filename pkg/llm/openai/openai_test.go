package openai

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-secret-0123456789"

func TestConformance(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		return open(t, llmtest.NewModel(llmtest.OpenAI{}, conv...).Serve(t))
	}, llmtest.NoConfidence)
}

func TestWire(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real timeouts
	}
	llmtest.RunWire(t, llmtest.OpenAI{}, open)
}

// open makes a Caller of the server at the address.
func open(t *testing.T, url string) llm.Caller {
	t.Helper()
	c, err := New(Options{APIKey: testKey, BaseURL: url, MaxBytes: llmtest.MaxWireBytes})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// serve starts a server and a Caller of it.
func serve(t *testing.T, opts Options, handler http.HandlerFunc) *llmhttp.Caller {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	opts.APIKey, opts.BaseURL = testKey, server.URL+"/v1"
	c, err := New(opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// ask is the smallest request.
func ask() llm.Request {
	return llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.RoleUser, Content: "hi"}}}
}

// script answers streamed requests with the given events, as they are, and plain
// ones with the given JSON.
func script(events, plain string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, contentType := plain, "application/json"
		if r.Header.Get("Accept") == "text/event-stream" {
			text, contentType = events, "text/event-stream"
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, text)
	}
}

// sse makes an event stream of chunks.
func sse(chunks ...string) string {
	return "data: " + strings.Join(chunks, "\n\ndata: ") + "\n\n"
}

// delta makes a chunk; finish may be empty.
func delta(members, finish string) string {
	reason := "null"
	if finish != "" {
		reason = `"` + finish + `"`
	}
	return `{"id":"c","object":"chat.completion.chunk","model":"m-1","choices":[{"index":0,"delta":{` + members +
		`},"finish_reason":` + reason + `}],"usage":null}`
}

func plainReply(message, finish string) string {
	return `{"model":"m-1","choices":[{"index":0,"message":{"role":"assistant",` + message + `},"finish_reason":"` + finish + `"}]}`
}

const (
	done  = "[DONE]"
	usage = `{"id":"c","model":"m-1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,` +
		`"prompt_tokens_details":{"cached_tokens":8}}}`
	plainHello = `{"model":"m-1","choices":[{"index":0,"message":{"role":"assistant","content":"plain hello"},` +
		`"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}`
)

// bothWays are a plain call and a streamed one.
var bothWays = []func(llm.Chunk){nil, func(llm.Chunk) {}}

// heard collects what a stream tells.
type heard struct {
	text        strings.Builder
	args, names map[int]string
}

func (h *heard) add(c llm.Chunk) {
	if h.args == nil {
		h.args, h.names = map[int]string{}, map[int]string{}
	}
	if c.Kind == llm.ChunkText {
		h.text.WriteString(c.Text)
		return
	}
	h.args[c.Index] += c.Text
	h.names[c.Index] += c.Name
}

// wantError asserts the kind of err and that it does not hold the key.
func wantError(t *testing.T, err error, kind llm.ErrorKind) *llm.Error {
	t.Helper()
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, kind, e.Kind, e.Message)
	require.NotContains(t, fmt.Sprintf("%v %+v %v", err, e, e.Err), testKey)
	return e
}

// TestRepliesEitherWay gives the same replies plain and streamed.
func TestRepliesEitherWay(t *testing.T) {
	meta := llm.Meta{Model: "m-1", Confidence: 1}
	call := `"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\": cut"}}]`
	calls := []llm.Call{{ID: "a", Name: "f", Arguments: `{"x": cut`}}
	for _, tt := range []struct {
		name, members, finish string
		want                  llm.Response
	}{
		{"empty", `"content":null`, "stop", llm.Text{Meta: meta}},
		{"malformed arguments", `"content":null,` + call, "tool_calls", llm.ToolCalls{Meta: meta, Calls: calls}},
		{"unknown finish", `"content":"hi"`, "eos", llm.Text{Meta: meta, Content: "hi"}},
	} {
		c := serve(t, Options{}, script(sse(delta(tt.members, tt.finish), done), plainReply(tt.members, tt.finish)))
		for _, stream := range bothWays {
			res, err := c.Call(t.Context(), ask(), stream)
			require.NoError(t, err, tt.name)
			llmtest.Same(t, tt.want, res, tt.name)
		}
	}
}

func TestContentInParts(t *testing.T) {
	c := serve(t, Options{}, script("", plainReply(`"content":[{"type":"text","text":"a "},{"type":"text","text":"b"}]`, "stop")))
	res, err := c.Call(t.Context(), ask(), nil)
	require.NoError(t, err)
	require.Equal(t, "a b", res.(llm.Text).Content)
}

func TestARefusalIsNoStructuredAnswer(t *testing.T) {
	c := serve(t, Options{}, script("", plainReply(`"content":null,"refusal":"no"`, "stop")))
	req := ask()
	req.OutputSchema = json.RawMessage(`{"type":"object"}`)
	res, err := c.Call(t.Context(), req, nil)
	require.NoError(t, err)
	require.IsType(t, llm.Text{}, res)
}

func TestRepliesThatAreNone(t *testing.T) {
	for body, want := range map[string]string{
		"<html>Welcome</html>": "not a chat completion (is the base URL right?)",
		plainHello[:40]:        "not a chat completion",
		"":                     "not a chat completion",
		`{"hello":"world"}`:    "no choices",
	} {
		c := serve(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		})
		for _, stream := range bothWays {
			_, err := c.Call(t.Context(), ask(), stream)
			if body == "" && stream != nil {
				wantError(t, err, llm.KindBroken)
				continue
			}
			require.Contains(t, wantError(t, err, llm.KindOther).Message, want)
		}
	}
}

func TestServerThatIgnoresStreamIsAskedOnce(t *testing.T) {
	for body, want := range map[string]string{plainReply(`"content":"two words"`, "stop"): "two words", `{"choices":[]}`: ""} {
		requests := 0
		c := serve(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
			requests++
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			_, _ = io.WriteString(w, body)
		})
		var h heard
		res, err := c.Call(t.Context(), ask(), h.add)
		require.Equal(t, 1, requests)
		require.Equal(t, want, h.text.String())
		if want == "" {
			wantError(t, err, llm.KindOther)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, res.(llm.Text).Content)
	}
}

func TestOptions(t *testing.T) {
	_, err := New(Options{})
	require.ErrorContains(t, err, "openai: no API key: set one (OPENAI_API_KEY), or a base URL (OPENAI_BASE_URL)")
	c, err := New(Options{APIKey: testKey, Model: "m-0"})
	require.NoError(t, err)
	require.Equal(t, "m-0", c.Describe().DefaultModel)
	require.Equal(t, `openai https://api.openai.com/v1 "m-0" "" false`, c.Describe().Identity, "planners of two builds compare it")
}
