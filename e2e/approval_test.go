package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDecisionsAfterEverythingWasKilled lets runs wait for a human, kills every
// process, the server first, and starts all of them again: the decisions are
// taken, and acted on, as if nothing had happened.
func TestDecisionsAfterEverythingWasKilled(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{ackWait: quickAckWait, tools: []string{"pay"}, toolSettings: map[string]string{"pay": "effect: once, risk: high"}})
	s := c.stage()
	var mu sync.Mutex
	paid := map[string]int{}
	c.tools.handle("pay", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paid[r.Header.Get("Idempotency-Key")]++
		_, _ = io.WriteString(w, "paid")
	})
	held := agent{Tools: []string{"pay"}, Approval: map[string]any{"policy": "above", "risk": "medium", "expires": "72h"}}
	approved := s.beginAgent(t, held, script{asks("p-1", "pay", `{"crowns": 1}`), says("It is paid.")})
	rejected := s.beginAgent(t, held, script{asks("p-1", "pay", `{"crowns": 2}`), says("It is not paid.")})
	two := asks("p-1", "pay", `{"crowns": 3}`)
	two.calls = append(two.calls, asks("p-2", "pay", `{"crowns": 4}`).calls...)
	batch := s.beginAgent(t, held, script{two, says("One of two is paid.")})
	for run, calls := range map[string]int{approved: 1, rejected: 1, batch: 2} {
		s.awaitHeld(t, run, calls)
	}
	// One call of the batch is decided before, the other one after.
	require.NoError(t, s.decide(t, batch, "p-1", "approved", "Ann"))

	c.restart()

	require.NoError(t, s.decide(t, approved, "p-1", "approved", "Ann"))
	require.NoError(t, s.decide(t, rejected, "p-1", "rejected", "Ben"))
	require.NoError(t, s.decide(t, batch, "p-2", "rejected", "Ben"))
	for run, want := range map[string]map[string]string{
		approved: {"p-1": "paid"}, rejected: {"p-1": "REJECTED: as asked"}, batch: {"p-1": "paid", "p-2": "REJECTED: as asked"},
	} {
		end, view := s.finish(t, run)
		require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
		for id, text := range want {
			require.Equal(t, text, view.Memory.ToolCalls[id].text(), id)
		}
	}
	require.Equal(t, map[string]int{approved + "/p-1": 1, batch + "/p-1": 1}, paid)
	var refusal *apiError
	require.ErrorAs(t, s.decide(t, approved, "p-1", "rejected", "Ben"), &refusal)
	require.Equal(t, http.StatusConflict, refusal.Status)
	var first struct{ Decision struct{ Decision, By string } }
	require.NoError(t, json.Unmarshal([]byte(refusal.Body), &first))
	require.Equal(t, "approved", first.Decision.Decision)
	require.Equal(t, "Ann", first.Decision.By)
	c.verifyAll()
}

// awaitHeld waits until so many calls of a run wait for a human.
func (s *stage) awaitHeld(t *testing.T, run string, calls int) {
	t.Helper()
	require.Eventually(t, func() bool {
		view, err := s.api.view(t.Context(), run)
		return err == nil && view.State == "waiting_for_human" && len(view.Memory.PendingApproval.Requests) == calls
	}, startTime, 10*time.Millisecond, "%d calls of run %s wait", calls, run)
}

// decide decides a call, over a gateway that may still be starting.
func (s *stage) decide(t *testing.T, run, call, decision, by string) error {
	body := map[string]string{"call_id": call, "decision": decision, "by": by}
	if decision == "rejected" {
		body["reason"] = "as asked"
	}
	return s.api.persist(t.Context(), http.MethodPost, "/v1/runs/"+run+"/decisions", body, nil)
}

// text is what the model was told of a call.
func (c callRecord) text() string {
	switch {
	case c.Result == nil:
		return ""
	case c.Result.Success != nil:
		return c.Result.Success.Content
	}
	return strings.TrimSpace(c.Result.Failed.Error)
}
