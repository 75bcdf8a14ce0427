package host_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

type lookAt struct {
	At string `json:"at"`
}

// boundHost runs all roles with two providers whose models bind their thinking to what
// stood before it.
func boundHost(t *testing.T, claude, spare http.Handler) *control.Controller {
	t.Helper()
	callers := map[string]llm.Caller{}
	for name, handler := range map[string]http.Handler{"claude": claude, "spare": spare} {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		caller, err := anthropic.New(anthropic.Options{BaseURL: server.URL, Model: "claude-fable-5-1"})
		require.NoError(t, err)
		t.Cleanup(caller.Close)
		callers[name] = caller
	}
	look, err := typed.New(tool.Definition{Name: "look", Description: "Looks.", Effect: tool.Pure},
		func(context.Context, lookAt) (string, error) { return "not here", nil })
	require.NoError(t, err)
	registry, err := toolset.New(look)
	require.NoError(t, err)
	h, _ := running(t, host.Options{Bus: simtest.New(simtest.Options{Shards: 2}), Tools: registry, Providers: callers})
	return h.Gateway()
}

func startBound(t *testing.T, g *control.Controller, change func(*events.Agent)) string {
	t.Helper()
	def := events.DefaultAgent()
	def.Name, def.LLM.Provider, def.Tools, def.SystemPrompt = "bound", "claude", []string{"look"}, "Be brief."
	if change != nil {
		change(&def)
	}
	started, err := g.Start(t.Context(), "", control.StartRequest{Agent: &def, Task: "Where is it?"})
	require.NoError(t, err)
	return started.RunID
}

// A fork goes on with the thinking that it shares with its parent, and one that was patched
// goes on without it.
func TestForksOfBoundThinking(t *testing.T) {
	t.Parallel()
	model := &llmtest.Binding{Calls: 3}
	g := boundHost(t, model, model)
	parent := startBound(t, g, nil)
	whole := carry(t, g, parent)
	require.Nil(t, whole.Error)
	require.Equal(t, []int{0, 2, 4, 6}, model.Thoughts())
	for at := uint64(2); at < whole.N; at++ {
		for patch, kept := range map[string]bool{`{}`: true, `{"task": "Where is the other one?"}`: false} {
			fork, err := g.Fork(t.Context(), "", parent, forking.Request{At: at, Patch: json.RawMessage(patch)})
			require.NoError(t, err)
			mem := carry(t, g, fork.RunID)
			require.Nil(t, mem.Error, "at %d: %s", at, patch)
			thoughts := model.Thoughts()
			require.Equal(t, kept, len(thoughts) > 0 && thoughts[0] > 0, "at %d: %s: %v", at, patch, thoughts)
		}
	}
}

// A reply of another model in between has thinking that is not sent, and leaves the first
// model's as it was.
func TestBoundThinkingAroundAFallback(t *testing.T) {
	t.Parallel()
	model, spare := &llmtest.Binding{Calls: 3}, &llmtest.Binding{}
	var asked atomic.Int32
	refuses := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) != 3 {
			model.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"type":"message","model":"m","content":[],"stop_reason":"refusal","usage":{"input_tokens":1,"output_tokens":1}}`)
	})
	g := boundHost(t, refuses, spare)
	mem := carry(t, g, startBound(t, g, func(def *events.Agent) {
		def.Models = map[string]events.Models{"default": {{Model: "claude-fable-5-1"}, {Provider: "spare", Model: "claude-opus-5-5"}}}
	}))
	require.Nil(t, mem.Error)
	require.Equal(t, "It is here.", *mem.FinalAnswer)
	require.Equal(t, []int{0}, spare.Thoughts())
	require.Equal(t, []int{0, 2, 4, 6}, model.Thoughts())
}
