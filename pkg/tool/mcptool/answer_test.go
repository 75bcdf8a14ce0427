package mcptool

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/tool"
)

const oneTool = `{"name":"echo","inputSchema":{"type":"object"}}`

// A server's own error may have a code by which the SDK means that the connection is
// closed. The call was sent: it fails at once, and is not made again.
func TestAnswersThatLookLikeTheEnd(t *testing.T) {
	t.Parallel()
	for _, code := range []int{-32003, -32004} {
		for _, says := range []string{"the quota is used up", "server is closing"} {
			t.Run(fmt.Sprint(code, says), func(t *testing.T) {
				t.Parallel()
				var calls atomic.Int64
				web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					id, method := posted(r)
					switch {
					case r.Method == http.MethodGet:
						w.WriteHeader(http.StatusMethodNotAllowed)
					case !reply(w, id, method, oneTool) && method == "tools/call":
						calls.Add(1)
						_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, id, code, says)
					}
				}))
				t.Cleanup(web.Close)
				r := start(t, Options{Name: "srv", URL: web.URL, Over: tool.Definition{Timeout: time.Minute}})
				ctx, stop := context.WithTimeout(t.Context(), within)
				defer stop()
				f := r.Execute(ctx, tool.Call{Run: "run", ID: "c1", Name: "srv.echo", Arguments: "{}"}).Failure
				require.NotNil(t, f)
				require.Equal(t, tool.CodeFailed, f.Code, f.Message)
				require.Contains(t, f.Message, says)
				require.False(t, f.NotSent)
				require.EqualValues(t, 1, calls.Load())
			})
		}
	}
}

// The same from a command, over its pipes.
func TestAnswerOfACommandThatLooksLikeTheEnd(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "quota")
	ctx, stop := context.WithTimeout(t.Context(), within)
	defer stop()
	f := r.Execute(ctx, tool.Call{Run: "run", ID: "c1", Name: "srv.echo", Arguments: "{}"}).Failure
	require.NotNil(t, f)
	require.Equal(t, tool.CodeFailed, f.Code, f.Message)
	require.Equal(t, "the quota is used up", f.Message)
	require.Equal(t, []string{"called"}, lines(r.hangs))
}

// A failure whose body does not end, or that does not come at all, while the server
// connects, ends with the time for that, and with Run.
func TestHTTPServerWhoseFailureHasNoEnd(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]time.Duration{
		"its time is up": 300 * time.Millisecond, "it is told to end": time.Hour, "it is told to end before it answers": time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{}, 100)
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					id, method := posted(r)
					reply(w, id, method, oneTool)
					return
				}
				if strings.HasSuffix(name, "before it answers") {
					asked <- struct{}{}
					<-r.Context().Done()
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				w.WriteHeader(http.StatusNotImplemented)
				w.(http.Flusher).Flush()
				asked <- struct{}{}
				<-r.Context().Done()
			}))
			t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
			s, err := New(Options{Name: "srv", URL: web.URL, ConnectTimeout: timeout})
			require.NoError(t, err)
			log := &logBuffer{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			go func() { defer close(ended); s.Run(ctx, slog.New(slog.NewTextHandler(log, nil)), func([]tool.Tool) {}) }()
			<-asked
			if timeout < within {
				require.Eventually(t, func() bool { return strings.Contains(log.String(), "is away") }, within, 10*time.Millisecond)
			}
			cancel()
			select {
			case <-ended:
			case <-time.After(within):
				t.Fatal("it does not end")
			}
		})
	}
}

// The body of a failure is bounded as a whole, also where it is a stream of events.
func TestHTTPFailuresAreBounded(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{http.StatusOK: "", http.StatusBadRequest: "more than 1000 bytes", http.StatusNotFound: "more than 1000 bytes"} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(status)
			_, _ = w.Write(bytes.Repeat([]byte("data: words\n\n"), 1000)) // a client that has enough goes
		}))
		x := &exchange{
			endpoint: newEndpoint(Options{URL: web.URL, MaxMessage: 1000}), inlet: &inlet{}, life: t.Context(),
			end: func(err error) { t.Error(err) },
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`))
		require.NoError(t, err)
		res, err := x.RoundTrip(req)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		if want == "" {
			require.NoError(t, err)
			require.Len(t, body, 13_000, "each event is bounded for itself")
		} else {
			require.ErrorContains(t, err, want)
		}
		require.NoError(t, res.Body.Close())
		x.close()
		web.Close()
	}
}

// A change of the list that the SDK does not pass on does not hide the next one.
func TestListChangeAfterOneThatWasLost(t *testing.T) {
	t.Parallel()
	events := make(chan string)
	var lists atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			for {
				select {
				case e := <-events:
					_, _ = fmt.Fprintf(w, "event: %s\ndata: {\"jsonrpc\":\"2.0\",\"method\":%q}\n\n", e, listChanged)
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}
		id, method := posted(r)
		if method == "tools/list" {
			lists.Add(1)
		}
		reply(w, id, method, oneTool)
	}))
	t.Cleanup(func() { web.CloseClientConnections(); web.Close() })
	r := start(t, Options{Name: "srv", URL: web.URL})
	session, err := r.server.await(t.Context(), t.Context().Done())
	require.NoError(t, err)
	events <- "other" // of which the SDK makes nothing
	require.Eventually(t, func() bool { return session.inlet.changes.Load() == 1 }, within, 5*time.Millisecond)
	session.lookSoon()
	require.Eventually(t, func() bool { return lists.Load() == 2 }, within, 5*time.Millisecond)
	events <- "message"
	require.Eventually(t, func() bool { return lists.Load() == 3 }, within, 5*time.Millisecond, "the change was not seen")
}

// What a command is given in its environment is in no failure and no log, wherever
// the command says it.
func TestSecretsOfAnEnvironment(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-TOKEN"
	r := startStdio(t, "blab", func(o *Options) {
		o.Env = append(o.Env, "BLAB="+secret, "BLABKEY=-----BEGIN-----\nAAAA-BBBB-CCCC\n-----END-----", "SHORTER="+secret[:8])
	})
	f := r.failure(t, "echo")
	require.Contains(t, f.Message, "its last words: token [REDACTED]")
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "is away") }, within, 5*time.Millisecond)
	r.stop()
	log := r.log.String()
	require.Contains(t, log, "stderr=\"starting with [REDACTED]")
	require.Contains(t, log, "output that is not a message")
	for _, text := range []string{f.Message, log} {
		require.NotContains(t, text, secret[:6])
		require.NotContains(t, text, "TOKEN")
		require.NotContains(t, text, "AAAA-BBBB")
	}
}
