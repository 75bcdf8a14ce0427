package host_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// TestDeadlineCancelsTheTool: a run comes to its deadline while a tool runs, on
// a real server.
func TestDeadlineCancelsTheTool(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan error, 1)
	slow, err := typed.New(tool.Definition{Name: "slow", Description: "Takes its time.", Effect: tool.Once},
		func(ctx context.Context, _ query) (string, error) {
			close(began)
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			ended <- ctx.Err()
			return "", ctx.Err()
		})
	require.NoError(t, err)
	mock := scripted.NewMock(llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: "slow", Arguments: `{"q":"x"}`}}})
	h := hostOnServer(t, slow, mock)

	def := events.DefaultAgent()
	def.Name, def.LLM.Provider, def.Tools = "patient", "mock", []string{"slow"}
	def.Budget = &events.Budget{MaxWallTime: events.Duration(2 * time.Second)}
	started, err := h.Gateway().Start(t.Context(), "", control.StartRequest{Agent: &def, Task: "wait"})
	require.NoError(t, err)
	<-began
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(50 * time.Second):
		require.Fail(t, "the tool goes on")
	}
	state := stateOf(t, h.Gateway(), started.RunID)
	require.Equal(t, events.Errored, state.State)
	var mem struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	require.NoError(t, json.Unmarshal(state.Memory, &mem))
	require.Equal(t, "budget_wall_time", mem.Error.Code)
	due := state.Started.Add(2 * time.Second)
	require.WithinRange(t, state.Updated, due.Add(-50*time.Millisecond), due.Add(20*time.Second))
}

// hostOnServer runs all roles on an embedded server.
func hostOnServer(t *testing.T, one tool.Tool, mock llm.Caller) *host.Host {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	registry, err := tool.NewRegistry(one)
	require.NoError(t, err)
	h, _ := running(t, host.Options{Bus: bus, Tools: registry, Providers: map[string]llm.Caller{"mock": mock}})
	return h
}
