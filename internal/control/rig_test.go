package control_test

import (
	"context"
	"encoding/json"
	"flag"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/feature/clienttools"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func TestMain(m *testing.M) {
	commandtest.FilesInMemory()
	// Those that run beside others wait for a server or a clock most of the time.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for; nothing takes that long.
const patience = controltest.Patience

var (
	searchTool                 = controltest.SearchTool
	answered, turnDone, called = controltest.Answered, controltest.TurnDone, controltest.Called
	waiting                    = controltest.Waiting
)

// rig is a controller that runs on a bus, and the rest of the world.
type rig struct {
	controltest.World
	control *control.Controller
	// stop ends the controller.
	stop func()
}

func newRig(t *testing.T, b journal.Bus, tweak func(*control.Config)) *rig {
	cfg := control.Config{
		Base: worker.Base{Store: runlog.New(runlog.Options{Log: b}), Queue: b, Feed: b, Instance: "test"}, Timers: b, KV: b,
	}
	cfg.Fleet, _ = b.(ports.Fleet)
	tweak(&cfg)
	c, err := control.New(cfg)
	require.NoError(t, err)
	c.Admission = control.Unbounded{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return &rig{controltest.NewWorld(t, b), c, stop}
}

// start starts a run and returns its id.
func (r *rig) start(tweak func(*events.Agent)) string {
	r.T.Helper()
	require.NoError(r.T, announce.NewDirectory(r.Bus, nil).AnnounceProviders(r.T.Context(), "p", []string{"openai"}))
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = "tester", "openai"
	if tweak != nil {
		tweak(&a)
	}
	started, err := r.control.Start(r.T.Context(), "", control.StartRequest{Agent: &a, Task: "Do it."})
	require.NoError(r.T, err)
	return started.RunID
}

// natsBus is a real server with some pools besides the default one.
func natsBus(t *testing.T, pools ...string) journal.Bus {
	return controltest.NATS(t, natsbus.InitOptions{Pools: pools, AckWait: time.Second})
}

const stall = time.Hour

// timed is a bench in virtual time, with gateways that run and crash on it.
type timed struct {
	*workertest.Bench
	T *testing.T
}

// inTime runs a test on a journal in virtual time.
func inTime(t *testing.T, test func(t *testing.T, r *timed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &timed{T: t}
		r.Bench = workertest.New(t, simtest.Options{}, nil)
		test(t, r)
	})
}

// unwatched is a bus whose pools are not watched, for tests of something else: in weeks of virtual
// time the reads every second would be all that happens.
type unwatched struct{ kv.Store }

// running marks the context in which a gateway runs, which is not that of a request.
type running struct{}

// Each blocks where a gateway that runs reads who announced a pool.
func (u unwatched) Each(ctx context.Context, of kv.Bucket, pattern string) iter.Seq2[kv.Item, error] {
	if ctx.Value(running{}) != nil && strings.HasPrefix(of.Name, buckets.ToolsPrefix) {
		return func(yield func(kv.Item, error) bool) { <-ctx.Done(); yield(kv.Item{}, ctx.Err()) }
	}
	return u.Store.Each(ctx, of, pattern)
}

// serve runs a gateway on a process of its own until it is killed, crashes or
// the test ends.
func (r *timed) serve(tweak func(*control.Config)) (g *control.Controller, p *simtest.Process) {
	r.T.Helper()
	p = r.Journal.NewProcess()
	cfg := control.Config{
		Base: worker.Base{Store: r.NewStore(p), Queue: p, Feed: p, Instance: "test"}, Timers: p, KV: p, StallAfter: stall,
	}
	if tweak != nil {
		tweak(&cfg)
	}
	if cfg.PoolWait == 0 {
		cfg.KV = unwatched{cfg.KV}
	}
	g, err := control.New(cfg)
	require.NoError(r.T, err)
	g.Admission = control.Unbounded{}
	calls := clienttools.New(g)
	r.Go(func(ctx context.Context) error {
		err := worker.RunAll(context.WithValue(ctx, running{}, true), g.Run, calls.Run)
		select {
		case <-p.Dead():
			return nil // it ends as it can
		default:
			return err
		}
	})
	return g, p
}

var fetchTool = events.ToolSpec{
	Name: "fetch", Description: "Fetches.", Schema: json.RawMessage(`{"type":"object"}`), Effect: "pure", Pool: "web", Risk: "low",
}

// start starts a run of an agent through the gateway.
func (r *timed) start(g *control.Controller, tweak func(*events.Agent)) events.Run {
	r.T.Helper()
	run, err := r.tryStart(g, tweak)
	require.NoError(r.T, err)
	return run
}

func (r *timed) tryStart(g *control.Controller, tweak func(*events.Agent)) (events.Run, error) {
	r.T.Helper()
	require.NoError(r.T, announce.NewDirectory(r.Journal, nil).Announce(r.T.Context(), "default", "a", []events.ToolSpec{searchTool}))
	require.NoError(r.T, announce.NewDirectory(r.Journal, nil).Announce(r.T.Context(), "web", "b", []events.ToolSpec{fetchTool}))
	require.NoError(r.T, announce.NewDirectory(r.Journal, nil).AnnounceProviders(r.T.Context(), "p", []string{"openai"}))
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider, a.Tools = "tester", "openai", []string{"search", "fetch"}
	if tweak != nil {
		tweak(&a)
	}
	started, err := g.Start(r.T.Context(), "", control.StartRequest{Agent: &a, Task: "Do it."})
	return r.Store.Place(events.DefaultNamespace, started.RunID), err
}

func wallTime(d time.Duration) func(*events.Agent) {
	return func(a *events.Agent) { a.Budget = &events.Budget{MaxWallTime: events.Duration(d)} }
}

// ask makes the run wait for a human until some time from now; for 0 without a deadline.
func (r *timed) ask(run events.Run, within time.Duration, calls ...string) (deadline time.Time) {
	r.T.Helper()
	text := ""
	if deadline = time.Now().Add(within); within > 0 {
		text = deadline.UTC().Format(events.TimeFormat)
	}
	r.Append(run, events.Planning, waiting(text, "search", calls))
	return deadline
}

// sleep lets time pass, and then all work in flight finish.
func sleep(d time.Duration) {
	time.Sleep(d) // in the bubble
	synctest.Wait()
}

// at returns when the run's event of a type was made. The run must have exactly one.
func (r *timed) at(run events.Run, typ events.Type) time.Time {
	r.T.Helper()
	require.Equal(r.T, 1, r.Count(run, typ), "%v", r.Types(run))
	for _, e := range r.Events(run) {
		if e.Type() == typ {
			return e.Time
		}
	}
	return time.Time{}
}
