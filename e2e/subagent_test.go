package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// define stores an agent whose model is p.
func (c *cluster) define(t *testing.T, name string, tools []string, p player) {
	t.Helper()
	c.model.play(name, p)
	require.NoError(t, c.api.call(t.Context(), http.MethodPut, "/v1/agents/"+name, agent{
		Name: name, SystemPrompt: "You are " + name + ".", LLM: map[string]any{"provider": "openai"},
		Models: map[string]string{"default": name}, Tools: tools,
	}, nil))
}

// opening is what a run's first event says.
type opening struct {
	Agent  struct{ Name string } `json:"agent"`
	Parent *struct {
		Run   string `json:"run"`
		Call  string `json:"call_id"`
		Depth int    `json:"depth"`
	} `json:"parent"`
}

// subruns returns the id and the first event of the run that answers each call of an
// agent on the bus, by the parent's id and the call's. Two runs for one call fail the test.
func (c *cluster) subruns(t *testing.T) (ids map[string]string, openings map[string]opening) {
	t.Helper()
	var page struct {
		Runs []struct {
			ID string `json:"run_id"`
		} `json:"runs"`
	}
	require.NoError(t, c.api.get(t.Context(), "/v1/runs?limit=1000", &page))
	ids, openings = map[string]string{}, map[string]opening{}
	for _, run := range page.Runs {
		status, body, err := c.api.do(t.Context(), http.MethodGet, "/v1/runs/"+run.ID+"/events", nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status, string(body))
		line, _, _ := strings.Cut(string(body), "\n")
		var e event
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		var first opening
		require.NoError(t, json.Unmarshal(e.Data, &first))
		if first.Parent == nil {
			continue
		}
		call := first.Parent.Run + "/" + first.Parent.Call
		require.NotContains(t, ids, call, "a call is answered by one run")
		ids[call], openings[call] = run.ID, first
	}
	return ids, openings
}

// TestAgentsAfterEverythingWasKilled kills every process while the sub-runs of a run
// and a sub-run of theirs work, and starts all of them again: each call has one
// sub-run, and every parent gets its answer.
func TestAgentsAfterEverythingWasKilled(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{ackWait: quickAckWait, tools: []string{"work"}, subagents: []string{"{agent: scout}", "{agent: lead}"}})
	s := c.stage()
	c.api.awaitTools([]string{"scout", "lead"})
	begun := make(chan struct{}, 16)
	var open atomic.Bool // lets the work end well
	c.tools.handle("work", func(w http.ResponseWriter, r *http.Request) {
		if open.Load() {
			_, _ = io.WriteString(w, "worked")
			return
		}
		begun <- struct{}{}
		<-r.Context().Done()
	})
	c.define(t, "scout", []string{"work"}, script{asks("s-1", "work", `{}`), says("I scouted.")})
	c.define(t, "lead", []string{"scout"}, script{asks("l-1", "scout", `{"task": "Scout for me."}`), says("I led.")})
	two := asks("c-1", "scout", `{"task": "Scout."}`)
	two.calls = append(two.calls, asks("c-2", "lead", `{"task": "Lead."}`).calls...)
	chief := s.begin(t, script{two, says("Both have answered.")}, "scout", "lead")
	await(t, begun, "the first scout works")
	await(t, begun, "the second scout works")
	open.Store(true)
	c.restart()

	end, view := s.finish(t, chief)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	require.Equal(t, "I scouted.", view.Memory.ToolCalls["c-1"].text())
	require.Equal(t, "I led.", view.Memory.ToolCalls["c-2"].text())
	ids, openings := c.subruns(t)
	require.Len(t, ids, 3)
	nested := openings[ids[chief+"/c-2"]+"/l-1"]
	require.Equal(t, 2, nested.Parent.Depth)
	require.Equal(t, "scout", nested.Agent.Name)
	c.verifyAll()
}
