package openai

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-secret-0123456789"

// serve starts a server and a Caller of it.
func serve(t *testing.T, handler http.HandlerFunc) *Caller {
	t.Helper()
	return serveWith(t, Options{}, handler)
}

func serveWith(t *testing.T, opts Options, handler http.HandlerFunc) *Caller {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	opts.BaseURL = server.URL + "/v1"
	if opts.APIKey == "" {
		opts.APIKey = testKey
	}
	c, err := New(opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// request is the smallest one.
func request() llm.Request {
	return llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.RoleUser, Content: "hi"}}}
}

// isStream reports what the request asks for.
func isStream(t *testing.T, r *http.Request) bool {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		t.Errorf("read request: %v", err)
	}
	var b struct {
		Stream bool `json:"stream"`
	}
	if err := json.Unmarshal(data, &b); err != nil {
		t.Errorf("decode request: %v", err)
	}
	return b.Stream
}

// script answers streamed requests with the given events, as they are, and plain
// ones with the given JSON.
func script(t *testing.T, events, plain string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if isStream(t, r) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, events)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, plain)
	}
}

// events makes an event stream of chunks.
func events(chunks ...string) string {
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

const (
	done  = "[DONE]"
	usage = `{"id":"c","model":"m-1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,` +
		`"prompt_tokens_details":{"cached_tokens":8}}}`
	plainHello = `{"model":"m-1","choices":[{"index":0,"message":{"role":"assistant","content":"plain hello"},` +
		`"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}`
)

// heard collects what a stream tells.
type heard struct {
	text  strings.Builder
	args  map[int]string
	names map[int]string
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
