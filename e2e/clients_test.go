package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClientToolsAfterEverythingWasKilled: calls wait for their client while the gateway, and
// then every process, is killed. The results are taken as if nothing had happened, a reply
// that mixes calls of a client and of an actor is joined, a result may come with a message in one
// request, and a deadline that passed meanwhile is made up for.
func TestClientToolsAfterEverythingWasKilled(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{gateways: 1, ackWait: quickAckWait, tools: []string{"look"}, toolSettings: map[string]string{"look": "effect: pure"}})
	s := c.stage()
	c.tools.handle("look", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "seen") })
	pick := func(timeout string) agent {
		return agent{Tools: []string{"look"}, ClientTools: []clientTool{{
			Name: "pick", Description: "Picks.", Schema: map[string]any{"type": "object"}, Timeout: timeout,
		}}}
	}
	single := s.beginAgent(t, pick("1h"), script{asks("p-1", "pick", `{}`), says("It is blue.")})
	mixed := asks("p-1", "pick", `{}`)
	mixed.calls = append(mixed.calls, asks("p-2", "look", `{}`).calls...)
	batch := s.beginAgent(t, pick("1h"), script{mixed, says("One is blue, one is seen.")})
	beside := s.beginAgent(t, pick("1h"), script{asks("p-1", "pick", `{}`), says("Blue.")})
	late := s.beginAgent(t, pick("20s"), script{asks("p-1", "pick", `{}`), says("Nobody picked.")})
	for run, events := range map[string]uint64{single: 2, batch: 5, beside: 2, late: 2} {
		require.Eventually(t, func() bool {
			view, err := s.api.view(t.Context(), run)
			return err == nil && view.N >= events
		}, startTime, 10*time.Millisecond, "run %s waits for its client", run)
	}
	c.replace("gateway", 0)
	s.api.awaitReady()
	began := `[{"type":"tool-call-started","toolCallId":"p-1"}]`
	require.NoError(t, s.post(t, single, began))

	c.restart()

	result := `[{"type":"tool-call-result","toolCallId":"p-1","result":{"isSuccess":true,"content":"blue"}}]`
	together := strings.TrimSuffix(result, "]") + `,{"type":"user-message","messageId":"m","content":"be short"}]`
	for range 2 {
		require.NoError(t, s.post(t, single, result))
		require.NoError(t, s.post(t, batch, together))
		require.NoError(t, s.post(t, beside, together))
	}
	for run, want := range map[string]map[string]string{single: {"p-1": "blue"}, batch: {"p-1": "blue", "p-2": "seen"}, beside: {"p-1": "blue"}, late: {}} {
		end, view := s.finish(t, run)
		require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
		for id, text := range want {
			require.Equal(t, text, view.Memory.ToolCalls[id].text(), id)
		}
		if run == late {
			require.Contains(t, view.Memory.ToolCalls["p-1"].text(), "the client did not answer pick in time")
		}
	}
	var refusal *apiError
	require.ErrorAs(t, s.post(t, late, result), &refusal)
	require.Equal(t, http.StatusConflict, refusal.Status)
	require.Contains(t, refusal.Body, `"already_answered"`)
	c.verifyAll()
}

// post posts inputs, over a gateway that may still be starting.
func (s *stage) post(t *testing.T, run, inputs string) error {
	t.Helper()
	return s.api.persist(t.Context(), http.MethodPost, "/v1/runs/"+run+"/inputs", []byte(inputs), nil)
}
