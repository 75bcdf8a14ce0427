package mcptool

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/tooltest"
	"github.com/moorebus/moorebus/pkg/tool"
)

// logBuffer is a log that tests look at.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// rig is a registry with one server.
type rig struct {
	*toolset.Registry
	log    *logBuffer
	server *server
	pids   string // file of the ids of the server's processes
	hangs  string // file of what hanging calls did
	stop   func()
}

// stdio are the options of a server that is this test binary.
func stdio(t *testing.T, mode string) (Options, string, string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	pids, hangs := filepath.Join(dir, "pids"), filepath.Join(dir, "hangs")
	return Options{
		Name: "srv", Command: []string{self}, TrustHints: true, Env: []string{modeEnv + "=" + asMode + mode, fastExit, "PIDFILE=" + pids, "HANGFILE=" + hangs},
	}, pids, hangs
}

// start runs a server in a registry.
func start(t *testing.T, o Options, change ...func(*server)) *rig {
	t.Helper()
	r := startUnsettled(t, o, change...)
	r.Ready(t.Context())
	return r
}

func startUnsettled(t *testing.T, o Options, change ...func(*server)) *rig {
	t.Helper()
	source, err := New(o)
	require.NoError(t, err)
	s := source.(*server)
	for _, c := range change {
		c(s)
	}
	r := &rig{log: &logBuffer{}, server: s}
	r.Registry, err = toolset.NewWith(toolset.Options{Sources: []tool.Source{s}})
	require.NoError(t, err)
	r.stop = sync.OnceFunc(r.Start(t.Context(), slog.New(slog.NewTextHandler(r.log, nil))))
	t.Cleanup(r.stop)
	return r
}

func startStdio(t *testing.T, mode string, change ...func(*Options)) *rig {
	t.Helper()
	o, pids, hangs := stdio(t, mode)
	for _, c := range change {
		c(&o)
	}
	r := start(t, o)
	r.pids, r.hangs = pids, hangs
	t.Cleanup(func() {
		r.stop()
		require.Eventually(t, func() bool { return !slices.ContainsFunc(r.processes(), alive) }, within, 10*time.Millisecond, "a process is left")
	})
	return r
}

func (r *rig) processes() []int {
	var pids []int
	for _, line := range lines(r.pids) {
		pid, _ := strconv.Atoi(line)
		pids = append(pids, pid)
	}
	return pids
}

func (r *rig) call(t *testing.T, name, arguments string) toolset.Outcome {
	t.Helper()
	return r.Execute(t.Context(), tool.Call{Run: "run", ID: "c1", Name: "srv." + name, Arguments: arguments})
}

func (r *rig) says(t *testing.T, name string) string {
	t.Helper()
	out := r.call(t, name, "{}")
	require.Nil(t, out.Failure)
	return out.Result
}

func (r *rig) failure(t *testing.T, name string) *tool.Failure {
	t.Helper()
	out := r.call(t, name, "{}")
	require.NotNil(t, out.Failure, out.Result)
	return out.Failure
}

func (r *rig) has(name string) bool { _, ok := r.Lookup("srv." + name); return ok }

// web is a server behind a URL.
type web struct {
	*httptest.Server
	mu      sync.Mutex
	headers []http.Header
	handler http.Handler
	servers []*mcp.Server
	// at is where it listens, again the server after up.
	at    net.Listener
	again *http.Server
}

func newWeb(t *testing.T, mode string) *web {
	t.Helper()
	w := &web{}
	w.renew(mode)
	w.Server = httptest.NewServer(w)
	w.at = w.Listener
	t.Cleanup(func() {
		w.CloseClientConnections()
		w.Close()
		for _, s := range w.servers { // sessions that no client has ended
			for session := range s.Sessions() {
				_ = session.Close()
			}
		}
	})
	return w
}

// down closes the listener at the server's address, up opens it again.
func (w *web) down(t *testing.T) {
	t.Helper()
	require.NoError(t, w.at.Close())
	w.CloseClientConnections()
	if w.again != nil {
		_ = w.again.Close()
	}
}

func (w *web) up(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", w.at.Addr().String())
	require.NoError(t, err)
	w.at = listener
	server := &http.Server{Handler: w}
	go func() { _ = server.Serve(listener) }()
	w.again = server
	t.Cleanup(func() { _ = server.Close() })
}

// renew puts a server in place that knows nothing of the sessions before.
func (w *web) renew(mode string) {
	s := newServer(mode)
	w.servers = append(w.servers, s)
	w.serve(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
}

func (w *web) serve(h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handler = h
}

func (w *web) ServeHTTP(res http.ResponseWriter, req *http.Request) {
	w.mu.Lock()
	h := w.handler
	w.headers = append(w.headers, req.Header.Clone())
	w.mu.Unlock()
	h.ServeHTTP(res, req)
}

func startWeb(t *testing.T, w *web, change ...func(*Options)) *rig {
	t.Helper()
	o := Options{Name: "srv", TrustHints: true, URL: w.URL, Headers: map[string]string{"Authorization": "Bearer abc"}}
	for _, c := range change {
		c(&o)
	}
	return start(t, o)
}

// both runs a test against both transports.
func both(t *testing.T, test func(t *testing.T, r *rig), change ...func(*Options)) {
	t.Run("stdio", func(t *testing.T) { t.Parallel(); test(t, startStdio(t, "server", change...)) })
	t.Run("http", func(t *testing.T) { t.Parallel(); test(t, startWeb(t, newWeb(t, "server"), change...)) })
}

func suite(startOne func(t *testing.T) *rig) tooltest.Suite {
	with := func(t *testing.T, name string) tooltest.Case {
		r := startOne(t)
		made, ok := r.Lookup("srv." + name)
		require.True(t, ok)
		return tooltest.Case{Tool: made, Arguments: `{"n":12345678901234567890,"f":1.50}`}
	}
	return tooltest.Suite{
		Success: func(t *testing.T) tooltest.Case {
			c := with(t, "echo")
			c.Want = c.Arguments
			return c
		},
		Failure: func(t *testing.T) tooltest.Case {
			c := with(t, "fail")
			c.Code, c.Want = tool.CodeFailed, "no such city"
			return c
		},
		ShowsKey: func(t *testing.T) tooltest.Case { return with(t, "key") },
		Hangs: func(t *testing.T) tooltest.Hang {
			r := startOne(t)
			made, _ := r.Lookup("srv.hang")
			return tooltest.Hang{
				Case: tooltest.Case{Tool: made, Arguments: "{}"},
				Started: func(ctx context.Context) error {
					tick := time.NewTicker(5 * time.Millisecond)
					defer tick.Stop()
					for !slices.Contains(lines(r.hangs), "began") {
						select {
						case <-tick.C:
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					return nil
				},
				Quiet: func() bool { l := lines(r.hangs); return slices.Contains(l, "stopped") || !slices.Contains(l, "began") },
			}
		},
	}
}

func TestSuiteStdio(t *testing.T) {
	t.Parallel()
	suite(func(t *testing.T) *rig { return startStdio(t, "server") }).Run(t)
}

// The hanging tool of a server in this process writes to one file, so this is not
// parallel.
func TestSuiteHTTP(t *testing.T) {
	hangs := filepath.Join(t.TempDir(), "hangs")
	t.Setenv("HANGFILE", hangs)
	suite(func(t *testing.T) *rig {
		require.NoError(t, os.WriteFile(hangs, nil, 0o600))
		r := startWeb(t, newWeb(t, "server"))
		r.hangs = hangs
		return r
	}).Run(t)
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	type class struct {
		effect tool.Effect
		risk   tool.Risk
	}
	most := class{tool.Once, tool.High}
	for trusted, want := range map[bool]map[string]class{
		true:  {"srv.echo": {tool.Idempotent, tool.Low}, "srv.key": {tool.Idempotent, tool.Medium}, "srv.fail": most},
		false: {"srv.echo": most, "srv.key": most, "srv.fail": most},
	} {
		both(t, func(t *testing.T, r *rig) {
			byName := map[string]tool.Definition{}
			for _, d := range r.Definitions() {
				byName[d.Name] = d
			}
			for name, want := range want {
				require.Equal(t, want.effect, byName[name].Effect, name)
				require.Equal(t, want.risk, byName[name].Risk, name)
				require.Equal(t, "does "+strings.TrimPrefix(name, "srv."), byName[name].Description)
				require.JSONEq(t, `{"type":"object"}`, string(byName[name].Schema))
				require.Equal(t, "default", byName[name].Pool)
			}
		}, func(o *Options) { o.TrustHints = trusted })
	}
}

func TestClosedReadOnlyIsPure(t *testing.T) {
	t.Parallel()
	effect, risk := classes(&mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: ptr(false)})
	require.Equal(t, tool.Pure, effect)
	require.Equal(t, tool.Low, risk)
}

func TestTheToolFileHasTheLastWord(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		defs := r.Definitions()
		require.Len(t, defs, 1, "only what is wanted")
		d := defs[0]
		require.Equal(t, "srv.fail", d.Name)
		require.Equal(t, tool.Pure, d.Effect)
		require.Equal(t, tool.Critical, d.Risk)
		require.Equal(t, "web", d.Pool)
		require.Equal(t, 3*time.Second, d.Timeout)
		require.Equal(t, []string{"web"}, r.Pools())
		require.Contains(t, r.log.String(), "tool=nothing")
	}, func(o *Options) {
		o.Over = tool.Definition{Effect: tool.Pure, Risk: tool.Critical, Pool: "web", Timeout: 3 * time.Second}
		o.Tools = []string{"fail", "nothing"}
	})
}

// shelf keeps data in memory.
type shelf struct{ kept, types []string }

func (s *shelf) Keep(_ context.Context, mediaType string, data []byte) (string, error) {
	s.kept, s.types = append(s.kept, string(data)), append(s.types, mediaType)
	return fmt.Sprintf("bucket/%d", len(s.kept)), nil
}

func TestResults(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		require.Equal(t, `{"less":"<","sum":3}`, r.says(t, "structured"))
		require.Equal(t, "the tool failed without saying why", r.failure(t, "silent-fail").Message)
		f := r.failure(t, "protocol-error")
		require.Equal(t, tool.CodeFailed, f.Code)
		require.Contains(t, f.Message, "the database is locked")
		out := r.call(t, "echo", `["no object"]`)
		require.Equal(t, tool.CodeInvalidArguments, out.Failure.Code)
		require.Equal(t, "{}", r.call(t, "echo", "").Result)

		const mixed = `a chart:
[image image/png, 9 bytes, %s]
[audio audio/wav, 4 bytes, %s]
[resource file:///a.csv, a.csv, text/csv, 12 bytes: the data]
[resource file:///b.txt]
inner text
[resource file:///c.bin application/x, 2 bytes, %s]`
		require.Equal(t, fmt.Sprintf(mixed, "not kept", "not kept", "not kept"), r.says(t, "mixed"))
		call := tool.Call{Run: "run", ID: "c1", Name: "srv.mixed", Arguments: "{}"}
		keeper := &shelf{}
		out = r.Execute(callctx.WithStore(t.Context(), keeper.Keep), call)
		require.Equal(t, fmt.Sprintf(mixed, "kept as bucket/1", "kept as bucket/2", "kept as bucket/3"), out.Result)
		require.Equal(t, []string{"\x89PNG data", "RIFF", "\x00\x01"}, keeper.kept)
		require.Equal(t, []string{"image/png", "audio/wav", "application/x"}, keeper.types)
		out = r.Execute(callctx.WithStore(t.Context(), func(context.Context, string, []byte) (string, error) { return "", fmt.Errorf("disk full") }), call)
		require.Contains(t, out.Result, "[image image/png, 9 bytes, could not be kept: disk full]")
	})
}

func TestServersMayAskNothing(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		require.Contains(t, r.says(t, "ask"), "sampling refused: true; roots: 0")
	})
}

func TestListChanges(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		require.False(t, r.has("grown"))
		require.Equal(t, tool.CodeNotFound, r.failure(t, "grown").Code)
		changed := r.Changed()
		r.says(t, "grow")
		select {
		case <-changed:
		case <-time.After(within):
			t.Fatal("the change was not seen")
		}
		require.Equal(t, "I am new", r.says(t, "grown"))
		r.says(t, "shrink")
		require.Eventually(t, func() bool { return !r.has("grown") }, within, 10*time.Millisecond)
		require.Equal(t, tool.CodeNotFound, r.failure(t, "grown").Code)
	})
}

func TestManyToolsAreBounded(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		r.says(t, "swell")
		require.Eventually(t, func() bool { return len(r.Definitions()) > 500 }, within, 10*time.Millisecond)
		require.Eventually(t, func() bool { return len(r.Definitions()) == maxTools }, within, 10*time.Millisecond)
	})
}

func TestNotificationFlood(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		out := r.call(t, "flood", "{}")
		require.Nil(t, out.Failure)
		require.Equal(t, "the end of the flood", out.Result)
		require.Equal(t, `{}`, r.says(t, "echo"))
	}, func(o *Options) { o.Over.Timeout = time.Minute })
}

func TestGiantResult(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, r *rig) {
		f := r.failure(t, "giant")
		require.Equal(t, codes.OutcomeUnknown, f.Code)
		require.Equal(t, `{}`, r.says(t, "echo"), "it is there again")
	}, func(o *Options) { o.MaxMessage, o.Over.Timeout = 1<<20, time.Minute })
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		"no letter":                  {Name: "…", Command: []string{"x"}},
		"either a command or a url":  {Name: "a"},
		"give either":                {Name: "a", Command: []string{"x"}, URL: "http://h"},
		"absolute http":              {Name: "a", URL: "ftp://h"},
		"command: is empty":          {Name: "a", Command: []string{""}},
		"NUL":                        {Name: "a", Command: []string{"a\x00"}},
		`effect "twice"`:             {Name: "a", Command: []string{"x"}, Over: tool.Definition{Effect: "twice"}},
		"timeout -1s must not be ne": {Name: "a", Command: []string{"x"}, Over: tool.Definition{Timeout: -time.Second}},
	} {
		_, err := New(o)
		require.ErrorContains(t, err, want)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "fs.read_file", toolName("fs", "read_file"))
	require.Equal(t, "my_server.do_it_", toolName("my server", "do it!"))
	long := toolName("s", strings.Repeat("a", 100))
	require.Len(t, long, maxName)
	require.NotEqual(t, long, toolName("s", strings.Repeat("a", 101)))
	require.NoError(t, tool.Definition{Name: long}.Validate())
	for size := 1; size < 80; size++ {
		source, err := New(Options{Name: strings.Repeat("s", size), Command: []string{"x"}})
		require.NoError(t, err)
		s := source.(*server)
		for _, name := range []string{"t", "some_tool", strings.Repeat("t", 70)} {
			require.True(t, s.Claims(toolName(s.opts.Name, name)), "%d %s", size, name)
		}
		require.False(t, s.Claims("other.t"))
		require.Equal(t, size < maxName-markSize, s.Claims(s.opts.Name+".") && !s.Claims(s.opts.Name+"x"))
	}
}
