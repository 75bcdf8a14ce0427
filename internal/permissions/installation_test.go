package permissions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/gateway"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/retention"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/pkg/actor"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/replay"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// installation is every role on a connection of its own user, as in processes of
// their own.
type installation struct {
	*rig
	t       *testing.T
	gateway *gateway.Gateway
	tap     *natsbus.Bus
	buses   map[string]*natsbus.Bus

	mu      sync.Mutex
	refused []string
}

// newInstallation runs planner, observer, gateway and the actor of pool web. The
// tool of pool gpu is announced by an actor that is gone, see forsake.
func newInstallation(t *testing.T, r *rig) *installation {
	t.Helper()
	in := &installation{rig: r, t: t, buses: map[string]*natsbus.Bus{}}
	in.tap = in.user(Tap)
	in.plan()
	in.observe()
	in.act()
	in.serve()
	gone := in.user("actor_gpu")
	require.NoError(t, gone.Announce(t.Context(), "gpu", "gone", []events.ToolSpec{
		{Name: "render", Description: "Renders.", Schema: json.RawMessage(`{"type":"object"}`), Effect: "pure", Pool: "gpu", Risk: "low"},
	}))
	require.Eventually(t, func() bool {
		tools, err := in.gateway.Tools(t.Context())
		providers, errProviders := in.buses[Gateway].Providers(t.Context())
		return err == nil && errProviders == nil && len(tools) == 3 && len(providers) == 1
	}, patience, 10*time.Millisecond)
	return in
}

// user opens the bus as a user and notes whatever the server refuses it, also
// where the bus makes do without.
func (in *installation) user(name string) *natsbus.Bus {
	in.t.Helper()
	bus := in.open(in.t, name)
	next := bus.Conn().ErrorHandler()
	bus.Conn().SetErrorHandler(func(c *nats.Conn, sub *nats.Subscription, err error) {
		in.mu.Lock()
		in.refused = append(in.refused, name+": "+err.Error())
		in.mu.Unlock()
		next(c, sub, err)
	})
	in.buses[name] = bus
	return bus
}

// store is that of a process, which reads snapshots.
func (in *installation) store(bus *natsbus.Bus) *runlog.Store {
	return runlog.New(runlog.Options{Log: bus, Snapshots: bus, Logger: quiet})
}

// start runs a role until the test ends.
func (in *installation) start(run func(context.Context) error, err error) {
	in.t.Helper()
	require.NoError(in.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	in.t.Cleanup(func() {
		cancel()
		require.NoError(in.t, <-ended)
	})
}

func (in *installation) plan() {
	bus := in.user(Planner)
	p, err := planner.New(planner.Config{
		Instance: "p", Store: in.store(bus), Queue: bus, Feed: bus, Directory: bus, Approval: approval.New(),
		Providers: map[string]llm.Caller{"scripted": scripted.New()}, Validator: schema.New(schema.Options{}), Logger: quiet,
	})
	in.start(p.Run, err)
}

func (in *installation) observe() {
	bus := in.user(Observer)
	o, err := observer.New(observer.Config{
		Instance: "o", Store: in.store(bus), Queue: bus, Feed: bus, Snapshots: bus, SnapshotEvery: 5, Logger: quiet,
	})
	in.start(o.Run, err)
}

func (in *installation) act() {
	bus := in.user("actor_web")
	dump, err := typed.New(tool.Definition{Name: "dump", Description: "Prints much.", Pool: "web", Effect: tool.Pure},
		func(context.Context, struct{}) (string, error) { return strings.Repeat("x", 300_000), nil })
	require.NoError(in.t, err)
	pay, err := typed.New(tool.Definition{Name: "pay", Description: "Pays.", Pool: "web", Effect: tool.Once},
		func(context.Context, struct{}) (string, error) { return "paid", nil })
	require.NoError(in.t, err)
	registry, err := tool.NewRegistry(dump, pay)
	require.NoError(in.t, err)
	a, err := actor.New(actor.Config{
		Instance: "a", Store: in.store(bus), Queue: bus, Feed: bus, Directory: bus, Blobs: bus, Tools: registry, Logger: quiet,
	})
	in.start(a.Run, err)
}

func (in *installation) serve() {
	bus := in.user(Gateway)
	g, err := gateway.New(gateway.Config{
		Instance: "g", Store: in.store(bus), Queue: bus, Feed: bus, Timers: bus, Directory: bus, Agents: bus, Tombstones: bus,
		Validator: schema.New(schema.Options{}), CheckApproval: approval.New().Check, Ready: bus.Ready,
		PoolWait: 300 * time.Millisecond, Logger: quiet,
	})
	in.gateway = g
	in.start(g.Run, err)
}

// forsake takes the announcement of pool gpu back, as time would.
func (in *installation) forsake() {
	in.t.Helper()
	msg := nats.NewMsg("$KV.tools_gpu.gone")
	msg.Header.Set("KV-Operation", "DEL")
	_, err := in.operator.RequestMsg(msg, patience)
	require.NoError(in.t, err)
}

// begin starts a run of a scripted agent whose tool pay needs an approval.
func (in *installation) begin(change func(*events.Agent), script string) events.Run {
	in.t.Helper()
	a := events.DefaultAgent()
	a.Name, a.Tools = "guarded", []string{"dump", "pay", "render"}
	a.LLM = events.LLM{Provider: "scripted", Script: json.RawMessage(script)}
	a.Approval = &events.Approval{Policy: events.ApproveTools, Tools: []string{"pay"}}
	a.Config.ReflectEveryNSteps = 0
	if change != nil {
		change(&a)
	}
	started, err := in.gateway.Start(in.t.Context(), "", gateway.StartRequest{Agent: &a, Task: "Pay."})
	require.NoError(in.t, err)
	return events.NewRun(events.DefaultNamespace, started.RunID, 1)
}

// arrives waits until the run is in a state.
func (in *installation) arrives(run events.Run, state events.State) {
	in.t.Helper()
	var got events.State
	require.Eventually(in.t, func() bool {
		s, err := in.gateway.State(in.t.Context(), "", run.ID, 0)
		got = s.State
		return err == nil && got == state
	}, patience, 10*time.Millisecond, "the run does not come to %s", state)
}

// edges are the ways on which the run's events came, as from.to.pool.
func (in *installation) edges(run events.Run) []string {
	in.t.Helper()
	recs, err := journaltest.Collect(in.tap.Read(in.t.Context(), run, 0))
	require.NoError(in.t, err)
	var all []string
	for _, rec := range recs {
		all = append(all, strings.Join(strings.Split(rec.Subject, ".")[3:6], "."))
	}
	return all
}

const wholeScript = `[
  {"calls": [{"name": "dump", "arguments": {}}, {"name": "render", "arguments": {}}]},
  {"calls": [{"name": "render", "arguments": {}}]},
  {"calls": [{"name": "render", "arguments": {}}, {"name": "render", "arguments": {"again": true}}]},
  {"calls": [{"name": "pay", "arguments": {}, "id": "pay"}]},
  {"text": "It is {{observation -1}}."}
]`

const payScript = `[{"calls": [{"name": "pay", "arguments": {}, "id": "pay"}]}, {"text": "It is over."}]`

// TestInstallation runs every role with the generated permissions, each with what
// it does beside its edges: snapshots, timers, pools that nobody serves, large
// results, forks, tombstones. Nothing of it is refused.
func TestInstallation(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) { testInstallation(t, 1) })
	t.Run("three servers", func(t *testing.T) { testInstallation(t, 3) }) // whose leaders are asked
}

func testInstallation(t *testing.T, servers int) {
	in := newInstallation(t, newRigOf(t, servers))
	whole := in.begin(nil, wholeScript)
	expiring := in.begin(func(a *events.Agent) { a.Approval.Expires = events.Duration(time.Second) }, payScript)
	late := in.begin(func(a *events.Agent) { a.Budget = &events.Budget{MaxWallTime: events.Duration(time.Second)} }, payScript)
	require.NoError(t, in.gateway.Ready(t.Context()))
	in.forsake()
	in.arrives(whole, events.WaitingForHuman)
	in.arrives(expiring, events.Done)
	in.arrives(late, events.Errored)
	require.Contains(t, in.edges(expiring), "waiting_for_human.observing.default", "the approval expired by its timer")
	require.Contains(t, in.edges(late), "control.error.default", "the deadline came by its timer")
	stood := in.edges(whole)
	for _, edge := range []string{"control.parallel_acting.gpu", "control.observing.default", "control.none.default"} {
		require.Contains(t, stood, edge, "the gateway stood in for pool gpu")
	}

	in.readSnapshots(whole)
	in.fork(whole, uint64(len(stood)))
	_, err := in.gateway.Decide(t.Context(), "", whole.ID, events.Decision{CallID: "pay", Decision: events.DecisionApproved, By: "ann"})
	require.NoError(t, err)
	in.arrives(whole, events.Done)
	require.Eventually(t, func() bool {
		left, err := in.tap.Snapshotted(t.Context())
		return err == nil && len(left) == 0
	}, patience, 10*time.Millisecond, "snapshots of runs that ended are let go of")
	in.look()
	in.keep(late)
	require.Empty(t, in.refusals())
	in.cannotPurge(late)
}

// readSnapshots has each role read the run's snapshot. Older ones left nothing
// behind: a description and its one chunk for each run.
func (in *installation) readSnapshots(run events.Run) {
	in.t.Helper()
	require.Eventually(in.t, func() bool {
		s, err := in.tap.Snapshot(in.t.Context(), run)
		return err == nil && s.N >= 15
	}, patience, 10*time.Millisecond)
	for name, bus := range in.buses {
		s, err := bus.Snapshot(in.t.Context(), run)
		require.NoError(in.t, err, name)
		require.NotEmpty(in.t, s.Memory, name)
	}
	require.Eventually(in.t, func() bool {
		js, err := in.operator.JetStream()
		require.NoError(in.t, err)
		info, err := js.StreamInfo("OBJ_snapshots")
		runs, errRuns := in.tap.Snapshotted(in.t.Context())
		return err == nil && errRuns == nil && info.State.Msgs == uint64(2*len(runs))
	}, patience, 10*time.Millisecond, "replaced snapshots are removed")
}

// fork forks the run where it waits for a human, cancels one fork and ends
// another.
func (in *installation) fork(run events.Run, at uint64) {
	in.t.Helper()
	cancelled, err := in.gateway.Fork(in.t.Context(), "", run.ID, gateway.ForkRequest{At: at})
	require.NoError(in.t, err)
	_, err = in.gateway.Cancel(in.t.Context(), "", cancelled.RunID, events.By{By: "ann"})
	require.NoError(in.t, err)
	fork, err := in.gateway.Fork(in.t.Context(), "", run.ID, gateway.ForkRequest{At: at})
	require.NoError(in.t, err)
	_, err = in.gateway.Decide(in.t.Context(), "", fork.RunID, events.Decision{CallID: "pay", Decision: events.DecisionRejected, By: "ann"})
	require.NoError(in.t, err)
	in.arrives(events.NewRun(events.DefaultNamespace, fork.RunID, 1), events.Done)
}

// look does as a tap what commands that read do.
func (in *installation) look() {
	in.t.Helper()
	ctx := in.t.Context()
	machine := reducer.NewMachine(reducer.MachineOptions{})
	report, err := replay.Verify(ctx, in.tap, machine, replay.VerifyOptions{All: true, Strict: true, Snapshots: in.tap})
	require.NoError(in.t, err)
	require.True(in.t, report.Clean(), report.Findings)
	var file bytes.Buffer
	done, err := retention.Export(ctx, in.tap, filelog.NewWriter(&file), retention.ExportOptions{All: true, Blobs: in.tap})
	require.NoError(in.t, err)
	require.Equal(in.t, 1, done.Blobs, "the large result is exported once")
	require.Empty(in.t, done.Missing)
	_, err = in.tap.Dropped(ctx)
	require.NoError(in.t, err)
	strays, err := journaltest.Collect(in.tap.Strays(ctx, 0))
	require.NoError(in.t, err)
	require.Empty(in.t, strays)
}

// keep purges a run as the operator, whose tombstone the gateway sees, and puts
// it back.
func (in *installation) keep(run events.Run) {
	in.t.Helper()
	ctx, archive := in.t.Context(), filepath.Join(in.t.TempDir(), "archive.jsonl")
	purged, err := retention.Purge(ctx, in.log, retention.PurgeOptions{
		Runs: []events.Run{run}, Grace: time.Millisecond,
		Archive: func(write func(retention.Sink) error) error {
			return filelog.WriteFile(archive, func(w *filelog.Writer) error { return write(w) })
		},
	})
	require.NoError(in.t, err)
	require.Len(in.t, purged.Runs, 1)
	require.NoError(in.t, in.log.Drop(ctx, run.ID))
	dropped, err := in.tap.Dropped(ctx)
	require.NoError(in.t, err)
	require.Equal(in.t, []string{run.ID}, dropped)
	var refused *gateway.Error
	require.Eventually(in.t, func() bool { // a leader that was replaced answers until it learns of that
		_, err := in.gateway.State(ctx, "", run.ID, 0)
		return errors.As(err, &refused) && refused.Code == gateway.CodeRunPurged
	}, patience, 10*time.Millisecond)
	a := events.DefaultAgent()
	a.Name, a.LLM = "again", events.LLM{Provider: "scripted", Script: json.RawMessage(`[{"text": "x"}]`)}
	_, err = in.gateway.Start(ctx, "", gateway.StartRequest{Agent: &a, Task: "Again.", RunID: run.ID})
	require.ErrorAs(in.t, err, &refused)
	require.Equal(in.t, gateway.CodeRunPurged, refused.Code)

	file, err := filelog.Open(archive)
	require.NoError(in.t, err)
	defer func() { require.NoError(in.t, file.Close()) }()
	_, err = retention.Import(ctx, file, in.log, retention.ImportOptions{Source: "moorebus/gateway/test"})
	require.NoError(in.t, err)
	in.arrives(run, events.Errored)
}

// refusals are what the server refused anybody.
func (in *installation) refusals() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.refused)
}

// cannotPurge has everybody try what only the operator may, and counts on each
// try being noted.
func (in *installation) cannotPurge(run events.Run) {
	in.t.Helper()
	for name, bus := range in.buses {
		_, err := bus.Purge(in.t.Context(), run, 1)
		require.ErrorIs(in.t, err, journal.ErrDenied, name)
		require.ErrorContains(in.t, err, "$JS.API.STREAM.PURGE.MOORE_0", name)
		require.ErrorIs(in.t, bus.PutTombstone(in.t.Context(), run, journal.Tombstone{}), journal.ErrDenied, name)
		require.ErrorIs(in.t, bus.Drop(in.t.Context(), run.ID), journal.ErrDenied, name)
	}
	require.Len(in.t, in.refusals(), 3*len(in.buses))
}
