package mcptool

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
)

func TestServerThatDiesInACall(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "server")
	for range 3 {
		f := r.failure(t, "die")
		require.Equal(t, codes.OutcomeUnknown, f.Code)
		require.Contains(t, f.Message, "exit status 3")
		require.Contains(t, f.Message, "out of cheese")
		require.Equal(t, "{}", r.says(t, "echo"), "it is back for the next call")
	}
	require.Len(t, r.processes(), 4)
	require.Contains(t, r.log.String(), "out of cheese")
}

// A call that was under way when its server was killed is not made again.
func TestServerThatIsKilled(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "server")
	done := make(chan *tool.Failure, 1)
	go func() { done <- r.Execute(t.Context(), tool.Call{Name: "srv.hang", Arguments: "{}"}).Failure }()
	require.Eventually(t, func() bool { return slices.Contains(lines(r.hangs), "began") }, within, 5*time.Millisecond)
	require.NoError(t, syscall.Kill(r.processes()[0], syscall.SIGKILL))
	f := <-done
	require.Equal(t, codes.OutcomeUnknown, f.Code)
	require.Contains(t, f.Message, "signal: killed")
	require.Equal(t, "{}", r.says(t, "echo"))
	require.Equal(t, []string{"began"}, lines(r.hangs))
}

func TestToolsOfAServerThatStaysAwayGo(t *testing.T) {
	t.Parallel()
	w := newWeb(t, "server")
	r := startWeb(t, w, func(o *Options) { o.Linger, o.Over.Timeout = 300*time.Millisecond, time.Second })
	require.True(t, r.has("echo"))
	w.CloseClientConnections()
	w.Close()
	changed := r.Changed()
	f := r.failure(t, "echo")
	require.Equal(t, tool.CodeUnreachable, f.Code)
	select {
	case <-changed:
	case <-time.After(within):
		t.Fatal("the tools are still there")
	}
	require.Empty(t, r.Definitions())
	f = r.failure(t, "echo")
	require.Equal(t, tool.CodeUnreachable, f.Code, "it may come back")
	require.True(t, f.NotSent)
	require.Equal(t, tool.CodeNotFound, r.Execute(t.Context(), tool.Call{Name: "other.echo"}).Failure.Code)
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// A call of a server's tool that comes before the server does is not lost.
func TestCallBeforeItsServer(t *testing.T) {
	t.Parallel()
	w := newWeb(t, "server")
	w.serve(http.HandlerFunc(func(res http.ResponseWriter, _ *http.Request) { res.WriteHeader(http.StatusInternalServerError) }))
	r := startWeb(t, w)
	require.False(t, r.has("echo"))
	done := make(chan toolset.Outcome, 1)
	go func() {
		done <- r.Execute(t.Context(), tool.Call{Run: "run", ID: "c1", Name: "srv.echo", Arguments: "{}"})
	}()
	w.renew("server")
	out := <-done
	require.Nil(t, out.Failure)
	require.Equal(t, "{}", out.Result)
	require.Equal(t, tool.CodeNotFound, r.failure(t, "nothing").Code, "its server is there without it")
}

// A call has its trace context in its _meta, and over HTTP in a header as well.
func TestTraceContext(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		trace := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		out := r.Execute(t.Context(), tool.Call{Run: "r", ID: "c", Name: "srv.trace", Arguments: "{}", TraceParent: trace})
		require.Nil(t, out.Failure)
		if strings.HasSuffix(t.Name(), "http") {
			require.Equal(t, trace+" "+trace, out.Result)
		} else {
			require.Equal(t, trace+" ", out.Result)
		}
	})
}

// A server that was restarted knows nothing of the sessions before.
func TestHTTPServerThatIsRestarted(t *testing.T) {
	t.Parallel()
	w := newWeb(t, "server")
	r := startWeb(t, w)
	r.says(t, "grow")
	require.Eventually(t, func() bool { return r.has("grown") }, within, 10*time.Millisecond)
	w.renew("server")
	w.CloseClientConnections()
	require.Eventually(t, func() bool {
		out := r.call(t, "echo", "{}")
		return out.Failure == nil && !r.has("grown")
	}, within, 50*time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.headers {
		require.Equal(t, "Bearer abc", h.Get("Authorization"))
	}
}

// A server that is not up yet is waited for as a command is that takes its time, but
// not for ever.
func TestHTTPServerThatComesLater(t *testing.T) {
	t.Parallel()
	unready := http.HandlerFunc(func(res http.ResponseWriter, _ *http.Request) { res.WriteHeader(http.StatusServiceUnavailable) })
	t.Run("in time", func(t *testing.T) {
		t.Parallel()
		w := newWeb(t, "server")
		var once sync.Once
		w.serve(http.HandlerFunc(func(res http.ResponseWriter, req *http.Request) {
			unready(res, req)
			once.Do(func() { w.renew("server") })
		}))
		r := startWeb(t, w) // waits until the tools are known
		require.True(t, r.has("echo"))
		require.Contains(t, r.log.String(), "503 Service Unavailable")
	})
	t.Run("too late", func(t *testing.T) {
		t.Parallel()
		w := newWeb(t, "server")
		w.serve(unready)
		r := startWeb(t, w, func(o *Options) { o.ConnectTimeout = 500 * time.Millisecond })
		require.Empty(t, r.Definitions(), "others serve without it")
		require.Contains(t, r.log.String(), "503 Service Unavailable")
		w.renew("server")
		require.Eventually(t, func() bool { return r.has("echo") }, within, 10*time.Millisecond)
		require.Equal(t, "{}", r.says(t, "echo"))
	})
	t.Run("nobody listens", func(t *testing.T) {
		t.Parallel()
		w := newWeb(t, "server")
		w.down(t)
		r := startUnsettled(t, Options{Name: "srv", URL: w.URL})
		require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "refused") }, within, 10*time.Millisecond)
		w.up(t)
		r.Ready(t.Context())
		require.True(t, r.has("echo"))
	})
}

// Calls of a server that has died wait for it until their time is up.
func TestHTTPServerThatDies(t *testing.T) {
	t.Parallel()
	w := newWeb(t, "server")
	r := startWeb(t, w, func(o *Options) { o.Over.Timeout = within })
	require.Equal(t, "{}", r.says(t, "echo"))
	w.down(t)
	r.server.endpoint.close() // what goes over a connection that is about to break may have been sent
	done := make(chan toolset.Outcome, 1)
	go func() { done <- r.call(t, "echo", "{}") }()
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "is away") }, within, 10*time.Millisecond)
	w.renew("server")
	w.up(t)
	require.Nil(t, (<-done).Failure)

	short := startWeb(t, w, func(o *Options) { o.Over.Timeout = 2 * time.Second })
	require.Equal(t, "{}", short.says(t, "echo"))
	w.down(t)
	short.server.endpoint.close()
	f := short.failure(t, "echo")
	require.Equal(t, tool.CodeUnreachable, f.Code)
	require.Contains(t, f.Message, `the MCP server "srv" is away`)
	require.Contains(t, f.Message, "refused")
	require.True(t, f.NotSent)
}

// Statuses say something about a request and nothing about the session.
func TestHTTPStatuses(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]struct {
		says    string
		passing bool
		notSent bool
		after   time.Duration
	}{
		http.StatusUnauthorized:        {"401 Unauthorized: check its headers", false, true, 0},
		http.StatusTooManyRequests:     {"429 Too Many Requests", true, true, 120 * time.Second},
		http.StatusServiceUnavailable:  {"503 Service Unavailable", true, false, 120 * time.Second},
		http.StatusInternalServerError: {"500 Internal Server Error", false, false, 120 * time.Second},
	} {
		w := newWeb(t, "server")
		r := startWeb(t, w)
		w.mu.Lock()
		works := w.handler
		w.mu.Unlock()
		w.serve(http.HandlerFunc(func(res http.ResponseWriter, req *http.Request) {
			if req.Method != http.MethodPost {
				works.ServeHTTP(res, req)
				return
			}
			if status != http.StatusUnauthorized {
				res.Header().Set("Retry-After", "120")
			}
			res.WriteHeader(status)
		}))
		f := r.failure(t, "echo")
		require.Equal(t, tool.CodeHTTPStatus, f.Code)
		require.Contains(t, f.Message, want.says)
		require.Equal(t, want.passing, f.Passing)
		require.Equal(t, want.notSent, f.NotSent)
		require.Equal(t, want.after, f.RetryAfter)
		w.serve(works)
		require.Equal(t, "{}", r.says(t, "echo"))
		require.NotContains(t, r.log.String(), "is away")
	}
}

func TestHTTPRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(other.Close)
	w := newWeb(t, "server")
	w.serve(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	r := startWeb(t, w)
	require.Empty(t, r.Definitions())
	require.Zero(t, asked.Load(), "the headers went elsewhere")
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "Temporary Redirect") }, within, 10*time.Millisecond)
}

// A server without a stream of its own, which does not even say so.
func TestHTTPServerThatHangsOnItsStream(t *testing.T) {
	t.Parallel()
	w := newWeb(t, "server")
	works := w.handler
	w.serve(http.HandlerFunc(func(res http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			<-req.Context().Done()
			return
		}
		works.ServeHTTP(res, req)
	}))
	r := startWeb(t, w)
	require.Eventually(t, func() bool { return r.has("echo") }, streamTimeout+within, 50*time.Millisecond)
	require.Equal(t, "{}", r.says(t, "echo"))
}

// Servers that do not come up hold nothing up, and say why.
func TestServersThatDoNotComeUp(t *testing.T) {
	t.Parallel()
	for mode, says := range map[string]string{
		"broken":   "no configuration found",
		"mute":     "context deadline exceeded",
		"endless":  "a message of more than 16777216 bytes",
		"requests": "requests faster than they are answered",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := startStdio(t, mode, func(o *Options) {
				if o.ConnectTimeout = within; mode == "mute" {
					o.ConnectTimeout = 2 * time.Second
				}
			})
			require.Empty(t, r.Definitions())
			require.Eventually(t, func() bool { return strings.Contains(r.log.String(), says) }, within, 10*time.Millisecond, r.log.String())
			r.stop()
			_, err := r.server.await(t.Context(), closed())
			var f *tool.Failure
			require.ErrorAs(t, err, &f)
			require.True(t, f.NotSent)
		})
	}
	t.Run("no such command", func(t *testing.T) {
		t.Parallel()
		r := start(t, Options{Name: "srv", Command: []string{"no-such-command-anywhere"}})
		require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "cannot be started") }, within, 10*time.Millisecond)
	})
}

func TestServerThatPrintsBesideTheProtocol(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "chatty")
	require.Equal(t, "{}", r.says(t, "echo"))
	require.Contains(t, r.log.String(), "Starting up...")
}

func TestServerThatKnowsOnlyLaterVersions(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "modern")
	require.Equal(t, "{}", r.says(t, "echo"))
	require.False(t, r.server.legacy)
	r.says(t, "grow")
	require.Eventually(t, func() bool { return r.has("grown") }, within, 10*time.Millisecond)
}

// What a server started goes with it, and so does a server that does not want to.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "server")
	require.Equal(t, "started", r.says(t, "breed"))
	pids := r.processes()
	require.Len(t, pids, 2)
	require.True(t, alive(pids[1]))
	r.failure(t, "die")
	require.Eventually(t, func() bool { return !alive(pids[1]) }, within, 10*time.Millisecond, "the grandchild is left")

	r = startStdio(t, "stubborn")
	require.Equal(t, "started", r.says(t, "breed"))
	began := time.Now()
	r.stop()
	require.Less(t, time.Since(began), 20*time.Second)
	for _, pid := range r.processes() {
		require.Eventually(t, func() bool { return !alive(pid) }, within, 10*time.Millisecond)
	}
}

// A server that stops answering is given up, but not while it is at work.
func TestServerThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real timeouts
	}
	t.Parallel()
	o, pids, hangs := stdio(t, "server")
	r := start(t, o, func(s *server) { s.probe = time.Second })
	r.pids, r.hangs = pids, hangs
	first := r.processes()[0]
	require.NoError(t, syscall.Kill(first, syscall.SIGSTOP))
	require.Eventually(t, func() bool { return len(r.processes()) == 2 }, within, 10*time.Millisecond)
	require.False(t, alive(first))
	require.Equal(t, "{}", r.says(t, "echo"))
	require.Contains(t, r.log.String(), "it does not answer any more")

	second := r.processes()[1]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan *tool.Failure, 1)
	go func() { done <- r.Execute(ctx, tool.Call{Name: "srv.hang", Arguments: "{}"}).Failure }()
	require.Eventually(t, func() bool { return slices.Contains(lines(r.hangs), "began") }, within, 5*time.Millisecond)
	require.NoError(t, syscall.Kill(second, syscall.SIGSTOP))
	select { // what does not happen has to be waited for
	case <-done:
		t.Fatal("a server at work was given up")
	case <-time.After(3 * time.Second):
	}
	require.NoError(t, syscall.Kill(second, syscall.SIGCONT))
	cancel()
	require.Equal(t, codes.Cancelled, (<-done).Code)
	require.Equal(t, "{}", r.says(t, "echo"))
	require.Len(t, r.processes(), 2)
}

// The same holds for a server that has only resources.
func TestServerWithoutToolsThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real timeouts
	}
	t.Parallel()
	o, pids, _ := stdio(t, "books")
	r := start(t, o, func(s *server) { s.probe = time.Second })
	r.pids = pids
	require.Equal(t, []string{"srv.get_prompt", "srv.list_prompts", "srv.list_resources", "srv.read_resource"}, r.names())
	require.NoError(t, syscall.Kill(r.processes()[0], syscall.SIGSTOP))
	require.Eventually(t, func() bool { return len(r.processes()) == 2 }, within, 10*time.Millisecond)
	require.Contains(t, r.says(t, "list_resources"), "book://1")
}

func TestStandardErrorIsBounded(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "server")
	require.Equal(t, "said", r.says(t, "mumble"))
	r.stop()
	log := r.log.String()
	require.Contains(t, log, "line 0 yyy")
	require.Contains(t, log, "writes more to stderr than is logged")
	require.Less(t, len(log), 500_000)
}

func TestEnvironmentIsNotInherited(t *testing.T) {
	t.Setenv("MCPTOOL_SECRET", "s3cret")
	o := Options{Env: []string{"A=b"}}
	require.Contains(t, o.environment(), "PATH="+os.Getenv("PATH"))
	require.Equal(t, "A=b", o.environment()[len(o.environment())-1])
	require.NotContains(t, strings.Join(o.environment(), " "), "s3cret")
}
