package agent_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Agents are added while others run: with models, tools, pools and sub-agents of their own.
// What is in flight ends where it is, once.
func TestAgentsAreAddedToAServer(t *testing.T) {
	t.Parallel()
	began, hold := make(chan struct{}, 10), make(chan struct{})
	slow := agent.Func("slow", "Waits.", func(context.Context, query) (string, error) {
		began <- struct{}{}
		<-hold
		return "waited", nil
	})
	first := built(t, agent.New("first").LLM(callsThen(one("a", "slow", `{"q":"x"}`))).Tool(slow))
	server, err := agent.Serve(t.Context(), first.Agent)
	require.NoError(t, err)
	r, err := first.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	<-began

	gpu := agent.Func("draw", "Draws.", func(context.Context, query) (string, error) { return "drawn", nil }, func(d *tool.Definition) { d.Pool = "gpu" })
	helper := built(t, agent.New("helper").LLM(callsThen(one("h", "draw", `{"q":"x"}`))).Tool(gpu))
	second := built(t, agent.New("second").LLM(callsThen(one("s", "helper", `{"task":"help"}`))).Subagent(helper.Agent))
	require.NoError(t, server.Add(t.Context(), second.Agent))
	answer, err := second.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, longAnswer, answer)
	require.Equal(t, "SUCCESS: "+longAnswer, second.Memory().History[0].Observation)

	close(hold)
	answer, err = r.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, longAnswer, answer)
	require.Equal(t, "SUCCESS: waited", r.Memory().History[0].Observation)
	require.Empty(t, began, "it ran once")
	require.NotContains(t, eventsOf(r.Trace()), "LlmAttemptFailed")
	require.NoError(t, r.Release())

	var wrong *agent.BuildError
	require.ErrorAs(t, server.Add(t.Context(), second.Agent), &wrong)
	require.ErrorAs(t, server.Add(t.Context(), built(t, agent.New("third").LLM(callsThen()).Graph(reviewed(strict))).Agent), &wrong)
	_, err = first.Run(t.Context(), task)
	require.NoError(t, err, "the others are served as before")
	require.NoError(t, server.Close())
	require.ErrorContains(t, server.Add(t.Context(), helper.Agent), "closed")
}

// silent is a source that never names its tools.
type silent struct{ began, ended chan struct{} }

func (silent) Name() string    { return "silent" }
func (silent) Pools() []string { return nil }

func (s silent) Run(ctx context.Context, _ *slog.Logger, _ func([]tool.Tool)) {
	defer close(s.ended)
	close(s.began)
	<-ctx.Done()
}

// Close ends an addition that waits for its tools, and leaves nothing of it running.
func TestCloseWhileAgentsAreAdded(t *testing.T) {
	t.Parallel()
	server, err := agent.Serve(t.Context(), built(t, agent.New("first").LLM(callsThen())).Agent)
	require.NoError(t, err)
	source := silent{make(chan struct{}), make(chan struct{})}
	second := built(t, agent.New("second").LLM(callsThen()).Source(func() (tool.Source, error) { return source, nil }, "never"))
	added := make(chan error, 1)
	go func() { added <- server.Add(context.Background(), second.Agent) }()
	<-source.began
	require.NoError(t, server.Close())
	select {
	case <-source.ended:
	default:
		require.Fail(t, "the source still runs")
	}
	require.ErrorContains(t, <-added, "closed")
}

// A server is a handler in an application's own server, and has a URL if it listens.
func TestServerOverHTTP(t *testing.T) {
	t.Parallel()
	a := built(t, agent.New("greeter").LLM(scripted.NewMock(scripted.Say("Hello."))))
	server, err := agent.Serve(t.Context(), a.Agent)
	require.NoError(t, err)
	require.Empty(t, server.URL())
	r, err := a.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	_, err = r.Wait(t.Context())
	require.NoError(t, err)
	w := httptest.NewRecorder()
	server.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/runs/"+r.ID(), nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var state struct {
		State string `json:"state"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &state))
	require.Equal(t, "done", state.State)
	require.NoError(t, r.Release())
	require.NoError(t, server.Close())

	server, err = agent.ServeHTTP(t.Context(), agent.HTTP{}, built(t, agent.New("other").LLM(scripted.NewMock())).Agent)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(server.URL(), "http://127.0.0.1:"))
	answer, err := http.Get(server.URL() + "/healthz")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, server.Close())
}
