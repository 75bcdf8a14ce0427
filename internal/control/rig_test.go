package control_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func newRig(t *testing.T, b controltest.Bus, tweak func(*control.Config)) *rig {
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
	return &rig{controltest.NewWorld(t, b), c, stop}
}

// start starts a run and returns its id.
func (r *rig) start(tweak func(*events.Agent)) string {
	r.T.Helper()
	require.NoError(r.T, r.Bus.AnnounceProviders(r.T.Context(), "p", []string{"openai"}))
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
func natsBus(t *testing.T, pools ...string) controltest.Bus {
	return controltest.NATS(t, natsbus.InitOptions{Pools: pools, AckWait: time.Second})
}
