package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// A command does not know the stall time of the gateways that run: it has them
// look at its run soon, and they set the timer again by their own.
func TestCommandsHaveTheirRunsLookedAtSoon(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet})
	require.NoError(t, err)
	require.NoError(t, announce.NewDirectory(bus, nil).AnnounceProviders(t.Context(), "p", []string{"openai"}))
	c := &client{Client: feature.Client{Bus: bus}, machine: reducer.NewMachine(reducer.MachineOptions{})}
	require.NoError(t, c.newControl(quiet))
	a := events.DefaultAgent()
	a.Name, a.LLM.Provider = "tester", "openai"
	parent, err := c.controller.Start(t.Context(), "", control.StartRequest{Agent: &a, Task: "Do it."})
	require.NoError(t, err)
	fork, err := c.controller.Fork(t.Context(), "", parent.RunID, forking.Request{At: 1})
	require.NoError(t, err)

	for _, id := range []string{parent.RunID, fork.RunID} {
		require.WithinDuration(t, time.Now().Add(firstCheck), setFor(t.Context(), t, bus, id), 20*time.Second)
	}
}

// setFor is when the run's timer fires.
func setFor(ctx context.Context, t *testing.T, bus *natsbus.Bus, id string) time.Time {
	t.Helper()
	js, err := jetstream.New(bus.Conn())
	require.NoError(t, err)
	stream, err := js.Stream(ctx, "MOORE_TIMERS")
	require.NoError(t, err)
	msg, err := stream.GetLastMsgForSubject(ctx, "timers.set.default."+id+".run")
	require.NoError(t, err)
	at, err := time.Parse("@at "+time.RFC3339Nano, msg.Header.Get("Nats-Schedule"))
	require.NoError(t, err)
	return at
}
