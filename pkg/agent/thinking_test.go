package agent_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
)

// A model that binds its thinking to all that stood before gets back what it wrote for as
// long as the view only grows. When the window moves, it gets none, and the run goes on.
func TestBoundThinkingInARun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		window int
		want   []int
	}{
		{"the whole conversation", 0, []int{0, 2, 4, 6, 8}},
		{"a moving window", 4, []int{0, 2, 4, 6, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &llmtest.Binding{Calls: 4}
			server := httptest.NewServer(s)
			t.Cleanup(server.Close)
			model, err := anthropic.New(anthropic.Options{BaseURL: server.URL, Model: "claude-fable-5-1"})
			require.NoError(t, err)
			t.Cleanup(model.Close)
			type place struct {
				At string `json:"at"`
			}
			a, err := agent.New("agent").LLM(model).
				ContextWindow(tt.window).
				Tool(agent.Func("look", "Looks.", func(context.Context, place) (string, error) { return "not here", nil }, agent.Pure)).
				Build()
			require.NoError(t, err)
			answer, err := a.Run(t.Context(), task)
			require.NoError(t, err)
			require.Equal(t, "It is here.", answer)
			require.Equal(t, tt.want, s.Thoughts())
		})
	}
}
