package backup_test

import (
	"bytes"
	"context"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Most of these tests wait for a server.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const patience = time.Minute

var quiet = slog.New(slog.DiscardHandler)

// world is a server with a log, and roles that work on it when they are told to.
type world struct {
	t     *testing.T
	conn  *nats.Conn
	bus   *natsbus.Bus
	host  *host.Host
	store *runlog.Store
	// paid counts the calls of pay.
	paid atomic.Int32
}

func newWorld(t *testing.T, shards int) *world {
	t.Helper()
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return openWorld(t, conn, natsbus.InitOptions{Shards: shards, Memory: true, AckWait: time.Second})
}

func openWorld(t *testing.T, conn *nats.Conn, o natsbus.InitOptions) *world {
	t.Helper()
	require.NoError(t, natsbus.Init(t.Context(), conn, o))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: patience})
	require.NoError(t, err)
	w := &world{t: t, conn: conn, bus: bus, store: runlog.New(runlog.Options{Log: bus})}
	pay, err := typed.New(tool.Definition{Name: "pay", Description: "pay", Effect: tool.Once},
		func(context.Context, struct{}) (string, error) { w.paid.Add(1); return "paid", nil })
	require.NoError(t, err)
	repeat, err := typed.New(tool.Definition{Name: "repeat", Description: "repeat", Effect: tool.Pure},
		func(context.Context, struct{}) (string, error) { return strings.Repeat("large ", 20_000), nil })
	require.NoError(t, err)
	registry, err := toolset.New(pay, repeat)
	require.NoError(t, err)
	w.host, err = host.New(host.Options{
		Bus: bus, Providers: map[string]llm.Caller{"scripted": scripted.New()}, Tools: registry,
		Results: actor.Results{MaxBytes: 20_480}, Snapshots: bus, Tombstones: bus, Logger: quiet,
		Features: all.Features().With("webhooks", webhooks.Made(webhooks.Settings{Allowed: webhooks.Loopback(), Retries: []time.Duration{time.Hour}})),
	})
	require.NoError(t, err)
	require.NoError(t, w.host.Announce(t.Context()))
	return w
}

// work has all roles work until the test ends.
func (w *world) work() *world {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.host.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, <-done)
	})
	return w
}

// agent says or calls what its script has.
func agent(script string) *events.Agent {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.LLM.Script, a.Tools = "a", "scripted", []byte(script), []string{"pay", "repeat"}
	a.Config.ReflectEveryNSteps = 0
	return &a
}

const (
	callPay    = `{"calls":[{"name":"pay","arguments":{}}]}`
	callRepeat = `{"calls":[{"name":"repeat","arguments":{}}]}`
	answer     = `{"text":"It is done, and all of it."}`
)

func (w *world) start(a *events.Agent) events.Run {
	w.t.Helper()
	started, err := w.host.Gateway().Start(w.t.Context(), "", control.StartRequest{Agent: a, Task: "do it"})
	require.NoError(w.t, err)
	return w.store.Place(events.DefaultNamespace, started.RunID)
}

// append appends as a role does.
func (w *world) append(run events.Run, origin events.State, payloads ...events.Payload) {
	w.t.Helper()
	require.NoError(w.t, w.tryAppend(w.t.Context(), run, origin, payloads...))
}

func (w *world) tryAppend(ctx context.Context, run events.Run, origin events.State, payloads ...events.Payload) error {
	r := w.store.Acquire(run)
	defer w.store.Release(r)
	r.Lock()
	defer r.Unlock()
	if err := r.Refresh(ctx); err != nil {
		return err
	}
	_, err := r.Commit(ctx, runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) (drafts []runlog.Draft, err error) {
		for _, p := range payloads {
			drafts = append(drafts, runlog.Draft{Origin: origin, Payload: p})
		}
		return drafts, nil
	})
	return err
}

// open starts a run that no role works on.
func (w *world) open() events.Run {
	w.t.Helper()
	run := w.store.Place(events.DefaultNamespace, w.store.NewID())
	w.append(run, events.Idle, reducertest.StartOf("x", events.ModeTask))
	return run
}

// await waits until the run is in a state, and returns its memory then.
func (w *world) await(run events.Run, state events.State) *reducer.Memory {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	run = w.here(run)
	machine := reducer.NewMachine(reducer.MachineOptions{})
	mem := machine.Initial(run.ID)
	for rec, err := range w.bus.Follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
		require.NoError(w.t, err, "the run does not get to %s; it is in %s: %v", state, mem.State, mem.Trace)
		_, _ = machine.Apply(mem, rec.Subject, rec.Body)
		if mem.State == state {
			return mem
		}
		require.False(w.t, reducer.DefaultTable().Terminal(mem.State), "it ended in %s: %+v", mem.State, mem.Error)
	}
	return mem
}

// outcome waits until the run is done, and returns the code of its last call.
func (w *world) outcome(run events.Run) (code string) {
	w.t.Helper()
	w.await(run, events.Done)
	for _, body := range w.bodies(run) {
		e, err := new(events.Codec).Decode(body)
		require.NoError(w.t, err)
		switch p := e.Data.(type) {
		case *events.ToolSuccess:
			code = p.Outcome.Code
		case *events.ToolFailure:
			code = p.Outcome.Code
		}
	}
	return code
}

// here is a run of another world's in this one's shards.
func (w *world) here(run events.Run) events.Run { return w.store.Place(run.Namespace, run.ID) }

// bodies are what a run consists of.
func (w *world) bodies(run events.Run) (all [][]byte) {
	w.t.Helper()
	for rec, err := range w.bus.Read(w.t.Context(), w.here(run), 0) {
		require.NoError(w.t, err)
		all = append(all, bytes.Clone(rec.Body))
	}
	return all
}

func (w *world) verified() {
	w.t.Helper()
	report, err := verify.Log(w.t.Context(), w.bus, reducer.NewMachine(reducer.MachineOptions{}), verify.Options{All: true, Strict: true})
	require.NoError(w.t, err)
	require.True(w.t, report.Clean(), "%+v", report.Findings)
}

func (w *world) take(dir string, incremental bool) backup.Taken {
	w.t.Helper()
	taken, err := backup.Take(w.t.Context(), w.bus, dir, backup.Options{Incremental: incremental, Build: "test"})
	require.NoError(w.t, err)
	return taken
}

func openArchive(t *testing.T, dir string, until time.Time) *backup.Archive {
	t.Helper()
	a, err := backup.Open(t.Context(), dir, until)
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

func (w *world) restore(dir string, until time.Time, o backup.RestoreOptions) backup.Restored {
	w.t.Helper()
	done, err := backup.Restore(w.t.Context(), openArchive(w.t, dir, until), w.bus, source(o))
	require.NoError(w.t, err)
	return done
}

func source(o backup.RestoreOptions) backup.RestoreOptions {
	o.Source = "moorebus/gateway/restore"
	return o
}

// files returns the paths of a backup's files of one kind.
func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	return found
}

// flip changes a byte of a file.
func flip(t *testing.T, path string, at int) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[(at+len(data))%len(data)] ^= 0x10
	require.NoError(t, os.WriteFile(path, data, 0o600))
}
