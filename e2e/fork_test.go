package e2e

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestForksOverProcesses forks a run after each of its events, through a single
// call, a batch over the pools of two actors and a call that waits for a human:
// the processes carry every fork to the same answer, and its tools are called
// under keys of its own (the tool server holds them to that).
func TestForksOverProcesses(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{
		actorPools: []string{"default", "remote"}, tools: []string{"near", "far", "asked"},
		toolSettings: map[string]string{"far": "effect: once, pool: remote"},
	})
	s := c.stage()
	for _, tool := range []string{"near", "far", "asked"} {
		c.tools.handle(tool, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, tool+" said") })
	}
	batch := modelReply{calls: append(asks("b", "near", "{}").calls, asks("c", "far", "{}").calls...)}
	parent := newRunID()
	c.model.play("scripted-"+parent, script{asks("a", "near", "{}"), batch, asks("d", "asked", "{}"), says("All have spoken.")})
	require.NoError(t, c.api.start(t.Context(), runRequest{RunID: parent, Task: "Ask them all.", Agent: agent{
		Name: "forked", LLM: map[string]any{"provider": "openai"}, Models: map[string]string{"default": "scripted-" + parent},
		Tools: []string{"near", "far", "asked"}, Approval: map[string]any{"policy": "tools", "tools": []string{"asked"}},
	}}))
	c.carry(parent)
	whole, err := s.api.view(t.Context(), parent)
	require.NoError(t, err)
	require.Equal(t, "All have spoken.", *whole.Memory.FinalAnswer)

	begun := map[string]bool{}
	for at := uint64(1); at < whole.N; at++ {
		var fork struct {
			RunID string `json:"run_id"`
			State string `json:"state"`
		}
		require.NoError(t, c.api.call(t.Context(), http.MethodPost, "/v1/runs/"+parent+"/fork", map[string]any{"at": at}, &fork))
		begun[fork.State] = true
		c.carry(fork.RunID)
		view, err := c.api.view(t.Context(), fork.RunID)
		require.NoError(t, err)
		require.Equal(t, "done", view.State, "forked at %d", at)
		require.Equal(t, "All have spoken.", *view.Memory.FinalAnswer)
		require.Len(t, view.Memory.History, 4, "forked at %d", at)
	}
	require.Subset(t, begun, map[string]bool{
		"planning": true, "acting": true, "parallel_acting": true, "waiting_for_human": true, "observing": true,
	})
	c.verifyAll()
}

// carry takes a run to its end and approves what waits on the way.
func (c *cluster) carry(run string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	asked := false
	end, err := c.api.follow(ctx, run, func(e *event) error {
		if asked || e.To != "waiting_for_human" {
			return nil
		}
		asked = true
		return c.api.call(ctx, http.MethodPost, "/v1/runs/"+run+"/decisions",
			map[string]any{"call_id": "d", "decision": "approved", "by": "ann"}, new(map[string]any))
	})
	require.NoError(c.t, err)
	require.Equal(c.t, "LlmFinalAnswer", end.Type, string(end.Data))
}
