// Package transfertest has installations for tests that move runs: a real bus, and a host with every role.
// The roles work one step at a time, when a test says so.
package transfertest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/recordline"
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

// Patience bounds what a test waits for; nothing takes that long.
const Patience = time.Minute

// World is a server with a log, and roles that work on it step by step.
type World struct {
	T     testing.TB
	Conn  *nats.Conn
	Bus   *natsbus.Bus
	Host  *host.Host
	Store *runlog.Store
}

// NewWorld starts a server whose log is in memory. The host has the tools, the tool repeat of [Calls], and
// what the options say besides.
func NewWorld(t testing.TB, shards int, o host.Options, tools ...tool.Tool) *World {
	t.Helper()
	server, err := embedded.Start(context.Background(), embedded.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return OpenWorld(t, conn, natsbus.InitOptions{Shards: shards, Memory: true, AckWait: time.Second}, o, tools...)
}

// OpenWorld is NewWorld on a server that runs.
func OpenWorld(t testing.TB, conn *nats.Conn, init natsbus.InitOptions, o host.Options, tools ...tool.Tool) *World {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	require.NoError(t, natsbus.Init(t.Context(), conn, init))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: Patience})
	require.NoError(t, err)
	repeat, err := typed.New(tool.Definition{Name: "repeat", Description: "repeat", Effect: tool.Pure},
		func(_ context.Context, in struct {
			Text string `json:"text"`
		}) (string, error) {
			return strings.Repeat(in.Text, 8000), nil
		})
	require.NoError(t, err)
	o.Tools, err = toolset.New(append(tools, repeat)...)
	require.NoError(t, err)
	o.Bus, o.Snapshots, o.Tombstones, o.Logger = bus, bus, bus, quiet
	o.Providers, o.Results = map[string]llm.Caller{"scripted": scripted.New()}, actor.Results{MaxBytes: 20_480}
	w := &World{T: t, Conn: conn, Bus: bus, Store: runlog.New(runlog.Options{Log: bus})}
	w.Host, err = host.New(o)
	require.NoError(t, err)
	require.NoError(t, w.Host.Announce(t.Context()))
	return w
}

// Work has all roles work until the test ends.
func (w *World) Work() *World {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Host.Run(ctx) }()
	w.T.Cleanup(func() {
		cancel()
		require.NoError(w.T, <-done)
	})
	return w
}

// Agent says or calls what its script has. Humans approve its calls as the policy says, if there is one.
func Agent(policy events.ApprovalPolicy, script string, tools ...string) *events.Agent {
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.LLM.Script, a.Tools = "a", "scripted", []byte(script), tools
	a.Config.ReflectEveryNSteps = 0
	if policy != "" {
		a.Approval = &events.Approval{Policy: policy}
	}
	return &a
}

// Answer is the last reply of a script.
const Answer = `{"text":"It is done, and all of it."}`

// Calls is a script that has a text repeated so often that it does not fit into an event, n times.
func Calls(n int, text string) string {
	return "[" + strings.Repeat(fmt.Sprintf(`{"calls":[{"name":"repeat","arguments":{"text":%q}}]},`, text), n) + Answer + "]"
}

// Start starts a run.
func (w *World) Start(a *events.Agent) events.Run {
	w.T.Helper()
	started, err := w.Host.Gateway().Start(w.T.Context(), "", control.StartRequest{Agent: a, Task: "do it"})
	require.NoError(w.T, err)
	return w.Store.Place(events.DefaultNamespace, started.RunID)
}

// Ended starts a run and waits until it is done.
func (w *World) Ended(a *events.Agent) events.Run {
	w.T.Helper()
	run := w.Start(a)
	w.Await(run, events.Done)
	return run
}

// Await waits until the run is in a state, and returns its memory then.
func (w *World) Await(run events.Run, state events.State) *reducer.Memory {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), Patience)
	defer cancel()
	run = w.Here(run)
	machine := reducer.NewMachine(reducer.MachineOptions{})
	mem := machine.Initial(run.ID)
	for rec, err := range w.Bus.Follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
		if err != nil {
			require.NoError(w.T, err, "the run does not get to %s; it is in %s: %v", state, mem.State, mem.Trace)
		}
		_, _ = machine.Apply(mem, rec.Subject, rec.Body)
		if mem.State == state {
			break
		}
		require.False(w.T, reducer.DefaultTable().Terminal(mem.State), "it ended in %s: %+v", mem.State, mem.Error)
	}
	return mem
}

// State returns what the gateway says of a run.
func (w *World) State(run events.Run) runs.RunState {
	w.T.Helper()
	s, err := w.Host.Gateway().State(w.T.Context(), run.Namespace, run.ID, 0)
	require.NoError(w.T, err)
	return s
}

// Append appends as a role does.
func (w *World) Append(run events.Run, origin events.State, payloads ...events.Payload) {
	w.T.Helper()
	require.NoError(w.T, w.TryAppend(w.T.Context(), run, origin, payloads...))
}

// TryAppend is Append that may fail.
func (w *World) TryAppend(ctx context.Context, run events.Run, origin events.State, payloads ...events.Payload) error {
	r := w.Store.Acquire(run)
	defer w.Store.Release(r)
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

// Memory returns a run's memory.
func (w *World) Memory(run events.Run) *reducer.Memory {
	w.T.Helper()
	r := w.Store.Acquire(w.Here(run))
	defer w.Store.Release(r)
	r.Lock()
	defer r.Unlock()
	require.NoError(w.T, r.Refresh(w.T.Context()))
	return r.Memory().Clone()
}

// Open starts a run that no role works on yet.
func (w *World) Open() events.Run {
	w.T.Helper()
	return w.Start(Agent("", "["+Answer+"]"))
}

// Quick appends a run that has ended without any role.
func (w *World) Quick() events.Run {
	w.T.Helper()
	run := w.Open()
	w.Append(run, events.Control, &events.CancelledRun{})
	return run
}

// Fork appends a fork of a run at its first event, as a gateway does.
func (w *World) Fork(parent events.Run) events.Run {
	w.T.Helper()
	run, hash := w.Store.Place(parent.Namespace, w.Store.NewID()), events.Hash(nil)
	if bodies := w.Bodies(parent); len(bodies) > 0 {
		hash = events.Hash(bodies[0])
	}
	body, err := new(events.Codec).Encode(&events.Event{
		ID: w.Store.NewID(), Source: "moorebus/gateway/1", Run: run.ID, Time: time.Now().UTC(), N: 1,
		From: events.Idle, To: events.Planning, Data: &events.Forked{Run: parent.ID, At: 1, Hash: hash},
	})
	require.NoError(w.T, err)
	subject := events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: events.DefaultPool}
	_, err = w.Bus.Append(w.T.Context(), run, 0, journal.Entry{Subject: subject, Body: body})
	require.NoError(w.T, err)
	return run
}

// Here is a run of another world's in this one's shards.
func (w *World) Here(run events.Run) events.Run { return w.Store.Place(run.Namespace, run.ID) }

// Length is how many records a run has.
func (w *World) Length(run events.Run) int { return len(w.Bodies(run)) }

// Bodies are what a run consists of.
func (w *World) Bodies(run events.Run) (all [][]byte) {
	w.T.Helper()
	for rec, err := range w.Bus.Read(w.T.Context(), w.Here(run), 0) {
		require.NoError(w.T, err)
		all = append(all, bytes.Clone(rec.Body))
	}
	return all
}

// Verified fails unless every run is as it must be.
func (w *World) Verified() *verify.Report {
	w.T.Helper()
	report, err := verify.Log(w.T.Context(), w.Bus, reducer.NewMachine(reducer.MachineOptions{}), verify.Options{All: true, Strict: true, Snapshots: w.Bus})
	require.NoError(w.T, err)
	require.True(w.T, report.Clean(), "%+v", report.Findings)
	return report
}

// Ref returns the first large result that a run refers to.
func (w *World) Ref(run events.Run) events.Ref {
	w.T.Helper()
	for _, body := range w.Bodies(run) {
		if refs := recordline.Refs(new(events.Codec), body); len(refs) > 0 {
			return refs[0]
		}
	}
	require.Fail(w.T, "the run refers to nothing")
	return events.Ref{}
}

// Export writes a file and opens it. The runs are those that others were forked
// from and that the log does not have.
func (w *World) Export(o transfer.ExportOptions, missing ...events.Run) *filelog.File {
	w.T.Helper()
	path := filepath.Join(w.T.TempDir(), "runs.jsonl")
	o.Blobs = w.Bus
	require.NoError(w.T, filelog.WriteFile(path, func(to *filelog.Writer) error {
		done, err := transfer.Export(w.T.Context(), w.Bus, to, o)
		require.Len(w.T, done.Missing, len(missing))
		for i, m := range done.Missing {
			require.Equal(w.T, missing[i], m.Run, m.What)
		}
		return err
	}))
	return OpenFile(w.T, path)
}

// OpenFile opens an export.
func OpenFile(t testing.TB, path string) *filelog.File {
	t.Helper()
	f, err := filelog.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// Import imports runs.
func (w *World) Import(from transfer.Source, o transfer.ImportOptions) []transfer.ImportedRun {
	w.T.Helper()
	o.Source = "moorebus/gateway/import"
	results, err := transfer.Import(w.T.Context(), from, w.Bus, o)
	require.NoError(w.T, err)
	return results
}

// Fates returns what became of the runs.
func Fates(results []transfer.ImportedRun) map[string]transfer.Fate {
	all := map[string]transfer.Fate{}
	for _, r := range results {
		all[r.Run.ID] = r.Fate
	}
	return all
}
