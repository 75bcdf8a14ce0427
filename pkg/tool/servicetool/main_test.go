package servicetool_test

import (
	"bytes"
	"context"
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/servicetool"
)

// serviceURL is the variable that makes this test binary a service, see [serve].
const serviceURL = "SERVICETOOL_TEST_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(serviceURL); url != "" {
		serve(url)
		return
	}
	// Most of these tests wait for another process or a clock.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// serve is a service in a process of its own: its tool answers with the process's id, and
// hang never answers.
func serve(url string) {
	conn, err := nats.Connect(url)
	if err != nil {
		panic(err)
	}
	s := mustService(conn, "workers", "1.0.0")
	endpoint(s, "who", map[string]string{"moorebus.tool": "who", "moorebus.effect": "idempotent", "moorebus.timeout": "3s", "moorebus.retries": "5"},
		func(r micro.Request) { _ = r.Respond([]byte(strings.Repeat("x", 10))) })
	endpoint(s, "hang", map[string]string{"moorebus.tool": "hang", "moorebus.timeout": "2s"}, func(r micro.Request) {
		_ = conn.Publish("hanging", nil)
	})
	_ = conn.Flush()
	_, _ = os.Stdout.WriteString("up\n")
	select {}
}

func mustService(conn *nats.Conn, name, version string) micro.Service {
	s, err := micro.AddService(conn, micro.Config{Name: name, Version: version})
	if err != nil {
		panic(err)
	}
	return s
}

func endpoint(s micro.Service, name string, metadata map[string]string, handle func(micro.Request), more ...micro.EndpointOpt) {
	if handle == nil {
		handle = func(r micro.Request) { _ = r.Respond(r.Data()) }
	}
	more = append(more, micro.WithEndpointMetadata(metadata))
	if err := s.AddEndpoint(name, micro.HandlerFunc(handle), more...); err != nil {
		panic(err)
	}
}

// tools is metadata of a tool of that name, with more keys and values.
func named(name string, more ...string) map[string]string {
	m := map[string]string{"moorebus.tool": name}
	for i := 0; i < len(more); i += 2 {
		m["moorebus."+more[i]] = more[i+1]
	}
	return m
}

const patience = time.Minute

// bus is a server, and a connection to it.
type bus struct {
	t   *testing.T
	url string
	*nats.Conn
}

func newBus(t *testing.T, more ...func(*server.Options)) *bus {
	t.Helper()
	o := &server.Options{Port: -1, Host: "127.0.0.1", NoSigs: true, NoLog: true}
	for _, set := range more {
		set(o)
	}
	srv, err := server.NewServer(o)
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	require.True(t, srv.ReadyForConnections(patience))
	b := &bus{t: t, url: srv.ClientURL()}
	b.Conn = b.connect()
	return b
}

func (b *bus) connect() *nats.Conn {
	b.t.Helper()
	conn, err := nats.Connect(b.url)
	require.NoError(b.t, err)
	b.t.Cleanup(conn.Close)
	return conn
}

// service starts a service on a connection of its own. It hears the next question.
func (b *bus) service(name, version string) micro.Service {
	b.t.Helper()
	conn := b.connect()
	s := mustService(conn, name, version)
	require.NoError(b.t, conn.Flush())
	return s
}

// process starts the service of [serve] and returns how to kill it.
func (b *bus) process() *exec.Cmd {
	b.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serviceURL+"="+b.url)
	out, err := cmd.StdoutPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, cmd.Start())
	b.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, err = out.Read(make([]byte, 3))
	require.NoError(b.t, err)
	return cmd
}

// rig is a registry that the source of services feeds.
type rig struct {
	t *testing.T
	*toolset.Registry
	logs *journal
}

func (b *bus) rig(o servicetool.Options) *rig {
	b.t.Helper()
	o.Conn = b.Conn
	source, err := servicetool.New(o)
	require.NoError(b.t, err)
	r := &rig{t: b.t, logs: &journal{}}
	r.Registry, err = toolset.NewWith(toolset.Options{Sources: []tool.Source{source}})
	require.NoError(b.t, err)
	b.t.Cleanup(r.Start(b.t.Context(), slog.New(slog.NewTextHandler(r.logs, nil))))
	require.True(b.t, r.Ready(b.t.Context()))
	return r
}

// await waits until the tool is there, or is what is asked, and returns its definition.
func (r *rig) await(name string, is func(tool.Definition) bool) tool.Definition {
	r.t.Helper()
	var def tool.Definition
	r.until(func() bool {
		found, ok := r.Lookup(name)
		if ok {
			def = found.Definition()
		}
		return ok && (is == nil || is(def))
	}, "the tool %s is what was asked", name)
	return def
}

func (r *rig) awaitGone(name string) {
	r.t.Helper()
	r.until(func() bool { _, ok := r.Lookup(name); return !ok }, "the tool %s is gone", name)
}

// until waits for a change of the tools that makes it true.
func (r *rig) until(is func() bool, format string, args ...any) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for {
		changed := r.Changed()
		if is() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			require.Failf(r.t, "it took too long", format, args...)
		}
	}
}

func (r *rig) call(name, arguments string) toolset.Outcome {
	return r.Execute(r.t.Context(), tool.Call{Run: "run-1", ID: "call_1", Name: name, Arguments: arguments, TraceParent: "00-trace"})
}

func (r *rig) fails(code, name string) *tool.Failure {
	r.t.Helper()
	out := r.call(name, "{}")
	require.NotNil(r.t, out.Failure)
	require.Equal(r.t, code, out.Failure.Code, out.Failure.Message)
	return out.Failure
}

// journal keeps what is logged.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(line)
}

func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), text)
}
