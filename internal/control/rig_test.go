package control_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; nothing takes that long.
const patience = time.Minute

type bus interface {
	journal.Log
	journal.Feed
	journal.Queue
	journal.Timers
	journal.Directory
	journal.Agents
}

// rig is a controller that runs on a real bus, and the rest of the world.
type rig struct {
	t       *testing.T
	bus     bus
	control *control.Controller
	// others is the store of the other roles.
	others *runlog.Store
	// stop ends the controller.
	stop func()
}

var searchTool = events.ToolSpec{
	Name: "search", Description: "Searches.", Schema: json.RawMessage(`{"type":"object"}`), Effect: "pure", Pool: "default", Risk: "low",
}

func newRig(t *testing.T, b bus, tweak func(*control.Config)) *rig {
	cfg := control.Config{
		Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Timers: b, Directory: b, Agents: b, Instance: "test",
	}
	tweak(&cfg)
	c, err := control.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return &rig{t: t, bus: b, control: c, others: runlog.New(runlog.Options{Log: b}), stop: stop}
}

// start starts a run and returns its id.
func (r *rig) start(tweak func(*events.Agent)) string {
	r.t.Helper()
	require.NoError(r.t, r.bus.AnnounceProviders(r.t.Context(), "p", []string{"openai"}))
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = "tester", "openai"
	if tweak != nil {
		tweak(&a)
	}
	started, err := r.control.Start(r.t.Context(), "", control.StartRequest{Agent: &a, Task: "Do it."})
	require.NoError(r.t, err)
	return started.RunID
}

// natsBus is a real server with some pools besides the default one.
func natsBus(t *testing.T, pools ...string) bus {
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true, Pools: pools, AckWait: time.Second}))
	b, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: patience})
	require.NoError(t, err)
	return b
}

// happens appends events as another role would.
func (r *rig) happens(id string, origin events.State, payloads ...events.Payload) {
	r.t.Helper()
	run := r.others.Acquire(r.others.Place("default", id))
	defer r.others.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(r.t, run.Refresh(r.t.Context()))
	for _, p := range payloads {
		done, err := run.Commit(r.t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{{Origin: origin, Payload: p}}, nil
		})
		require.NoError(r.t, err)
		require.True(r.t, done)
	}
}

// records returns the run's stored records.
func (r *rig) records(id string) []journal.Record {
	r.t.Helper()
	var all []journal.Record
	for rec, err := range r.bus.Read(r.t.Context(), r.others.Place("default", id), 0) {
		require.NoError(r.t, err)
		all = append(all, rec)
	}
	return all
}

func (r *rig) types(id string) []string {
	r.t.Helper()
	var types []string
	for _, rec := range r.records(id) {
		types = append(types, typeOf(r.t, rec))
	}
	return types
}

func typeOf(t *testing.T, rec journal.Record) string {
	t.Helper()
	e, err := events.DefaultCodec().Decode(rec.Body)
	require.NoError(t, err)
	return string(e.Type())
}

func answered(text string) *events.LLMFinalAnswer {
	return &events.LLMFinalAnswer{MessageID: "m-" + text, Reply: events.Reply{Content: text}}
}

func turnDone(text string) *events.LLMMessageComplete {
	return &events.LLMMessageComplete{MessageID: "m-" + text, Reply: events.Reply{Content: text}}
}

func called(ids ...string) events.ToolCallReply {
	reply := events.ToolCallReply{Confidence: 1}
	for _, id := range ids {
		reply.Calls = append(reply.Calls, events.Call{ID: id, Name: "search", Arguments: "{}"})
	}
	return reply
}
