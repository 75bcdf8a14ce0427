package subagent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

var heir = []subagent.Tool{{Handoff: "heir"}}

// The scripted model's replies go by how many the run has had: the heir's second.
const (
	handsOver = `[{"calls":[{"name":"transfer_to_heir","arguments":{"reason":"you know better"}}]}]`
	goesOn    = `[{"text":"never said"},{"text":"I took over."}]`
	pays      = `[{"text":"never said"},{"calls":[{"name":"work"}]},{"text":"It is paid."}]`
)

func withPrompt(prompt string) func(*events.Agent) {
	return func(a *events.Agent) { a.SystemPrompt = prompt }
}

func TestHandOff(t *testing.T) {
	bubble(t, heir, func(t *testing.T, r *rig) {
		r.define("boss", handsOver, withPrompt("I begin."))
		r.define("heir", goesOn, withPrompt("I go on."))
		mem := r.ends(r.start("boss"), time.Minute)
		require.Equal(t, events.Done, mem.State)
		require.Equal(t, "I took over.", *mem.FinalAnswer)
		require.Equal(t, "heir", mem.Control.Agent.Name)
		require.Equal(t, "I go on.", mem.SystemPrompt)
		require.Equal(t, "the conversation was handed over", result(t, mem, "call_1_1"))
		require.Equal(t, "Do it.", mem.Messages[0].Content, "the conversation stays")
	})
}

func TestHandOffThatFails(t *testing.T) {
	t.Run("to nobody", func(t *testing.T) {
		bubble(t, heir, func(t *testing.T, r *rig) {
			r.define("boss", `[{"calls":[{"name":"transfer_to_heir"}]},{"text":"I go on myself."}]`)
			mem := r.ends(r.start("boss"), time.Minute)
			require.Equal(t, "agent_not_found", code(mem, "call_1_1"))
			require.Equal(t, "boss", mem.Control.Agent.Name)
		})
	})
	t.Run("beside other calls", func(t *testing.T) {
		for _, parallel := range []bool{true, false} {
			bubble(t, heir, func(t *testing.T, r *rig) {
				r.define("boss", `[{"calls":[{"name":"transfer_to_heir"},{"name":"work"}]},{"text":"I go on myself."}]`,
					func(a *events.Agent) { a.Config.ParallelTools = parallel })
				r.define("heir", goesOn)
				mem := r.ends(r.start("boss"), 5*time.Minute)
				require.Equal(t, subagent.CodeHandOffAlone, code(mem, "call_1_1"))
				require.Equal(t, "boss", mem.Control.Agent.Name)
			})
		}
	})
}

// From a hand-off on the new agent's policy holds, for the planner and for the actor's
// guard: what it wants approved waits, and what only the old one wanted does not.
func TestPoliciesFollowAHandOff(t *testing.T) {
	always := func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAlways} }
	approve := func(t *testing.T, r *rig, run events.Run) {
		t.Helper()
		mem := r.memory(run)
		require.Equal(t, events.WaitingForHuman, mem.State, "%v", mem.Trace)
		call := decisions.Undecided(mem.PendingApproval)[0]
		_, err := r.host.Gateway().Decide(t.Context(), "", run.ID, events.Decision{CallID: call, Decision: events.DecisionApproved, By: "me"})
		require.NoError(t, err)
	}
	t.Run("to a stricter agent", func(t *testing.T) {
		bubble(t, heir, func(t *testing.T, r *rig) {
			r.define("boss", handsOver)
			r.define("heir", pays, always)
			run := r.start("boss")
			r.wait(10 * time.Second)
			require.Zero(t, r.asked)
			approve(t, r, run)
			require.Equal(t, "It is paid.", *r.ends(run, 2*time.Minute).FinalAnswer)
		})
	})
	t.Run("to a laxer agent", func(t *testing.T) {
		bubble(t, heir, func(t *testing.T, r *rig) {
			r.define("boss", handsOver, always)
			r.define("heir", pays)
			run := r.start("boss")
			r.wait(10 * time.Second)
			require.Equal(t, "boss", r.memory(run).Control.Agent.Name, "the hand-off is a call, and waits as any")
			approve(t, r, run)
			mem := r.ends(run, 2*time.Minute)
			require.Equal(t, "It is paid.", *mem.FinalAnswer)
			require.Equal(t, "ok", code(mem, "call_2_1"), "the guard has seen it too")
		})
	})
	t.Run("in a fork", func(t *testing.T) {
		bubble(t, heir, func(t *testing.T, r *rig) {
			r.define("boss", handsOver, always)
			r.define("heir", pays)
			run := r.start("boss")
			r.wait(10 * time.Second)
			approve(t, r, run)
			r.wait(10 * time.Second)
			mem := r.memory(run)
			require.Equal(t, "heir", mem.Control.Agent.Name)
			fork, err := r.host.Gateway().Fork(t.Context(), "", run.ID, forking.Request{At: mem.N})
			require.NoError(t, err)
			forked := r.ends(events.NewRun("default", fork.RunID, 1), 3*time.Minute)
			require.Equal(t, "ok", code(forked, "call_2_1"), "it stands on what its parent went over to")
		})
	})
}

// TestAHandOffKeepsPools: a tool that the run has stays in its pool, unless the new agent
// names another one.
func TestAHandOffKeepsPools(t *testing.T) {
	for ref, want := range map[string]string{"web": "attic", "web/web": "web"} {
		bubble(t, heir, func(t *testing.T, r *rig) {
			tools, err := announce.NewDirectory(r.journal, nil).PoolTools(t.Context(), "web")
			require.NoError(t, err)
			tools[0].Pool = "attic"
			require.NoError(t, announce.NewDirectory(r.journal, nil).Announce(t.Context(), "attic", "a", tools))
			r.wait(3 * time.Second)
			r.define("boss", handsOver, func(a *events.Agent) { a.Tools[1] = "attic/web" })
			r.define("heir", goesOn, func(a *events.Agent) { a.Tools[1] = ref })
			run := r.start("boss")
			mem := r.ends(run, time.Minute)
			require.Equal(t, "heir", mem.Control.Agent.Name)
			require.Equal(t, want, mem.Tools["web"].Pool)
		})
	}
}

// A process that dies right after the hand-off leaves the answer to the next one, and
// the policy of the agent that goes on does not concern the call.
func TestAHandOffOutlivesItsProcess(t *testing.T) {
	dies := simtest.Options{Crash: onceAfter(func(rec journal.Record) bool {
		return strings.Contains(string(rec.Body), `"`+string(events.TypeHandedOff)+`"`)
	})}
	bubbleOn(t, dies, heir, func(t *testing.T, r *rig) {
		r.define("boss", handsOver)
		r.define("heir", goesOn, func(a *events.Agent) { a.Approval = &events.Approval{Policy: events.ApproveAlways} })
		run := r.start("boss")
		r.wait(5 * time.Second)
		require.Equal(t, "heir", r.memory(run).Control.Agent.Name)
		require.Equal(t, events.Acting, r.memory(run).State, "it died before it could answer")
		r.stop()
		r.begin()
		mem := r.ends(run, 10*time.Minute)
		require.Equal(t, "ok", code(mem, "call_1_1"))
		require.Equal(t, "the conversation was handed over", result(t, mem, "call_1_1"))
	})
}
