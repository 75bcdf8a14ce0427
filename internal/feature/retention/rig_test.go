package retention_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/transfer"
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
	// Most of these tests wait for a server or a clock and need no processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const (
	patience = time.Minute
	tick     = 10 * time.Millisecond
	// noGrace is for tests in which nobody else starts runs.
	noGrace = time.Millisecond
)

// world is a server with a log, and roles that work on it when they are told to.
type world struct {
	t     *testing.T
	conn  *nats.Conn
	bus   *natsbus.Bus
	host  *host.Host
	store *runlog.Store
}

// newWorld starts an embedded server. The log is in memory: it is the server that
// is real.
func newWorld(t *testing.T, shards int) *world {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Shards: shards, Memory: true, AckWait: time.Second}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	w := &world{t: t, conn: conn, bus: bus, store: runlog.New(runlog.Options{Log: bus})}
	registry, err := toolset.New(largeTool(t))
	require.NoError(t, err)
	w.host, err = host.New(host.Options{
		Bus: bus, Providers: map[string]llm.Caller{"scripted": scripted.New()}, Tools: registry,
		Results: actor.Results{MaxBytes: 20_480}, Snapshots: bus, SnapshotEvery: 10, Tombstones: bus, Logger: quiet,
	})
	require.NoError(t, err)
	return w
}

type text struct {
	Text string `json:"text"`
}

// largeTool answers with its text many times over, which does not fit into an
// event.
func largeTool(t *testing.T) tool.Tool {
	t.Helper()
	made, err := typed.New(tool.Definition{Name: "repeat", Description: "repeat", Effect: tool.Pure},
		func(_ context.Context, in text) (string, error) { return strings.Repeat(in.Text, 8000), nil })
	require.NoError(t, err)
	return made
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
	require.NoError(w.t, w.host.Announce(w.t.Context()))
	return w
}

// definition is an agent that says or calls what its script has.
func definition(approval string, script string) *events.Agent {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.LLM.Script, a.Tools = "a", "scripted", []byte(script), []string{"repeat"}
	a.Config.ReflectEveryNSteps = 0
	a.Config.MaxSteps = 1000
	if approval != "" {
		a.Approval = &events.Approval{Policy: events.ApprovalPolicy(approval)}
	}
	return &a
}

func calls(n int, texts string) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, `{"calls":[{"name":"repeat","arguments":{"text":%q}}]},`, texts)
	}
	return "[" + b.String() + `{"text":"It is done, and all of it."}]`
}

func (w *world) start(a *events.Agent) events.Run {
	w.t.Helper()
	started, err := w.host.Gateway().Start(w.t.Context(), "", control.StartRequest{Agent: a, Task: "do it"})
	require.NoError(w.t, err)
	return w.store.Place(events.DefaultNamespace, started.RunID)
}

func (w *world) state(run events.Run) runs.RunState {
	w.t.Helper()
	s, err := w.host.Gateway().State(w.t.Context(), run.Namespace, run.ID, 0)
	require.NoError(w.t, err)
	return s
}

func (w *world) await(run events.Run, state events.State) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	run = w.here(run)
	mem := reducer.NewMachine(reducer.MachineOptions{}).Initial(run.ID)
	filter := journal.Filter{Namespace: run.Namespace, Run: run.ID}
	for rec, err := range w.bus.Follow(ctx, run.Shard, filter, 0) {
		if err != nil {
			require.NoError(w.t, err, "the run does not get to %s; it is in %s: %v", state, mem.State, mem.Trace)
		}
		_, _ = reducer.NewMachine(reducer.MachineOptions{}).Apply(mem, rec.Subject, rec.Body)
		if mem.State == state {
			return
		}
		require.False(w.t, reducer.DefaultTable().Terminal(mem.State), "it ended in %s: %+v", mem.State, mem.Error)
	}
}

// ended starts a run and waits for its end.
func (w *world) ended(a *events.Agent) events.Run {
	w.t.Helper()
	run := w.start(a)
	w.await(run, events.Done)
	return run
}

// append appends as a role does.
func (w *world) append(run events.Run, origin events.State, payloads ...events.Payload) {
	w.t.Helper()
	r := w.store.Acquire(run)
	defer w.store.Release(r)
	r.Lock()
	defer r.Unlock()
	require.NoError(w.t, r.Refresh(w.t.Context()))
	_, err := r.Commit(w.t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
		var drafts []runlog.Draft
		for _, p := range payloads {
			drafts = append(drafts, runlog.Draft{Origin: origin, Payload: p})
		}
		return drafts, nil
	})
	require.NoError(w.t, err)
}

// quick appends a run that has ended without any role.
func (w *world) quick() events.Run {
	w.t.Helper()
	run := w.store.Place(events.DefaultNamespace, w.store.NewID())
	w.append(run, events.Idle, reducertest.StartOf("x", events.ModeTask))
	w.append(run, events.Control, &events.CancelledRun{})
	return run
}

// here is a run of another world's in this one's shards.
func (w *world) here(run events.Run) events.Run { return w.store.Place(run.Namespace, run.ID) }

func (w *world) length(run events.Run) int {
	w.t.Helper()
	n := 0
	for _, err := range w.bus.Read(w.t.Context(), w.here(run), 0) {
		require.NoError(w.t, err)
		n++
	}
	return n
}

// verified fails unless every run is as it must be.
func (w *world) verified() *verify.Report {
	w.t.Helper()
	report, err := verify.Log(w.t.Context(), w.bus, reducer.NewMachine(reducer.MachineOptions{}), verify.Options{All: true, Strict: true, Snapshots: w.bus})
	require.NoError(w.t, err)
	require.True(w.t, report.Clean(), "%+v", report.Findings)
	return report
}

// export writes a file and opens it. The runs are those that others were forked
// from and that the log does not have.
func (w *world) export(o transfer.ExportOptions, missing ...events.Run) *filelog.File {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "runs.jsonl")
	o.Blobs = w.bus
	require.NoError(w.t, filelog.WriteFile(path, func(to *filelog.Writer) error {
		done, err := transfer.Export(w.t.Context(), w.bus, to, o)
		require.Len(w.t, done.Missing, len(missing))
		for i, m := range done.Missing {
			require.Equal(w.t, missing[i], m.Run, m.What)
		}
		return err
	}))
	return openFile(w.t, path)
}

func openFile(t *testing.T, path string) *filelog.File {
	t.Helper()
	f, err := filelog.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// fates returns what became of the runs.
func fates(results []transfer.ImportedRun) map[string]transfer.Fate {
	all := map[string]transfer.Fate{}
	for _, r := range results {
		all[r.Run.ID] = r.Fate
	}
	return all
}

func (w *world) imports(from transfer.Source, o transfer.ImportOptions) []transfer.ImportedRun {
	w.t.Helper()
	o.Source = "moorebus/gateway/import"
	results, err := transfer.Import(w.t.Context(), from, w.bus, o)
	require.NoError(w.t, err)
	return results
}

func (w *world) purge(o retention.PurgeOptions) (retention.Purged, error) {
	w.t.Helper()
	o.Grace = noGrace
	return retention.Purge(w.t.Context(), w.bus, o)
}

// fork appends a fork of a run at its first event, as a gateway does.
func (w *world) fork(parent events.Run) events.Run {
	w.t.Helper()
	run := w.store.Place(parent.Namespace, w.store.NewID())
	hash := events.Hash(nil)
	for rec, err := range w.bus.Read(w.t.Context(), parent, 0) {
		require.NoError(w.t, err)
		hash = events.Hash(rec.Body)
		break
	}
	body, err := new(events.Codec).Encode(&events.Event{
		ID: w.store.NewID(), Source: "moorebus/gateway/1", Run: run.ID, Time: time.Now().UTC(), N: 1,
		From: events.Idle, To: events.Planning, Data: &events.Forked{Run: parent.ID, At: 1, Hash: hash},
	})
	require.NoError(w.t, err)
	subject := events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: events.DefaultPool}
	_, err = w.bus.Append(w.t.Context(), run, 0, journal.Entry{Subject: subject, Body: body})
	require.NoError(w.t, err)
	return run
}

// refOf returns the first large result that a run refers to.
func refOf(t *testing.T, w *world, run events.Run) events.Ref {
	t.Helper()
	for rec, err := range w.bus.Read(t.Context(), w.here(run), 0) {
		require.NoError(t, err)
		e, err := new(events.Codec).Decode(rec.Body)
		require.NoError(t, err)
		if p, ok := e.Data.(*events.ToolSuccess); ok && p.Outcome != nil && p.Outcome.Ref != nil {
			return *p.Outcome.Ref
		}
	}
	require.Fail(t, "the run refers to nothing")
	return events.Ref{}
}

// decision approves the one call that waits.
func decision(t *testing.T, w *world, run events.Run) events.Decision {
	t.Helper()
	r := w.store.Acquire(w.here(run))
	defer w.store.Release(r)
	r.Lock()
	defer r.Unlock()
	require.NoError(t, r.Refresh(t.Context()))
	return events.Decision{CallID: r.Memory().PendingApproval.Requests[0].CallID, Decision: events.DecisionApproved, By: "ann"}
}
