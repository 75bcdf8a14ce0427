package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/replay"
)

// A run is carried once more by the replies that its log holds, and takes the
// same way.
func TestRecordedRunTakesTheSameWay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: dir})
	require.NoError(t, err)
	defer server.Shutdown()
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{})
	require.NoError(t, err)

	mock := scripted.NewMock(
		scripted.Ask("search", `{"q":"a"}`), scripted.Ask("nope", `{}`), scripted.Say(""), scripted.Say("the answer"))
	onBus := func(b *agent.Builder) { b.Bus(bus) }
	first := build(t, mock, onBus)
	answer, err := first.Run(t.Context())
	require.NoError(t, err)

	run := events.NewRun(events.DefaultNamespace, first.Memory().RunID, bus.Shards())
	model, err := replay.Model(t.Context(), bus, reducer.NewMachine(reducer.MachineOptions{}), run)
	require.NoError(t, err)
	second := build(t, model, onBus)
	again, err := second.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, answer, again)
	require.Equal(t, eventsOf(first.Trace()), eventsOf(second.Trace()))
}
