package e2e

import (
	"encoding/json"
	"errors"
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

// TestManyDecideAtOnce lets several people decide the same call at the same
// moment over two gateways: one decision holds, and everybody else is told it.
func TestManyDecideAtOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{gateways: 2, tools: []string{"pay"}})
	s := c.stage()
	c.tools.handle("pay", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "paid") })
	run := s.beginAgent(t, agent{Tools: []string{"pay"}, Approval: map[string]any{"policy": "always"}},
		script{asks("p-1", "pay", `{"crowns": 1}`), says("It is decided.")})
	s.awaitHeld(t, run, 1)
	other := newAPI(t, "http://"+c.gatewayAddresses[1])
	other.awaitReady()
	var holds, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		desk := &stage{api: []*api{c.api, other}[i%2]}
		all.Go(func() {
			err := desk.decide(t, run, "p-1", []string{"approved", "rejected"}[i/4], "person")
			var refusal *apiError
			switch {
			case err == nil:
				holds.Add(1)
			case errors.As(err, &refusal) && refusal.Status == http.StatusConflict && strings.Contains(refusal.Body, `"decision":{"call_id":"p-1"`):
				refused.Add(1) // the run may have ended meanwhile, and the first decision is told all the same
			default:
				t.Errorf("person %d: %v", i, err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, holds.Load())
	require.EqualValues(t, 7, refused.Load())
	end, _ := s.finish(t, run)
	require.Equal(t, "LlmFinalAnswer", end.Type, string(end.Data))
	c.verifyAll()
}

// TestCancelInTheMiddleOfCalls cancels a run whose calls are in flight: they are
// broken off at once, and nothing is appended after the end.
func TestCancelInTheMiddleOfCalls(t *testing.T) {
	t.Parallel()
	c := startCluster(t, setup{tools: []string{"slow"}})
	s := c.stage()
	begun, ended := make(chan struct{}, 4), make(chan struct{}, 4)
	c.tools.handle("slow", func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	two := asks("c-1", "slow", `{}`)
	two.calls = append(two.calls, asks("c-2", "slow", `{}`).calls...)
	run := s.begin(t, script{two}, "slow")
	await(t, begun, "the first call")
	await(t, begun, "the second call")
	require.NoError(t, c.api.call(t.Context(), http.MethodPost, "/v1/runs/"+run+"/cancel", map[string]string{"by": "Ann", "reason": "enough"}, nil))
	began := time.Now()
	await(t, ended, "one call is cancelled")
	await(t, ended, "the other call is cancelled")
	require.Less(t, time.Since(began), 20*time.Second, "the tools have 30 s")
	end, view := s.finish(t, run)
	require.Equal(t, "Cancelled", end.Type)
	require.Equal(t, "cancelled", view.State)
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
