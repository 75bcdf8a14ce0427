package httpapi_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
)

// waitingRuns returns all pages of one run each.
func (r *rig) waitingRuns() (all []control.WaitingRun) {
	r.T.Helper()
	for cursor := ""; ; {
		a := r.do("GET", "/v1/waiting?limit=1"+cursor, "")
		require.Equal(r.T, http.StatusOK, a.status, a.body)
		var page control.WaitingPage
		require.NoError(r.T, json.Unmarshal([]byte(a.body), &page))
		all = append(all, page.Runs...)
		if page.Next == "" {
			return all
		}
		cursor = "&cursor=" + url.QueryEscape(page.Next)
	}
}

func ids(runs []control.WaitingRun) (all []string) {
	for _, run := range runs {
		all = append(all, run.RunID)
	}
	return all
}

// The inbox has what waits for people alone, the soonest deadline first, and follows decisions.
func TestWaiting(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 2, func(t *testing.T, r *rig) {
		require.Empty(t, r.waitingRuns())
		deadline := func(in time.Duration) string { return time.Now().Add(in).UTC().Format(time.RFC3339) }
		first := r.held("pay", []string{"c1"})
		late := r.asked(waiting(deadline(2*time.Hour), "pay", []string{"c1"}))
		soon := waiting(deadline(time.Hour), "pay", []string{"c1", "c2"})
		soon.Requests[1].Asks, soon.Requests[1].Reason = true, "How much?"
		next := r.asked(soon)
		r.start("task")
		chat := r.start("chat")
		r.Happens(chat, events.Planning, turnDone("Well?"))

		all := r.waitingRuns()
		require.Equal(t, []string{next, late, first, chat}, ids(all))
		require.Equal(t, []control.WaitingCall{
			{CallID: "c1", Name: "pay", Arguments: `{"amount":1}`, Kind: "approval", Risk: "high", Reason: "always", Deadline: soon.Deadline, Schema: all[0].Calls[0].Schema},
			{CallID: "c2", Name: "pay", Arguments: `{"amount":1}`, Kind: "question", Risk: "high", Reason: "How much?", Deadline: soon.Deadline, Schema: all[0].Calls[0].Schema},
		}, all[0].Calls)
		require.JSONEq(t, string(payTool.Schema), string(all[0].Calls[0].Schema))
		require.Equal(t, "payer", all[0].Agent)
		require.Equal(t, "Pay.", all[0].Task)
		require.Equal(t, events.WaitingForHuman, all[0].State)
		require.WithinDuration(t, time.Now(), all[0].Since, patience)
		require.True(t, all[3].Message)
		require.Empty(t, all[3].Calls)

		require.Equal(t, http.StatusOK, r.decide(next, `{"call_id":"c1","decision":"rejected","by":"ann"}`).status)
		require.Equal(t, "c2", r.waitingRuns()[0].Calls[0].CallID)
		require.Equal(t, http.StatusOK, r.do("POST", "/v1/runs/"+late+"/cancel", "").status)
		require.Equal(t, []string{next, first, chat}, ids(r.waitingRuns()))
		for _, query := range []string{"limit=201", "cursor=x", "cursor=1.2.x", "state=done"} {
			r.fails(http.StatusBadRequest, refusal.CodeBadParameter, r.do("GET", "/v1/waiting?"+query, ""))
		}
	})
}
