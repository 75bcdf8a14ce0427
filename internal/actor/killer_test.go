package actor_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
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
	conn, err := natsbus.Connect(ctx, natsbus.ConnectOptions{URL: url})
	if err != nil {
		return err
	}
	bus, err := natsbus.Open(ctx, conn, natsbus.Options{})
	if err != nil {
		return err
	}
	registry, err := tool.NewRegistry(
		pure("kill", "gpu", func(context.Context, tool.Call) (string, error) { os.Exit(7); return "", nil }),
		pure("fine", "gpu", says("done")),
	)
	if err != nil {
		return err
	}
	a, err := actor.New(actor.Config{
		Base: worker.Base{Instance: "killer", Store: runlog.New(runlog.Options{Log: bus}), Queue: bus, Feed: bus}, Directory: bus, Tools: registry,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// A call that kills its process, again and again, is given up; calls of other
// runs in the same pool are answered meanwhile.
func TestCallThatKillsItsProcessIsGivenUp(t *testing.T) {
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
	require.Equal(t, reducer.CodeAttemptsExhausted, mem.Control.Last.Code)
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
