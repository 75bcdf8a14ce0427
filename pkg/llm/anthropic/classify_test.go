package anthropic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

// wantError asserts the kind of err and that it does not hold the key.
func wantError(t *testing.T, err error, kind llm.ErrorKind) *llm.Error {
	t.Helper()
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, kind, e.Kind, e.Message)
	require.NotContains(t, fmt.Sprintf("%v %+v %v", err, e, e.Err), testKey)
	return e
}

func request() llm.Request { return llm.Request{Messages: []llm.Message{user("go")}} }

func serve(t *testing.T, handler http.HandlerFunc, change ...func(*Options)) *Caller {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return open(t, server.URL, change...)
}

func TestErrorsByType(t *testing.T) {
	said := func(kind, message string) string {
		return fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":%q},"request_id":"req_1"}`, kind, message+" "+testKey)
	}
	for _, tt := range []struct {
		status int
		body   string
		kind   llm.ErrorKind
		want   string
	}{
		{400, said("invalid_request_error", "its words"), llm.KindInvalid, "its words [API key]"},
		{400, said("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), llm.KindContextTooLong, "too long"},
		{400, said("invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 2"), llm.KindContextTooLong, "exceed"},
		{400, said("invalid_request_error", "Your credit balance is too low to access the API."), llm.KindInvalid, "no credit left"},
		{400, said("invalid_request_error", "Output blocked by content filtering policy"), llm.KindInvalid, "content filtering"},
		{401, said("authentication_error", "invalid x-api-key"), llm.KindAuth, "invalid x-api-key"},
		{402, said("billing_error", "its words"), llm.KindInvalid, "no credit left"},
		{403, said("permission_error", "its words"), llm.KindAuth, "its words"},
		{404, said("not_found_error", "model: claude-none"), llm.KindInvalid, "claude-none"},
		{413, said("request_too_large", "its words"), llm.KindContextTooLong, "its words"},
		{413, "<html>too large</html>", llm.KindContextTooLong, "HTTP 413"},
		{429, said("rate_limit_error", "its words"), llm.KindRateLimited, "its words"},
		{500, said("api_error", "its words"), llm.KindOverloaded, "its words"},
		{502, "<html>Bad Gateway</html>", llm.KindOverloaded, "HTTP 502 Bad Gateway: <html>"},
		{503, "", llm.KindOverloaded, "HTTP 503"},
		{504, said("timeout_error", "its words"), llm.KindOverloaded, "its words"},
		{529, said("overloaded_error", "Overloaded"), llm.KindOverloaded, "Overloaded"},
		{529, "", llm.KindOverloaded, "HTTP 529"},
		{501, "", llm.KindInvalid, "HTTP 501"},
		{418, `{"error":"a string"}`, llm.KindInvalid, `HTTP 418 I'm a teapot: {"error":"a string"}`},
		{500, strings.Repeat("ü", 9000), llm.KindOverloaded, "ü…"},
	} {
		t.Run(fmt.Sprintf("%d %s", tt.status, tt.want), func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				_, err := c.Call(t.Context(), request(), stream)
				e := wantError(t, err, tt.kind)
				require.Contains(t, e.Message, tt.want)
				require.Equal(t, tt.status, e.Status)
				require.Zero(t, e.RetryAfter)
			}
		})
	}
}

// What is stated in the middle of a stream is sorted by its type alone.
func TestErrorsInTheStream(t *testing.T) {
	for kind, want := range map[string]llm.ErrorKind{
		"overloaded_error": llm.KindOverloaded, "api_error": llm.KindOverloaded, "rate_limit_error": llm.KindRateLimited,
		"authentication_error": llm.KindAuth, "invalid_request_error": llm.KindInvalid, "some_later_error": llm.KindOther,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\""+kind+"\",\"message\":\"key "+testKey+"\"}}\n\n")
		})
		_, err := c.Call(t.Context(), request(), func(llm.Chunk) {})
		require.Equal(t, "key [API key]", wantError(t, err, want).Message)
	}
}

func TestRepliesThatAreNone(t *testing.T) {
	for name, body := range map[string]string{"a page": "<html>Welcome</html>", "cut JSON": `{"type":"mess`, "nothing": "", "something else": `{"hello":"world"}`} {
		for _, contentType := range []string{"application/json", "text/html"} {
			t.Run(name+" as "+contentType, func(t *testing.T) {
				c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", contentType)
					_, _ = io.WriteString(w, body)
				})
				for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
					_, err := c.Call(t.Context(), request(), stream)
					require.Contains(t, wantError(t, err, llm.KindOther).Message, "not a message (is the base URL right?)")
				}
			})
		}
	}
	t.Run("a flood", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"content":"`+strings.Repeat("x", 2*llmtest.MaxWireBytes))
		})
		_, err := c.Call(t.Context(), request(), nil)
		require.Contains(t, wantError(t, err, llm.KindOther).Message, "larger than 262144 bytes")
	})
}

// A server that sends elsewhere does not get the key shown there.
func TestRedirectionsAreNotFollowed(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked elsewhere") }))
	defer elsewhere.Close()
	c := serve(t, http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect).ServeHTTP)
	for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		_, err := c.Call(t.Context(), request(), stream)
		require.Equal(t, http.StatusTemporaryRedirect, wantError(t, err, llm.KindOther).Status)
	}
}

// What a reply's stop reason says beyond the suite.
func TestStopReasons(t *testing.T) {
	meta := llm.Meta{Model: "m", Confidence: 1}
	cut := meta
	cut.Cut = true
	for reason, want := range map[string]llm.Response{
		`"stop_sequence"`:                 llm.Text{Meta: meta, Content: "so far"},
		`"model_context_window_exceeded"`: llm.Text{Meta: cut, Content: "so far"},
		`"some_later_reason"`:             llm.Text{Meta: meta, Content: "so far"},
		`"refusal"`:                       llm.Text{Meta: meta, Content: "so far"},
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"type":"message","model":"m","content":[{"type":"text","text":"so far"}],"stop_reason":`+reason+`}`)
		})
		got, err := c.Call(t.Context(), request(), nil)
		require.NoError(t, err, reason)
		require.Equal(t, want, got, reason)
	}
	for body, want := range map[string]string{
		`{"type":"message","content":[],"stop_reason":"refusal"}`:                                                       llm.RefusedText,
		`{"type":"message","content":[],"stop_reason":"refusal","stop_details":{"type":"refusal","explanation":"No."}}`: "No.",
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		})
		got, err := c.Call(t.Context(), request(), nil)
		require.NoError(t, err)
		require.Equal(t, want, got.(llm.Text).Content)
	}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"type":"message","content":[],"stop_reason":"pause_turn"}`)
	})
	_, err := c.Call(t.Context(), request(), nil)
	require.Contains(t, wantError(t, err, llm.KindOther).Message, "pause_turn")
}

func TestNetworkErrors(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"reset": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		},
		"cut body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"type":`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, handler)
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				_, err := c.Call(t.Context(), request(), stream)
				wantError(t, err, llm.KindNetwork)
			}
		})
	}
	c := open(t, "http://user:"+testKey+"@127.0.0.1:1")
	_, err := c.Call(t.Context(), request(), nil)
	wantError(t, err, llm.KindNetwork)
}

func TestTimeoutAndSilence(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	c := serve(t, hang, func(o *Options) { o.Timeout = 30 * time.Millisecond })
	for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		_, err := c.Call(t.Context(), request(), stream)
		e := wantError(t, err, llm.KindNetwork)
		require.Equal(t, "the model gave no complete reply within 30ms", e.Message)
		require.True(t, errors.Is(err, context.DeadlineExceeded))
	}
	// A stream that has begun and goes silent is asked for plainly.
	wire := llmtest.Anthropic{}
	c = serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		req, _ := wire.Read(body)
		if !req.Stream {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, wire.Plain(hello, req))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, wire.Events(hello, req)[0])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, func(o *Options) { o.Silence = 50 * time.Millisecond })
	began := time.Now()
	got, err := c.Call(t.Context(), request(), func(llm.Chunk) {})
	require.NoError(t, err)
	require.Equal(t, "hello", got.(llm.Text).Content)
	require.Less(t, time.Since(began), 30*time.Second)
}

func TestStreamedConnectionIsUsedAgain(t *testing.T) {
	remotes := make(chan string, 5)
	model := llmtest.NewModel(llmtest.Anthropic{}, hello)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		remotes <- r.RemoteAddr
		model.ServeHTTP(w, r)
	})
	for range cap(remotes) {
		_, err := c.Call(t.Context(), request(), func(llm.Chunk) {})
		require.NoError(t, err)
	}
	used := map[string]bool{}
	for range cap(remotes) {
		used[<-remotes] = true
	}
	require.Less(t, len(used), cap(remotes), "a busy machine may need more than one")
}

// canned answers streamed requests with the given bytes.
type canned string

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	req, err := llmtest.Anthropic{}.Read(body)
	text, contentType := llmtest.Anthropic{}.Plain(hello, req), "application/json"
	if req.Stream {
		text, contentType = string(c), "text/event-stream"
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, err
}

func FuzzStream(f *testing.F) {
	calls := llmtest.Turn{Thinking: "hm", Reply: llm.ToolCalls{Content: "x", Calls: []llm.Call{{ID: "a", Name: "f", Arguments: `{"a":1}`}}}}
	f.Add([]byte(strings.Join(llmtest.Anthropic{}.Events(calls, llmtest.WireRequest{}), "")))
	f.Add([]byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":-1,\"delta\":{\"type\":\"text_delta\"}}\n\n"))
	f.Add([]byte("event: error\ndata: {\"error\":[]}\n\n"))
	f.Add([]byte("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"))
	f.Add([]byte("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"redacted_thinking\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"))
	f.Add([]byte{0xff, 0xfe, '\n', 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := open(t, "http://canned.invalid", func(o *Options) { o.HTTPClient = &http.Client{Transport: canned(stream)} })
		res, err := c.Call(t.Context(), request(), func(llm.Chunk) {})
		if err != nil {
			var e *llm.Error
			require.ErrorAs(t, err, &e)
			require.NotEmpty(t, e.Kind)
			require.Nil(t, res)
		}
	})
}
