package httptool

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

const secret = "Bearer s3cret-value"

var call = tool.Call{Run: "run-1", ID: "call_1", Name: "ask", Arguments: `{"n": 12345678901234567890.50}`, TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv
}

func newTool(t *testing.T, def tool.Definition, opts Options) tool.Tool {
	t.Helper()
	def.Name = "ask"
	if opts.Headers == nil {
		opts.Headers = map[string]string{"Authorization": secret}
	}
	made, err := New(def, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, made.(*httpTool).Close()) })
	return made
}

func requireFailure(t *testing.T, err error, code, want string) *tool.Failure {
	t.Helper()
	var f *tool.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, code, f.Code, f.Message)
	require.Contains(t, f.Message, want)
	require.NotContains(t, f.Message, "s3cret")
	return f
}

func TestSuite(t *testing.T) {
	open, started := new(atomic.Int64), make(chan struct{}, 16)
	server := func(t *testing.T) string {
		mux := http.NewServeMux()
		mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		mux.HandleFunc("/key", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Idempotency-Key")) })
		mux.HandleFunc("/bad", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such city", http.StatusNotFound) })
		mux.HandleFunc("/hang", func(w http.ResponseWriter, r *http.Request) {
			open.Add(1)
			defer open.Add(-1)
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server see that the client went away
			started <- struct{}{}
			<-r.Context().Done()
		})
		return serve(t, mux.ServeHTTP).URL
	}
	at := func(t *testing.T, path string) tooltest.Case {
		return tooltest.Case{Tool: newTool(t, tool.Definition{}, Options{URL: server(t) + path}), Arguments: call.Arguments}
	}
	tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			c := at(t, "/echo")
			c.Want = c.Arguments
			return c
		},
		Failure: func(t *testing.T) tooltest.Case {
			c := at(t, "/bad")
			c.Code, c.Want = tool.CodeHTTPStatus, "HTTP status 404 Not Found: no such city"
			return c
		},
		Hangs: func(t *testing.T) tooltest.Hang {
			return tooltest.Hang{Case: at(t, "/hang"), Quiet: func() bool { return open.Load() == 0 }, Started: func(ctx context.Context) error {
				select {
				case <-started:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
		},
		ShowsKey: func(t *testing.T) tooltest.Case { return at(t, "/key") },
	}.Run(t)
}

func TestRequest(t *testing.T) {
	var got *http.Request
	var body string
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got, body = r, string(raw)
		w.Header().Set("Content-Type", "image/png")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "text whatever it says")
	})
	made := newTool(t, tool.Definition{}, Options{URL: srv.URL + "/path?fixed=1", Method: "put", Headers: map[string]string{"X-Own": "own", "authorization": secret}})
	result, err := made.Run(t.Context(), call)
	require.NoError(t, err)
	require.Equal(t, "text whatever it says", result)
	require.Equal(t, call.Arguments, body)
	require.Equal(t, "PUT", got.Method)
	require.Equal(t, "/path?fixed=1", got.URL.String())
	for name, want := range map[string]string{
		"Idempotency-Key": "run-1/call_1", "X-Moorebus-Run": "run-1", "X-Moorebus-Call": "call_1", "Traceparent": call.TraceParent,
		"X-Own": "own", "Authorization": secret, "Content-Type": "application/json",
	} {
		require.Equal(t, want, got.Header.Get(name))
	}
	_, err = made.Run(t.Context(), tool.Call{})
	require.NoError(t, err)
	require.Equal(t, "{}", body)
}

func TestGetTakesArgumentsInTheQuery(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %q", r.URL.RawQuery, raw)
	})
	made := newTool(t, tool.Definition{}, Options{URL: srv.URL + "?key=k", Method: "GET"})
	get := func(arguments string) (string, error) {
		return made.Run(t.Context(), tool.Call{Arguments: arguments})
	}
	got, err := get(`{"q":"a b&c","n":12345678901234567890.50,"yes":true,"none":null}`)
	require.NoError(t, err)
	require.Equal(t, `key=k&n=12345678901234567890.50&q=a+b%26c&yes=true ""`, got)
	got, err = get("")
	require.NoError(t, err)
	require.Equal(t, `key=k ""`, got)
	for arguments, want := range map[string]string{`{"a":[1]}`: `"a"`, `{"a":{}}`: `"a"`, `[1]`: "object", `{`: "object"} {
		_, err = get(arguments)
		requireFailure(t, err, tool.CodeInvalidArguments, want)
	}
}

func TestStatusFailures(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.WriteHeader(status)
		if status == 500 {
			fmt.Fprint(w, strings.Repeat("ü", 100_000))
		}
	})
	for status, passing := range map[int]bool{400: false, 401: false, 404: false, 429: true, 500: true, 503: true, 599: true} {
		made := newTool(t, tool.Definition{}, Options{URL: fmt.Sprintf("%s/%d", srv.URL, status)})
		_, err := made.Run(t.Context(), call)
		f := requireFailure(t, err, tool.CodeHTTPStatus, fmt.Sprintf("HTTP status %d", status))
		require.Equal(t, passing, f.Passing, status)
		require.False(t, f.NotSent)
		require.Less(t, len(f.Message), maxErrorBody+200)
		if status == 500 {
			require.Contains(t, f.Message, "ü\n[moorebus: output cut at 16384 bytes of more]")
		}
	}
}

func TestUnreachable(t *testing.T) {
	srv := serve(t, nil)
	srv.Close()
	made := newTool(t, tool.Definition{}, Options{URL: srv.URL + "/s3cret?key=s3cret"})
	_, err := made.Run(t.Context(), call)
	f := requireFailure(t, err, tool.CodeUnreachable, "cannot be reached")
	require.True(t, f.NotSent)

	made = newTool(t, tool.Definition{}, Options{URL: "http://nowhere.invalid/"})
	_, err = made.Run(t.Context(), call)
	require.True(t, requireFailure(t, err, tool.CodeUnreachable, "nowhere.invalid").NotSent)
}

func TestResetInTheMiddle(t *testing.T) {
	drop := func(t *testing.T, head string) tool.Tool {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, head)
			_ = conn.Close()
		})
		return newTool(t, tool.Definition{}, Options{URL: srv.URL})
	}
	_, err := drop(t, "").Run(t.Context(), call)
	require.False(t, requireFailure(t, err, tool.CodeUnreachable, "no answer came").NotSent)
	_, err = drop(t, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").Run(t.Context(), call)
	require.False(t, requireFailure(t, err, tool.CodeUnreachable, "broke off after 4 bytes").NotSent)
	_, err = drop(t, "nonsense\r\n\r\n").Run(t.Context(), call)
	require.False(t, requireFailure(t, err, tool.CodeUnreachable, "no answer came").NotSent)
}

func TestOutputIsCut(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sized" {
			w.Header().Set("Content-Length", "5000000")
		}
		for range 50 {
			fmt.Fprint(w, strings.Repeat("ü", 50_000))
		}
	})
	for path, total := range map[string]string{"/sized": "5000000", "/": "more"} {
		got, err := newTool(t, tool.Definition{}, Options{URL: srv.URL + path, MaxOutput: 101}).Run(t.Context(), call)
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("ü", 50)+"\n[moorebus: output cut at 100 bytes of "+total+"]", got)
		got, err = newTool(t, tool.Definition{}, Options{URL: srv.URL + path}).Run(t.Context(), call)
		require.NoError(t, err)
		require.Len(t, got, 5_000_000)
		got, err = newTool(t, tool.Definition{}, Options{URL: srv.URL + path, MaxOutput: 5_000_000}).Run(t.Context(), call)
		require.NoError(t, err)
		require.Len(t, got, 5_000_000)
	}
}

// A body that is text is the result whatever its type. An image or a PDF that is none is
// kept beside the result.
func TestImagesAreKept(t *testing.T) {
	for _, c := range []struct{ named, body, result, kept string }{
		{"image/png", "\x89PNG", "[image image/png, 4 bytes, kept as a/1]", "image/png"},
		{"application/pdf; x=y", "%PDF\xff", "[file application/pdf; x=y, 5 bytes, kept as a/1]", "application/pdf"},
		{"image/svg+xml", "<svg/>", "<svg/>", ""},
		{"application/octet-stream", "\x89PNG", "\x89PNG", ""},
		{"image/png", "\x89" + strings.Repeat("x", 100), "", ""},
	} {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.named)
			_, _ = io.WriteString(w, c.body)
		})
		kept := ""
		ctx := callctx.WithStore(t.Context(), func(_ context.Context, mediaType string, data []byte) (string, error) {
			require.Equal(t, c.body, string(data))
			kept = mediaType
			return "a/1", nil
		})
		got, err := newTool(t, tool.Definition{}, Options{URL: srv.URL, MaxOutput: 50}).Run(ctx, call)
		require.NoError(t, err)
		require.Equal(t, c.kept, kept)
		if c.result != "" {
			require.Equal(t, c.result, got)
		} else {
			require.Contains(t, got, "50", "one that is too large is cut, as any result is")
		}
	}
}

func TestRedirects(t *testing.T) {
	var leaked atomic.Int64
	other := serve(t, func(http.ResponseWriter, *http.Request) { leaked.Add(1) })
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/here":
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		case "/there":
			fmt.Fprint(w, r.Header.Get("Authorization"), r.Header.Get("Idempotency-Key"))
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		default:
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}
	})
	run := func(method, path string) (string, error) {
		return newTool(t, tool.Definition{}, Options{URL: srv.URL + path, Method: method}).Run(t.Context(), tool.Call{Run: "r", ID: "c"})
	}
	got, err := run("GET", "/here")
	require.NoError(t, err)
	require.Equal(t, secret+"r/c", got)
	for _, c := range [][2]string{{"POST", "/here"}, {"GET", "/away"}, {"POST", "/away"}, {"GET", "/loop"}} {
		_, err = run(c[0], c[1])
		requireFailure(t, err, tool.CodeHTTPStatus, "a redirect, not followed")
	}
	require.Zero(t, leaked.Load())
}

// A connection that was used before and fails makes Go's client send a request
// with an idempotency key again. A tool of class once must not.
func TestOnceIsSentOnce(t *testing.T) {
	for _, method := range []string{"POST", "GET"} {
		var asked atomic.Int64
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 1 {
				fmt.Fprint(w, "first")
				return
			}
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		})
		made := newTool(t, tool.Definition{Effect: tool.Once}, Options{URL: srv.URL, Method: method})
		_, err := made.Run(t.Context(), tool.Call{})
		require.NoError(t, err)
		_, err = made.Run(t.Context(), tool.Call{})
		require.False(t, requireFailure(t, err, tool.CodeUnreachable, "no answer came").NotSent)
		require.EqualValues(t, 2, asked.Load(), method)
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	var connections atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	made := newTool(t, tool.Definition{Effect: tool.Pure}, Options{URL: srv.URL})
	for range 10 {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := made.Run(t.Context(), call); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	require.LessOrEqual(t, connections.Load(), int64(60))
}

func TestNewRefuses(t *testing.T) {
	for want, opts := range map[string]Options{
		"url must be":        {},
		"absolute http":      {URL: "ftp://host/"},
		"absolute":           {URL: "http://s3cret:%zz"},
		`method "HEAD"`:      {URL: "http://a", Method: "HEAD"},
		"set by moorebus":    {URL: "http://a", Headers: map[string]string{"idempotency-key": "x"}},
		"control characters": {URL: "http://a", Headers: map[string]string{"X-A": "s3cret\r\nX-B: c"}},
		"header name":        {URL: "http://a", Headers: map[string]string{"X A": "s3cret"}},
	} {
		_, err := New(tool.Definition{Name: "x"}, opts)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "s3cret")
	}
	_, err := New(tool.Definition{Name: "bad name", Effect: "twice"}, Options{URL: "http://a"})
	require.ErrorContains(t, err, "twice")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
