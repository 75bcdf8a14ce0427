package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// TestAToolFilesOwnApproval: calls wait by the policy of the actor's tool file, whatever an agent or
// a patch says. A run is not forked while an approved call may still take effect.
func TestAToolFilesOwnApproval(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{tools: []string{"pay", "look"}, toolSettings: map[string]string{"pay": "effect: once"},
		toolApproval: `{policy: expr, expr: 'tool == "pay" && arguments.crowns > 1'}`})
	s := c.stage()
	pays, paid := make(chan struct{}), make(chan struct{})
	var payments atomic.Int64
	c.tools.handle("pay", func(w http.ResponseWriter, _ *http.Request) {
		payments.Add(1)
		pays <- struct{}{}
		<-paid
		_, _ = io.WriteString(w, "paid")
	})
	c.tools.handle("look", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "seen") })
	play := script{asks("l-1", "look", "{}"), asks("p-1", "pay", `{"crowns": 2}`), says("It is paid.")}
	for name, policy := range map[string]map[string]any{"none": nil, "never": {"policy": "never"}, "by an expression": {"policy": "expr", "expr": "false"}} {
		run := s.beginAgent(t, agent{Tools: []string{"pay", "look"}, Approval: policy}, play)
		s.awaitHeld(t, run, 1)
		view, err := s.api.view(t.Context(), run)
		require.NoError(t, err)
		require.Equal(t, "seen", view.Memory.ToolCalls["l-1"].text(), "%s: others do not wait", name)
		require.NoError(t, s.decide(t, run, "p-1", "rejected", "Ben"))
		s.finish(t, run)
	}

	run := s.beginAgent(t, agent{Tools: []string{"pay", "look"}}, play)
	s.awaitHeld(t, run, 1)
	waits, err := s.api.view(t.Context(), run)
	require.NoError(t, err)
	fork := func(at uint64, patch string) (string, error) {
		var made struct {
			RunID string `json:"run_id"`
		}
		err := s.api.call(t.Context(), "POST", "/v1/runs/"+run+"/fork", map[string]any{"at": at, "patch": json.RawMessage(patch)}, &made)
		return made.RunID, err
	}
	patched, err := fork(1, `{"approval": {"policy": "never"}}`)
	require.NoError(t, err)
	s.awaitHeld(t, patched, 1)
	require.Zero(t, payments.Load())

	require.NoError(t, s.decide(t, run, "p-1", "approved", "Ann"))
	<-pays
	during, err := s.api.view(t.Context(), run)
	require.NoError(t, err)
	_, err = fork(during.N, `{}`)
	var refusal *apiError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, http.StatusConflict, refusal.Status)
	require.Contains(t, refusal.Body, `"approval_open"`)
	_, err = fork(waits.N, `{}`)
	require.NoError(t, err, "before the approval")
	close(paid)
	s.finish(t, run)
	ended, err := s.api.view(t.Context(), run)
	require.NoError(t, err)
	_, err = fork(ended.N-2, `{}`)
	require.NoError(t, err, "after the result")
	require.EqualValues(t, 1, payments.Load())
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
