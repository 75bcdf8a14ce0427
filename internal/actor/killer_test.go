package actor_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// killerURL is the variable that makes this test's binary an actor on the bus
// that it names, of which one tool kills the process.
const killerURL = "MOOREBUS_TEST_KILLER"

func TestMain(m *testing.M) {
	if url := os.Getenv(killerURL); url != "" {
		fmt.Fprintln(os.Stderr, beKiller(url))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func beKiller(url string) error {
	ctx := context.Background()
	conn, err := natsconn.Connect(ctx, natsconn.ConnectOptions{URL: url})
	if err != nil {
		return err
	}
	bus, err := natsbus.Open(ctx, conn, natsbus.Options{})
	if err != nil {
		return err
	}
	registry, err := toolset.New(
		pure("kill", "gpu", func(context.Context, tool.Call) (string, error) { os.Exit(7); return "", nil }),
		pure("fine", "gpu", says("done")),
	)
	if err != nil {
		return err
	}
	a, err := actor.New(actor.Config{
		Base: worker.Base{Instance: "killer", Store: runlog.New(runlog.Options{Log: bus}), Queue: bus, Feed: bus}, KV: bus, Tools: registry,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// A call that kills its process, again and again, is given up; calls of other
// runs in the same pool are answered meanwhile.
func TestCallThatKillsItsProcessIsGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it builds and kills processes
	}
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true, Pools: []string{"gpu"}, AckWait: 500 * time.Millisecond}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	store := runlog.New(runlog.Options{Log: bus})
	killer := callsOne(t, store, "kill")
	stop := supervise(t, server.ClientURL())
	bystanders := 0
	for stateOf(t, store, killer) == events.Acting {
		other := callsOne(t, store, "fine")
		require.Eventually(t, func() bool { return stateOf(t, store, other) == events.Observing }, time.Minute, 10*time.Millisecond,
			"nobody waits for the one that kills")
		bystanders++
	}
	deaths := stop()
	run := store.Acquire(killer)
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	mem := run.Memory()
	require.Equal(t, codes.AttemptsExhausted, mem.Control.Last.Code)
	require.Contains(t, *mem.LastObservation, "lost its worker 11 times")
	require.GreaterOrEqual(t, deaths, 11)
	require.Positive(t, bystanders, "others went on meanwhile")
	t.Logf("%d deaths, %d other runs", deaths, bystanders)
}

// supervise keeps an actor with a deadly tool up until stop is called, which says
// how often that tool killed it.
func supervise(t *testing.T, url string) (stop func() int) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		deaths := 0
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, exe)
			cmd.Env = append(os.Environ(), killerURL+"="+url)
			_ = cmd.Run() // the state says how it ended
			if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 7 {
				deaths++
			}
		}
		ended <- deaths
	}()
	stopped := -1
	stop = func() int {
		if stopped < 0 {
			cancel()
			stopped = <-ended
		}
		return stopped
	}
	t.Cleanup(func() { stop() })
	return stop
}

// A pool's max ack pending bounds its calls over all actors, each on a connection
// of its own.
func TestPoolRunsNoMoreThanItsMaxAckPending(t *testing.T) {
	t.Parallel()
	const most, runs = 3, 24
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	open := func() *natsbus.Bus {
		conn, err := server.Connect()
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true, PoolMaxAckPending: map[string]int{"gpu": most}}))
		b, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: time.Minute})
		require.NoError(t, err)
		return b
	}
	var now, peak atomic.Int64
	started, release := make(chan struct{}, runs), make(chan struct{})
	crunch := pure("crunch", "gpu", func(context.Context, tool.Call) (string, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		started <- struct{}{}
		<-release
		return "done", nil
	})
	store := runlog.New(runlog.Options{Log: open()})
	var ids []events.Run
	for range runs {
		ids = append(ids, callsOne(t, store, "crunch"))
	}
	for i := range 2 {
		startActor(t, open(), fmt.Sprint(i), crunch)
	}
	for range most {
		<-started
	}
	select {
	case <-started:
		require.Fail(t, "one call too many")
	case <-time.After(300 * time.Millisecond): // to start another one takes a fraction of that
	}
	close(release)
	for _, id := range ids {
		require.Eventually(t, func() bool { return stateOf(t, store, id) == events.Observing }, time.Minute, 10*time.Millisecond)
	}
	require.EqualValues(t, most, peak.Load())
}

// callsOne opens a run that calls a tool of the pool gpu.
func callsOne(t *testing.T, store *runlog.Store, name string) events.Run {
	t.Helper()
	start := reducertest.StartOf("crunch it", events.ModeTask)
	start.Tools = []events.ToolSpec{{Name: name, Effect: "pure", Pool: "gpu"}}
	reply := events.ToolCallReply{Calls: []events.Call{{ID: "a", Name: name, Arguments: "{}"}}, Confidence: 1}
	run := store.Acquire(store.Place(events.DefaultNamespace, store.NewID()))
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	for _, d := range []runlog.Draft{
		{Origin: events.Idle, Payload: start},
		{Origin: events.Planning, Payload: &events.LLMToolCall{ToolCallReply: reply}},
	} {
		_, err := run.Commit(t.Context(), runlog.Stamp{Source: "moorebus/test/1"}, func(*reducer.Memory) ([]runlog.Draft, error) {
			return []runlog.Draft{d}, nil
		})
		require.NoError(t, err)
	}
	return run.ID
}

// startActor runs an actor of one tool until the test ends.
func startActor(t *testing.T, bus *natsbus.Bus, instance string, f tool.Tool) {
	t.Helper()
	registry, err := toolset.New(f)
	require.NoError(t, err)
	a, err := actor.New(actor.Config{
		Base: worker.Base{Instance: instance, Store: runlog.New(runlog.Options{Log: bus}), Queue: bus, Feed: bus}, KV: bus, Tools: registry,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

func stateOf(t *testing.T, store *runlog.Store, id events.Run) events.State {
	t.Helper()
	run := store.Acquire(id)
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(t, run.Refresh(t.Context()))
	return run.Memory().State
}
