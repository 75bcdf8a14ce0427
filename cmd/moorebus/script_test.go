package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose/toolfile"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
)

// leaks runs the tests and then looks for goroutines that they left.
type leaks struct{ *testing.M }

func (l leaks) Run() int {
	config, err := os.MkdirTemp("", "moorebus-config-") // where the operator's token is
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(config) }()
	if err := os.Setenv("XDG_CONFIG_HOME", config); err != nil {
		panic(err)
	}
	// Most of these tests wait for processes.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	code := l.M.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(leaks{m}, map[string]func(){"moorebus": main})
}

var quiet = slog.New(slog.DiscardHandler)

// TestScripts runs testdata/script. Each script has a home of its own. The
// commands beside testscript's own are those of the functions below.
func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts hundreds of processes
	}
	t.Parallel()
	runScripts(t, filepath.Join("testdata", "script"))
}

// The scripts of commands on runs go the same way through a gateway.
func TestScriptsOverHTTP(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts hundreds of processes
	}
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"bus", "client", "dead", "decide", "find", "fork", "schedules", "storage", "webhooks"} {
		text, err := os.ReadFile(filepath.Join("testdata", "script", name+".txtar"))
		require.NoError(t, err)
		onBus := "env NATS_URL=$BUS\n"
		require.Contains(t, string(text), onBus)
		overHTTP := strings.Replace(string(text), onBus, "env MOOREBUS_URL=$GATEWAY\nenv MOOREBUS_TOKEN="+testToken+"\n", 1)
		overHTTP = strings.ReplaceAll(overHTTP, "moorebus doctor", "moorebus doctor --nats $BUS")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "http-"+name+".txtar"), []byte(overHTTP), 0o600))
	}
	runScripts(t, dir)
}

func runScripts(t *testing.T, dir string) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_DATA_HOME", filepath.Join(env.WorkDir, "share"))
			env.Setenv("USER", "tester")
			env.Setenv("GORACE", noSleep)
			env.Values[busKey{}] = &slot{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"bus": busCommand, "nats-server": serverCommand, "begin": beginCommand, "await": awaitCommand,
			"models": modelsCommand, "model": modelCommand, "code": codeCommand, "setid": setIDCommand,
			"tear": tearCommand, "forge": forgeCommand,
		},
	})
}

// noSleep makes processes with the race detector end without waiting a second
// for more races.
const noSleep = "atexit_sleep_ms=0"

// busKey is where a script keeps the bus that it started.
type busKey struct{}

type slot struct{ bus *bus }

// bus is a server on which every role works, in this process.
type bus struct {
	url  string
	host *host.Host
	bus  *natsbus.Bus
	// gateway is the URL of its HTTP API, whose token is testToken.
	gateway string
}

const testToken = "secret"

// startBus starts a server and the roles, and returns how they are stopped.
func startBus(dir string) (b *bus, stop func(), err error) {
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: dir, Listen: "127.0.0.1:0", Logger: quiet})
	if err != nil {
		return nil, nil, err
	}
	conn, err := server.Connect()
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	if err := natsbus.Init(ctx, conn, natsbus.InitOptions{Shards: 2}); err != nil {
		return nil, nil, err
	}
	opened, err := natsbus.Open(ctx, conn, natsbus.Options{Logger: quiet})
	if err != nil {
		return nil, nil, err
	}
	tools, err := toolfile.Builtins()
	if err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	host, err := host.New(host.Options{
		Listener: listener, Token: testToken, Bus: opened, Providers: map[string]llm.Caller{providers.Scripted: scripted.New()}, Tools: tools, Logger: quiet,
		Features: all.Features().With("webhooks", webhooks.Made(webhooks.Settings{Allowed: webhooks.Loopback()})),
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- host.Run(ctx) }()
	return &bus{server.ClientURL(), host, opened, "http://" + listener.Addr().String()}, func() {
		cancel()
		<-ended
		conn.Close()
		server.Shutdown()
	}, nil
}

// start starts a run and waits until it is in a state, for a minute at most.
func (b *bus) start(a events.Agent, task string, state events.State) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	// Until the roles have announced what they offer, the agent is refused.
	started, err := b.host.Gateway().Start(ctx, "", control.StartRequest{Agent: &a, Task: task})
	for ; err != nil; started, err = b.host.Gateway().Start(ctx, "", control.StartRequest{Agent: &a, Task: task}) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", err
		}
	}
	return started.RunID, b.await(started.RunID, func(s runs.RunState) bool { return s.State == state })
}

// await waits until a run is as it should be, for a minute at most.
func (b *bus) await(id string, done func(runs.RunState) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := b.host.Gateway().State(ctx, "", id, 0)
		if err != nil {
			return err
		}
		if done(now) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the run stays in state %s with %d events", now.State, now.N)
		}
	}
}

// busCommand is `bus`: it starts a bus and sets BUS, and GATEWAY to the URL of its HTTP API.
func busCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: bus")
	}
	dir := ts.MkAbs("bus-data")
	b, stop, err := startBus(dir)
	ts.Check(err)
	ts.Defer(stop)
	ts.Setenv("BUS", b.url)
	ts.Setenv("GATEWAY", b.gateway)
	ts.Value(busKey{}).(*slot).bus = b
}

// serverCommand is `nats-server`: it starts a bare server and sets BUS.
func serverCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: nats-server")
	}
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: ts.MkAbs("bus-data"), Listen: "127.0.0.1:0", Logger: quiet})
	ts.Check(err)
	ts.Defer(server.Shutdown)
	ts.Setenv("BUS", server.ClientURL())
}

// beginCommand is `begin VAR FILE STATE`: it starts the file's agent on its
// task, waits until the run is in the state, and sets VAR to its id.
func beginCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: begin VAR FILE STATE")
	}
	docs, err := agentfile.ReadFile(ts.MkAbs(args[1]), agentfile.Options{})
	ts.Check(err)
	id, err := ts.Value(busKey{}).(*slot).bus.start(*docs.Agent, docs.Agent.Task, events.State(args[2]))
	ts.Check(err)
	ts.Setenv(args[0], id)
}

// awaitCommand is `await RUN N`: it waits until the run has N events.
func awaitCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await RUN N")
	}
	want, err := strconv.ParseUint(args[1], 10, 64)
	ts.Check(err)
	ts.Check(ts.Value(busKey{}).(*slot).bus.await(args[0], func(s runs.RunState) bool { return s.N >= want }))
}

// codeCommand is `code N COMMAND ARG…`: the command must exit with that code.
func codeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND ARG…")
	}
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		ts.Fatalf("it did not fail: %v", err)
	}
	if got := strconv.Itoa(exit.ExitCode()); got != args[0] {
		ts.Fatalf("exit code %s, not %s", got, args[0])
	}
}

// setIDCommand is `setid VAR FILE`: it sets VAR to the id of the first run in a
// list of runs.
func setIDCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: setid VAR FILE")
	}
	var page list.Page
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &page))
	ts.Setenv(args[0], page.Runs[0].RunID)
}

// tearCommand is `tear FILE`: it cuts the last line of a file in the middle.
func tearCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tear FILE")
	}
	text := ts.ReadFile(args[0])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text[:len(text)-20]), 0o600))
}

// forgeCommand is `forge FILE`: it changes what a tool answered.
func forgeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: forge FILE")
	}
	text := ts.ReadFile(args[0])
	forged := strings.Replace(text, `"observation":"`, `"observation":"4`, 1)
	if forged == text {
		ts.Fatalf("there is no observation in %s", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(forged), 0o600))
}

// modelsCommand is `models`: it starts a model provider that takes the key
// `good-key`, and sets MODELS.
func modelsCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: models")
	}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" || r.Header.Get("Authorization") != "Bearer good-key" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"data": []}`)
	}))
	ts.Defer(provider.Close)
	ts.Setenv("MODELS", provider.URL+"/v1")
}

// testBus is startBus for a test.
func testBus(t *testing.T) *bus {
	t.Helper()
	b, stop, err := startBus(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(stop)
	return b
}

var update = flag.Bool("update", false, "write the table of commands of docs/reference/cli.md anew")

// TestReferenceNamesEveryCommand compares docs/reference/cli.md with the commands.
func TestReferenceNamesEveryCommand(t *testing.T) {
	const file, head = "../../docs/reference/cli.md", "| command | |\n|---|---|\n"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, after, found := strings.Cut(string(text), head)
	require.True(t, found)
	_, after, found = strings.Cut(after, "\n\n")
	require.True(t, found)
	root := command()
	cli.AddVersion(root)
	var rows strings.Builder
	for _, c := range root.Commands() {
		if !c.Hidden && !slices.Contains([]string{"help", "completion"}, c.Name()) {
			rows.WriteString("| `moorebus " + c.Name() + "` | " + c.Short + " |\n")
		}
	}
	want := before + head + rows.String() + "\n" + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "run: go test ./cmd/moorebus -run TestReferenceNamesEveryCommand -update")
}

// TestClientToolsHowTo: the agent of docs/how-to/client-tools.md is the one that the script plays.
func TestClientToolsHowTo(t *testing.T) {
	text, err := os.ReadFile("../../docs/how-to/client-tools.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	agent, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	script, err := os.ReadFile("testdata/script/client.txtar")
	require.NoError(t, err)
	require.Contains(t, string(script), "-- painter.yaml --\n"+agent)
}

// modelCommand is `model`: it starts a model that answers `It is 42.` for 1,000
// tokens of input and 500 of output, and has the environment name it.
func modelCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: model")
	}
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"id":"1","object":"chat.completion.chunk","model":"house-1-2026-01-31",`+
			`"choices":[{"index":0,"delta":{"role":"assistant","content":"It is 42."},"finish_reason":"stop"}]}

data: {"id":"1","object":"chat.completion.chunk","model":"house-1-2026-01-31","choices":[],`+
			`"usage":{"prompt_tokens":1000,"completion_tokens":500,"total_tokens":1500}}

data: [DONE]

`)
	}))
	ts.Defer(model.Close)
	ts.Setenv("OPENAI_BASE_URL", model.URL+"/v1")
	ts.Setenv("OPENAI_MODEL", "house-1")
}
