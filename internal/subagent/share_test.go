package subagent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/pkg/events"
)

const asksTwo = `[{"calls":[{"name":"helper","arguments":{"task":"a"}},{"name":"helper","arguments":{"task":"b"}}],"usage":{"input":90,"output":10}},{"text":"Both in."}]`

// A budget is shared: each child gets its part of what is left, and what it used
// comes back to its parent.
func TestSharedBudget(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", asksTwo, func(a *events.Agent) {
			a.Budget = &events.Budget{MaxTotalTokens: 2100, MaxCostUSD: 3, MaxWallTime: events.Duration(time.Hour)}
		})
		r.define("helper", answers, func(a *events.Agent) { a.Budget = &events.Budget{MaxTotalTokens: 5000, MaxCostUSD: 1} })
		run := r.start("boss")
		mem := r.ends(run, time.Minute)
		require.Equal(t, events.Done, mem.State)
		require.Equal(t, 100+2*42, mem.TotalUsage.Total)
		for _, call := range []string{"call_1_1", "call_1_2"} {
			b := r.memory(child(run, call)).Budget
			require.LessOrEqual(t, b.MaxTotalTokens, 2000, "what is left")
			require.GreaterOrEqual(t, b.MaxTotalTokens, 1000, "and half of it while both are open")
			require.InDelta(t, 1, b.MaxCostUSD, 1e-9, "its own limit is the lower one")
			require.LessOrEqual(t, time.Duration(b.MaxWallTime), time.Hour)
			require.Greater(t, time.Duration(b.MaxWallTime), 59*time.Minute, "time is not divided: they run side by side")
		}
	})
}

func TestNothingLeftOfTheBudget(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", asksTwo, func(a *events.Agent) { a.Budget = &events.Budget{MaxOutputTokens: 10} })
		r.define("helper", answers)
		run := r.start("boss")
		mem := r.ends(run, time.Minute)
		require.Equal(t, subagent.CodeBudgetExceeded, code(mem, "call_1_1"))
		require.Contains(t, result(t, mem, "call_1_1"), "nothing is left of the budget's output_tokens")
		require.Zero(t, r.memory(child(run, "call_1_1")).N, "no run was started")
	})
}

// An agent that calls itself comes to an end.
func TestDepth(t *testing.T) {
	bubble(t, []subagent.Tool{{Agent: "self"}}, func(t *testing.T, r *rig) {
		r.define("self", `[{"calls":[{"name":"self","arguments":{"task":"again"}}]},{"text":"Below: {{observation -1}}"}]`)
		r.define("root", `[{"calls":[{"name":"self","arguments":{"task":"again"}}]},{"text":"Below: {{observation -1}}"}]`, func(a *events.Agent) { a.Config.MaxDepth = 3 })
		run := r.start("root")
		mem := r.ends(run, time.Minute)
		require.Equal(t, "Below: Below: Below: Below: ERROR: self was not called: agents may call agents 3 deep here (config.max_depth)", *mem.FinalAnswer)
		at := run
		for range 3 {
			at = child(at, "call_1_1")
		}
		last := r.memory(at)
		require.Equal(t, 3, last.Control.Parent.Depth)
		require.Equal(t, subagent.CodeNestingLimit, code(last, "call_1_1"), "the first run's limit holds below")
	})
}

// A call that has to be approved starts nothing before it is.
func TestApproval(t *testing.T) {
	bubble(t, []subagent.Tool{{Agent: "helper", Risk: "high"}}, func(t *testing.T, r *rig) {
		r.define("boss", asksHelper, func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAbove, Risk: "medium"} })
		r.define("helper", works) // its own definition wants nothing approved
		run := r.start("boss")
		r.wait(10 * time.Second)
		require.Equal(t, events.WaitingForHuman, r.memory(run).State)
		require.Zero(t, r.memory(child(run, "call_1_1")).N)
		_, err := r.host.Gateway().Decide(t.Context(), "", run.ID, events.Decision{CallID: "call_1_1", Decision: events.DecisionApproved, By: "me"})
		require.NoError(t, err)
		require.Equal(t, "Helped: The work is done.", *r.ends(run, 2*time.Minute).FinalAnswer)
	})
}
