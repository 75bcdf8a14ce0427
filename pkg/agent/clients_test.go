package agent_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

func clientTool(name string) events.ClientTool {
	return events.ClientTool{Name: name, Description: "Done by the client.", Schema: json.RawMessage(`{"type":"object"}`), Risk: "high"}
}

// The client carries out its calls, also those of sub-runs and after their approval. A result
// again is the same result.
func TestClientCalls(t *testing.T) {
	t.Parallel()
	named := func(name string, model llm.Caller) *agent.Builder {
		return agent.New(name).LLM(model).ClientTool(clientTool("locate"), clientTool("look")).Approval(events.Approval{Policy: events.ApproveTools, Tools: []string{"look"}})
	}
	helper := built(t, named("helper", callsThen(one("h", "locate", `{"of":"ann"}`))))
	both := append(one("a", "locate", `{"of":"bob"}`), one("b", "helper", `{"task":"find ann"}`)...)
	boss := built(t, named("boss", callsThen(both, one("c", "look", `{}`))).Subagent(helper.Agent))
	r, err := boss.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	go func() {
		for call := range r.Approvals(t.Context()) {
			_ = call.Approve(t.Context()) // an error keeps the run from its end
		}
	}()
	did := map[string]string{}
	for call, err := range r.ClientCalls(t.Context()) {
		require.NoError(t, err)
		require.Greater(t, time.Until(call.Deadline), time.Minute)
		did[call.CallID] = call.Tool + call.Arguments
		require.Equal(t, call.Run == r.ID(), call.CallID != "h")
		if call.CallID == "c" {
			require.NoError(t, call.Return(t.Context(), "", errors.New("it is dark")))
			continue
		}
		require.NoError(t, call.Return(t.Context(), "at home", nil))
		require.NoError(t, call.Return(t.Context(), "at home", nil), "again")
		var refused *agent.Refused
		require.ErrorAs(t, call.Return(t.Context(), "away", nil), &refused)
		require.Equal(t, "already_answered", refused.Code)
	}
	require.Equal(t, map[string]string{"a": `locate{"of":"bob"}`, "h": `locate{"of":"ann"}`, "c": "look{}"}, did)
	_, err = r.Wait(t.Context())
	require.NoError(t, err)
	history := r.Memory().History
	require.Equal(t, "SUCCESS: at home", history[0].Observation)
	require.Equal(t, "ERROR: it is dark", history[2].Observation)
	require.NoError(t, r.Release())
}

// A wait can end where the run needs its client, and Return names the call by its id.
func TestReturn(t *testing.T) {
	t.Parallel()
	a := built(t, agent.New("boss").LLM(callsThen(one("a", "locate", `{}`))).ClientTool(clientTool("locate")).Data(t.TempDir()))
	r, err := a.Start(t.Context(), agent.Task(task))
	require.NoError(t, err)
	_, err = r.Wait(t.Context(), agent.UntilInterrupt)
	var interrupted *agent.Interrupted
	require.ErrorAs(t, err, &interrupted)
	require.Equal(t, "a", interrupted.Calls[0].CallID)
	require.NoError(t, r.Release())

	r, err = a.Attach(t.Context(), r.ID())
	require.NoError(t, err)
	var refused *agent.Refused
	require.ErrorAs(t, r.Return(t.Context(), "none", "x", nil), &refused)
	require.Equal(t, "unknown_call", refused.Code)
	require.NoError(t, r.Return(t.Context(), "a", "here", nil))
	answer, err := r.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, longAnswer, answer)
	require.NoError(t, r.Release())
}
