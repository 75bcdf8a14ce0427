//go:build unix

package ollama

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/pkg/events"
)

// exchange is one request and what came back, as they went over the wire.
type exchange struct {
	path, request string
	status        int
	response      bytes.Buffer
}

// wire is a proxy before an Ollama that keeps what it passes on.
type wire struct {
	*httptest.Server
	mu  sync.Mutex
	all []*exchange
	// If began is set, it is closed when the first piece of the first response is there, and
	// no more is passed on until goOn is closed.
	began, goOn chan struct{}
	first       sync.Once
}

type exchangeKey struct{}

func newWire(t *testing.T, address string) *wire {
	t.Helper()
	w := &wire{}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: address}) },
		ModifyResponse: func(res *http.Response) error {
			x := res.Request.Context().Value(exchangeKey{}).(*exchange)
			w.mu.Lock()
			x.status = res.StatusCode
			w.mu.Unlock()
			res.Body = &copied{ReadCloser: res.Body, wire: w, to: x}
			return nil
		},
		// The client of a server that is gone sees a connection that ends.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a body that broke off is refused by the server
		x := &exchange{path: r.URL.Path, request: string(body)}
		w.mu.Lock()
		w.all = append(w.all, x)
		w.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
	}))
	t.Cleanup(w.Close)
	return w
}

// copied is a response's body that is kept while it is read.
type copied struct {
	io.ReadCloser
	wire *wire
	to   *exchange
}

func (c *copied) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.wire.first.Do(func() {
		if c.wire.began != nil {
			close(c.wire.began)
			<-c.wire.goOn
		}
	})
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	c.to.response.Write(p[:n])
	return n, err
}

// exchanges returns what went over the wire to the API.
func (w *wire) exchanges(api string) []*exchange {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*exchange
	for _, x := range w.all {
		if strings.HasSuffix(x.path, api) {
			all = append(all, x)
		}
	}
	return all
}

// String returns everything, for a test that failed.
func (w *wire) String() string {
	var b strings.Builder
	for i, x := range w.exchanges("") {
		fmt.Fprintf(&b, "--- %d: POST %s\n%s\n--- %d\n%s\n", i+1, x.path, x.request, x.status, x.response.String())
	}
	return b.String()
}

// An API of Ollama, with the kind of provider that speaks it and where replies come from.
type api struct{ kind, base, path string }

var apis = []api{
	{"openai", "/v1", "/chat/completions"},
	{"responses", "/v1", "/responses"},
	{"anthropic", "", "/messages"},
}

// task is one run of the command.
type task struct {
	// model is moore if it is empty.
	model string
	// llm has further keys of the agent's `llm`, agent further keys of the agent.
	llm, agent string
	task       string
	// unknown keeps it from the provider file that the server is Ollama.
	unknown bool
}

// run is a run of the command that has ended.
type run struct {
	code           int
	stdout, stderr string
	// events is the run's log.
	events []*events.Event
	// asked are the requests for a reply with their responses.
	asked []*exchange
}

// setup is a run of the command that can be started.
type setup struct {
	t    *testing.T
	api  api
	wire *wire
	dir  string
	args []string
	// env is added to the environment.
	env []string
}

var build = sync.OnceValues(func() (string, error) {
	dir, err := commandtest.Build("cmd", "./cmd/moorebus")
	return filepath.Join(dir, "moorebus"), err
})

// prepare writes the files of a run.
func (s *server) prepare(t *testing.T, a api, c task) *setup {
	t.Helper()
	r := &setup{t: t, api: a, wire: newWire(t, s.address), dir: t.TempDir()}
	agent := fmt.Sprintf("name: assistant\nsystem_prompt: You are brief.\nllm: {provider: local%s}\n%s\n", c.llm, c.agent)
	c.model = cmp.Or(c.model, "moore")
	local := fmt.Sprintf("local: {kind: %s, base_url: %s%s, model: %s, like: ollama}\n", a.kind, r.wire.URL, a.base, c.model)
	if c.unknown { // the address has not the port that Ollama usually has
		local = strings.Replace(local, ", like: ollama", "", 1)
	}
	require.NoError(t, os.WriteFile(r.file("agent.yaml"), []byte(agent), 0o600))
	require.NoError(t, os.WriteFile(r.file("providers.yaml"), []byte(local), 0o600))
	r.args = []string{"run", "--agent", r.file("agent.yaml"), "--providers", r.file("providers.yaml"), c.task}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s\n%s", agent, r.wire)
		}
	})
	return r
}

func (r *setup) file(name string) string { return filepath.Join(r.dir, name) }

// command is moorebus with a home and a data directory of its own.
func (r *setup) command(args ...string) *exec.Cmd {
	r.t.Helper()
	path, err := build()
	require.NoError(r.t, err)
	cmd := exec.Command(path, append(args, "--data", r.file("data"))...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "TMPDIR=" + os.TempDir()}, r.env...)
	return cmd
}

// run runs the command to its end, two minutes at most.
func (r *setup) run(more ...string) *run {
	r.t.Helper()
	cmd := r.command(append(r.args, more...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	ended, err := commandtest.Start(cmd)
	require.NoError(r.t, err)
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		_ = cmd.Process.Kill()
		<-ended
		r.t.Fatalf("the run does not end:\n%s", &stderr)
	}
	return r.finished(cmd.ProcessState.ExitCode(), stdout.String(), stderr.String())
}

// finished reads the log of a run that has ended.
func (r *setup) finished(code int, stdout, stderr string) *run {
	r.t.Helper()
	out, err := r.command("export", "--all").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		r.t.Fatalf("export: %s", exit.Stderr)
	}
	require.NoError(r.t, err)
	done := &run{code: code, stdout: stdout, stderr: stderr, asked: r.wire.exchanges(r.api.path)}
	for line := range strings.Lines(string(out)) {
		var record struct{ Body json.RawMessage }
		require.NoError(r.t, json.Unmarshal([]byte(line), &record))
		e, err := new(events.Codec).Decode(record.Body)
		require.NoError(r.t, err)
		done.events = append(done.events, e)
	}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("exit %d\n%s\n%s", code, stderr, out)
		}
	})
	return done
}

// types returns the types of the run's events.
func (r *run) types() string {
	var all []string
	for _, e := range r.events {
		all = append(all, string(e.Type()))
	}
	return strings.Join(all, " ")
}

// of returns the payloads of one type, oldest first.
func of[P events.Payload](r *run) []P {
	var all []P
	for _, e := range r.events {
		if p, ok := e.Data.(P); ok {
			all = append(all, p)
		}
	}
	return all
}
