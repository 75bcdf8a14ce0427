package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/stretchr/testify/require"
)

func plainReply(message, finish string) string {
	return `{"model":"m-1","choices":[{"index":0,"message":{"role":"assistant",` + message + `},"finish_reason":"` + finish + `"}]}`
}

// TestRepliesEitherWay gives the same replies plain and streamed.
func TestRepliesEitherWay(t *testing.T) {
	meta := llm.Meta{Model: "m-1", Confidence: 1}
	cut := llm.Meta{Model: "m-1", Confidence: 1, Cut: true}
	call := `"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\": cut"}}]`
	calls := []llm.Call{{ID: "a", Name: "f", Arguments: `{"x": cut`}}
	tests := []struct {
		name, members, finish string
		want                  llm.Response
	}{
		{"text", `"content":"hi"`, "stop", llm.Text{Meta: meta, Content: "hi"}},
		{"empty", `"content":null`, "stop", llm.Text{Meta: meta}},
		{"refusal", `"content":null,"refusal":"I will not."`, "stop", llm.Text{Meta: meta, Content: "I will not."}},
		{"cut text", `"content":"half a"`, "length", llm.Text{Meta: cut, Content: "half a"}},
		{"malformed arguments", `"content":null,` + call, "tool_calls", llm.ToolCalls{Meta: meta, Calls: calls}},
		{"cut call", `"content":"see",` + call, "length", llm.ToolCalls{Meta: cut, Content: "see", Calls: calls}},
		{"refused call", `"content":null,"refusal":"I will not.",` + call, "stop", llm.Text{Meta: meta, Content: "I will not."}},
		{"unknown finish", `"content":"hi"`, "eos", llm.Text{Meta: meta, Content: "hi"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, script(t, events(delta(tt.members, tt.finish), done), plainReply(tt.members, tt.finish)))
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				res, err := c.Call(t.Context(), request(), stream)
				require.NoError(t, err)
				require.Equal(t, tt.want, res)
			}
		})
	}
}

func TestContentFilter(t *testing.T) {
	c := serve(t, script(t, events(delta(`"content":"half"`, "content_filter"), done), plainReply(`"content":"half"`, "content_filter")))
	for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		_, err := c.Call(t.Context(), request(), stream)
		require.Contains(t, wantError(t, err, llm.KindInvalid).Message, "content filter")
	}
}

func TestContentInParts(t *testing.T) {
	c := serve(t, script(t, "", plainReply(`"content":[{"type":"text","text":"a "},{"type":"text","text":"b"}]`, "stop")))
	res, err := c.Call(t.Context(), request(), nil)
	require.NoError(t, err)
	require.Equal(t, "a b", res.(llm.Text).Content)
}

func TestARefusalIsNoStructuredAnswer(t *testing.T) {
	c := serve(t, script(t, "", plainReply(`"content":null,"refusal":"no"`, "stop")))
	req := request()
	req.OutputSchema = []byte(`{"type":"object"}`)
	res, err := c.Call(t.Context(), req, nil)
	require.NoError(t, err)
	require.IsType(t, llm.Text{}, res)
}

func TestErrorsByStatus(t *testing.T) {
	said := func(code, kind string) string {
		return fmt.Sprintf(`{"error":{"message":"its words, key %s","type":%q,"param":null,"code":%q}}`, testKey, kind, code)
	}
	tests := []struct {
		name   string
		status int
		body   string
		kind   llm.ErrorKind
		want   string
	}{
		{"401", 401, said("invalid_api_key", "invalid_request_error"), llm.KindAuth, "its words, key [API key]"},
		{"403", 403, said("", ""), llm.KindAuth, "its words"},
		{"429", 429, said("rate_limit_exceeded", "requests"), llm.KindRateLimited, "its words"},
		{"429, no credit", 429, said("insufficient_quota", "insufficient_quota"), llm.KindInvalid, "no credit left"},
		{"402", 402, said("", ""), llm.KindInvalid, "no credit left"},
		{"400", 400, said("bad", "invalid_request_error"), llm.KindInvalid, "its words"},
		{"400, too long", 400, said("context_length_exceeded", "invalid_request_error"), llm.KindContextTooLong, "its words"},
		{"400, too long by type", 400, `{"error":{"message":"m","type":"exceed_context_size_error","code":400}}`, llm.KindContextTooLong, "m"},
		{"400, too long in words", 400, `{"object":"error","message":"This model's maximum context length is 4096 tokens","type":"BadRequestError","code":400}`,
			llm.KindContextTooLong, "maximum context length"},
		{"413", 413, said("", ""), llm.KindContextTooLong, "its words"},
		{"404", 404, said("model_not_found", ""), llm.KindInvalid, "its words"},
		{"404, error is a string", 404, `{"error":"model \"x\" not found, try pulling it first"}`, llm.KindInvalid, `model "x" not found`},
		{"422, detail", 422, `{"detail":"field required"}`, llm.KindInvalid, "field required"},
		{"422, detail is a list", 422, `{"detail":[{"msg":"field required"}]}`, llm.KindInvalid, "HTTP 422 Unprocessable Entity: {"},
		{"408", 408, "", llm.KindOverloaded, "HTTP 408 Request Timeout"},
		{"409", 409, "", llm.KindOverloaded, "HTTP 409"},
		{"500", 500, said("", "server_error"), llm.KindOverloaded, "its words"},
		{"502, a proxy's page", 502, "<html>Bad Gateway</html>", llm.KindOverloaded, "HTTP 502 Bad Gateway: <html>"},
		{"503", 503, "", llm.KindOverloaded, "HTTP 503"},
		{"504", 504, "", llm.KindOverloaded, "HTTP 504"},
		{"529", 529, "", llm.KindOverloaded, "HTTP 529"},
		{"501", 501, "", llm.KindInvalid, "HTTP 501"},
		{"a long page", 500, strings.Repeat("ü", 9000), llm.KindOverloaded, "ü…"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
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
				require.LessOrEqual(t, len(e.Message), llm.MaxMessage+len("…"))
			}
		})
	}
}

func TestRetryAfterOnTheWire(t *testing.T) {
	tests := []struct {
		name, header string
		value        func() string
		least, most  time.Duration
	}{
		{"seconds", "Retry-After", func() string { return "7" }, 7 * time.Second, 7 * time.Second},
		{"date", "Retry-After", func() string {
			return time.Now().Add(30 * time.Second).UTC().Format(http.TimeFormat)
		}, 25 * time.Second, 30 * time.Second},
		{"milliseconds", "retry-after-ms", func() string { return "1500" }, 1500 * time.Millisecond, 1500 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(tt.header, tt.value())
				w.WriteHeader(http.StatusTooManyRequests)
				_, _ = io.WriteString(w, `{"error":{"message":"slow down"}}`)
			})
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				_, err := c.Call(t.Context(), request(), stream)
				e := wantError(t, err, llm.KindRateLimited)
				require.GreaterOrEqual(t, e.RetryAfter, tt.least)
				require.LessOrEqual(t, e.RetryAfter, tt.most)
			}
		})
	}
}

func TestRepliesThatAreNone(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"a page", "<html>Welcome</html>", "not a chat completion (is the base URL right?)"},
		{"cut JSON", plainHello[:40], "not a chat completion"},
		{"nothing", "", "not a chat completion"},
		{"no choices", `{"hello":"world"}`, "no choices"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, script(t, tt.body, tt.body))
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				_, err := c.Call(t.Context(), request(), stream)
				require.Contains(t, wantError(t, err, llm.KindOther).Message, tt.want)
			}
		})
	}
}

func TestFloodedReplyIsCut(t *testing.T) {
	c := serveWith(t, Options{MaxBytes: 1000}, script(t, "", plainReply(`"content":"`+strings.Repeat("x", 1000)+`"`, "stop")))
	_, err := c.Call(t.Context(), request(), nil)
	require.Contains(t, wantError(t, err, llm.KindOther).Message, "larger than 1000 bytes")
}

func TestNetworkErrors(t *testing.T) {
	reset := func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	cut := func(w http.ResponseWriter, r *http.Request) {
		if isStream(t, r) {
			reset(w, r)
			return
		}
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, plainHello[:50])
	}
	for name, handler := range map[string]http.HandlerFunc{"reset": reset, "cut body": cut} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, handler)
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				_, err := c.Call(t.Context(), request(), stream)
				wantError(t, err, llm.KindNetwork)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address := listener.Addr().String()
		require.NoError(t, listener.Close())
		c, err := New(Options{APIKey: testKey, BaseURL: "http://user:" + testKey + "@" + address})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), request(), nil)
		wantError(t, err, llm.KindNetwork)
	})
}

// TestCancelReturnsAtOnce cancels calls before the reply, and in the middle of a
// stream; a plain call must not follow.
func TestCancelReturnsAtOnce(t *testing.T) {
	for name, prefix := range map[string]string{"before the reply": "", "in the stream": events(delta(`"content":"half"`, ""))} {
		for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
			t.Run(fmt.Sprint(name, ", streamed ", stream != nil), func(t *testing.T) {
				reached := make(chan struct{}, 8)
				c := serve(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					if prefix != "" {
						_, _ = io.WriteString(w, prefix)
						_ = http.NewResponseController(w).Flush()
					}
					reached <- struct{}{}
					<-r.Context().Done()
				})
				ctx, cancel := context.WithCancel(t.Context())
				result := make(chan error, 1)
				go func() {
					_, err := c.Call(ctx, request(), stream)
					result <- err
				}()
				<-reached
				cancel()
				select {
				case err := <-result:
					require.Equal(t, context.Canceled, err)
				case <-time.After(time.Minute):
					t.Fatal("the call goes on after its context ended")
				}
				require.Empty(t, reached)
			})
		}
	}
}

func TestTimeout(t *testing.T) {
	c := serveWith(t, Options{Timeout: 30 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		_, err := c.Call(t.Context(), request(), stream)
		e := wantError(t, err, llm.KindNetwork)
		require.Equal(t, "the model gave no complete reply within 30ms", e.Message)
		require.True(t, errors.Is(err, context.DeadlineExceeded))
	}
}
