package permissions

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// installation is every role on a connection of its own user, as in separate processes.
type installation struct {
	*rig
	t       *testing.T
	gateway *control.Controller
	tap     *natsbus.Bus
	buses   map[string]*natsbus.Bus

	mu      sync.Mutex
	refused []string
}

// newInstallation runs planner, observer, gateway and the actor of pool web, which observes if the layout says
// so. The tool of pool gpu is announced by an actor that is gone, see withdrawPool.
func newInstallation(t *testing.T, layout Layout, servers int) *installation {
	t.Helper()
	in := &installation{rig: newRigOf(t, layout, servers), t: t, buses: map[string]*natsbus.Bus{}}
	in.tap = in.user(Tap)
	in.plan()
	actor := in.base("a", in.user("actor_web"))
	if len(layout.Observing) > 0 {
		actor.Follow = toolcall.Follow(in.observe(actor, in.buses["actor_web"]).Follow)
	} else {
		bus := in.user(Observer)
		in.observe(in.base("o", bus), bus)
	}
	in.act(actor, in.buses["actor_web"])
	in.serve()
	gone := in.user("actor_gpu")
	require.NoError(t, announce.NewDirectory(gone, nil).Announce(t.Context(), "gpu", "gone", []events.ToolSpec{
		{Name: "render", Description: "Renders.", Schema: json.RawMessage(`{"type":"object"}`), Effect: "pure", Pool: "gpu", Risk: "low"},
	}))
	require.Eventually(t, func() bool {
		tools, err := in.gateway.Tools(t.Context())
		providers, errProviders := announce.NewDirectory(in.buses[Gateway], nil).Providers(t.Context())
		return err == nil && errProviders == nil && len(tools) == 3 && len(providers) == 1
	}, patience, 10*time.Millisecond)
	return in
}

// user opens the bus as a user and records everything that the server refuses, even if the bus
// works without it.
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

// store returns the store of a process. It reads snapshots.
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
		Base: in.base("p", bus), KV: bus, Approval: approval.New(),
		Providers: map[string]llm.Caller{"scripted": scripted.New()}, Validator: schema.New(schema.Options{}), Blobs: bus,
	})
	in.start(p.Run, err)
}

func (in *installation) base(instance string, bus *natsbus.Bus) worker.Base {
	return worker.Base{Instance: instance, Store: in.store(bus), Queue: bus, Feed: bus, Logger: quiet}
}

func (in *installation) observe(base worker.Base, bus *natsbus.Bus) *observer.Observer {
	o, err := observer.New(observer.Config{Base: base, Snapshots: bus, SnapshotEvery: 5})
	in.start(o.Run, err)
	return o
}

func (in *installation) act(base worker.Base, bus *natsbus.Bus) {
	dump, err := typed.New(tool.Definition{Name: "dump", Description: "Prints much.", Pool: "web", Effect: tool.Pure},
		func(context.Context, struct{}) (string, error) { return strings.Repeat("x", 300_000), nil })
	require.NoError(in.t, err)
	pay, err := typed.New(tool.Definition{Name: "pay", Description: "Pays.", Pool: "web", Effect: tool.Once},
		func(context.Context, struct{}) (string, error) { return "paid", nil })
	require.NoError(in.t, err)
	registry, err := toolset.New(dump, pay)
	require.NoError(in.t, err)
	a, err := actor.New(actor.Config{Base: base, KV: bus, Blobs: bus, Tools: registry})
	in.start(a.Run, err)
}

func (in *installation) serve() {
	bus := in.user(Gateway)
	g, err := control.New(control.Config{
		Base: in.base("g", bus), Timers: bus, KV: bus, Fleet: bus, Blobs: bus, Tombstones: bus,
		Validator: schema.New(schema.Options{}), CheckApproval: approval.New().Check, Ready: bus.Ready,
		PoolWait: 300 * time.Millisecond,
	})
	require.NoError(in.t, err)
	g.Admission = control.Unbounded{}
	in.gateway = g
	in.start(g.Run, nil)
}

// withdrawPool removes the announcement of pool gpu, as if it had expired.
func (in *installation) withdrawPool() {
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
	bill := events.Part{Type: events.PartImage, MediaType: "image/png", Data: make([]byte, 8<<10)} // too large for the log
	started, err := in.gateway.Start(in.t.Context(), "", control.StartRequest{Agent: &a, Parts: []events.Part{{Type: events.PartText, Text: "Pay."}, bill}})
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

// edges returns the edges of the run's events, as from.to.pool.
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
// it does beside its edges: snapshots, timers, an unserved pool, large results, images. The
// servers refuse none of it. There are three, whose leaders are asked beside what one server
// is asked. e2e's TestGuardedBus tests forks, purges and the operator's commands.
func TestInstallation(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts every role
	}
	t.Parallel()
	t.Run("a user for each role", func(t *testing.T) {
		t.Parallel()
		newInstallation(t, layout, 3).works(t)
	})
	t.Run("an actor that observes", func(t *testing.T) {
		t.Parallel()
		observing := layout
		observing.Observing = []string{"web"}
		newInstallation(t, observing, 1).works(t)
	})
}

func (in *installation) works(t *testing.T) {
	whole := in.begin(nil, wholeScript)
	expiring := in.begin(func(a *events.Agent) { a.Approval.Expires = events.Duration(time.Second) }, payScript)
	require.NoError(t, in.gateway.Ready(t.Context()))
	in.withdrawPool()
	in.arrives(whole, events.WaitingForHuman)
	in.arrives(expiring, events.Done)
	require.Contains(t, in.edges(expiring), "waiting_for_human.observing.default", "the approval expired by its timer")
	for _, edge := range []string{"control.parallel_acting.gpu", "control.observing.default", "control.none.default"} {
		require.Contains(t, in.edges(whole), edge, "the gateway stood in for pool gpu")
	}
	// One is due at every fifth event. What fails, as while a stream has no leader, is not tried again.
	require.Eventually(t, func() bool {
		s, err := in.tap.Snapshot(t.Context(), whole)
		return err == nil && s.N >= 5
	}, patience, 10*time.Millisecond)
	for name, bus := range in.buses {
		s, err := bus.Snapshot(t.Context(), whole)
		require.NoError(t, err, name)
		require.NotEmpty(t, s.Memory, name)
	}
	stats, err := in.gateway.Stats(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, 2, stats.Runs.Total)
	require.Empty(t, stats.BacklogReason+stats.WorkersReason)
	require.Len(t, stats.Workers, 2)
	require.True(t, slices.ContainsFunc(stats.Backlog, func(b ports.Backlog) bool {
		return b.State == events.Acting && b.Pool == "web" && b.Waiting == 0 && b.InFlight == 0 && b.Oldest.IsZero()
	}))
	sizes, err := in.buses[Gateway].ShardSizes(t.Context())
	require.NoError(t, err)
	require.Positive(t, sizes[0].Bytes)
	_, err = in.operator.Request("moore.0.nonsense", []byte("x"), patience)
	require.NoError(t, err)
	var strays []dead.Dead
	require.Eventually(t, func() bool { // a replica may lag
		strays, err = in.gateway.Dead(t.Context(), "", dead.Options{})
		return err == nil && len(strays) == 1
	}, patience, 10*time.Millisecond)
	require.NoError(t, in.gateway.DropDead(t.Context(), "", []string{strays[0].Stray}))
	require.Eventually(t, func() bool { // a replica may lag
		strays, err := in.gateway.Dead(t.Context(), "", dead.Options{})
		return err == nil && len(strays) == 0
	}, patience, 10*time.Millisecond)
	_, err = in.gateway.Decide(t.Context(), "", whole.ID, events.Decision{CallID: "pay", Decision: events.DecisionApproved, By: "ann"})
	require.NoError(t, err)
	in.arrives(whole, events.Done)
	require.Eventually(t, func() bool {
		left, err := in.tap.Snapshotted(t.Context())
		return err == nil && len(left) == 0
	}, patience, 10*time.Millisecond, "the observer removes the snapshots of runs that have ended")
	require.Empty(t, in.refusals())
}

// refusals returns what the server refused to any user.
func (in *installation) refusals() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.refused)
}
