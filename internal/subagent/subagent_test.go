package subagent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests of SPEC A92 on agents that call agents, by their names.
func TestAgentsm(t *testing.T) {
	t.Run("sub_agent", subAgent)
	t.Run("nested_sub_agent", nestedSubAgent)
}

func subAgent(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", asksHelper)
		r.define("helper", answers)
		run := r.start("boss")
		mem := r.ends(run, time.Minute)
		require.Equal(t, events.Done, mem.State)
		require.Equal(t, "Helped: Here is help.", *mem.FinalAnswer)
		sub := r.memory(child(run, "call_1_1"))
		require.Equal(t, &events.Parent{Run: run.ID, CallID: "call_1_1", Depth: 1}, sub.Control.Parent)
		require.Equal(t, "help", sub.Task)
		require.Equal(t, sub.RunID, mem.ToolCalls["call_1_1"].Run, "the parent says which run it was")
		require.Equal(t, 42, mem.TotalUsage.Total, "and pays for it")
		require.Len(t, sub.Messages, 2, "the child has a memory of its own")
	})
}

func nestedSubAgent(t *testing.T) {
	bubble(t, []subagent.Tool{{Agent: "helper"}, {Agent: "deep"}}, func(t *testing.T, r *rig) {
		r.define("boss", asksHelper)
		r.define("helper", `[{"calls":[{"name":"deep","arguments":{"task":"dig"}}]},{"text":"From below: {{observation -1}}"}]`)
		r.define("deep", answers)
		run := r.start("boss")
		mem := r.ends(run, time.Minute)
		require.Equal(t, "Helped: From below: Here is help.", *mem.FinalAnswer)
		below := r.memory(child(child(run, "call_1_1"), "call_1_1"))
		require.Equal(t, 2, below.Control.Parent.Depth)
		require.Equal(t, 42, mem.TotalUsage.Total, "what was used below comes up to the first run")
	})
}

// A sub-run has the labels that its parent's Start has, over those of its own agent.
func TestLabels(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", asksHelper, func(a *events.Agent) { a.Labels = events.Labels{"env": "prod", "team": "a"} })
		r.define("helper", answers, func(a *events.Agent) { a.Labels = events.Labels{"env": "test", "own": "x"} })
		run := r.start("boss")
		r.ends(run, time.Minute)
		require.Equal(t, events.Labels{"env": "prod", "team": "a"}, r.memory(run).Control.Labels)
		require.Equal(t, events.Labels{"env": "prod", "team": "a", "own": "x"}, r.memory(child(run, "call_1_1")).Control.Labels)
	})
}

func TestParallelWithToolsOfOtherPools(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", `[{"calls":[{"name":"helper","arguments":{"task":"a"}},{"name":"work"},{"name":"web"},{"name":"helper","arguments":{"task":"b"}}]},{"text":"All in."}]`)
		r.define("helper", works)
		run := r.start("boss")
		began := time.Now()
		mem := r.ends(run, 5*time.Minute)
		require.Equal(t, events.Done, mem.State)
		for i, want := range []string{"The work is done.", "worked", "worked", "The work is done."} {
			require.Equal(t, want, result(t, mem, fmt.Sprintf("call_1_%d", i+1)))
		}
		require.Less(t, time.Since(began), 70*time.Second, "side by side")
	})
}

// What a child comes to that has no answer is a result of the call.
func TestChildrenWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		script     string
		tools      []subagent.Tool
		change     func(*events.Agent)
		code, text string
	}{
		"an error":                    {`[{"error":{"kind":"auth","message":"no key"}}]`, nil, nil, "auth", "ERROR: agent helper ended in auth: no key"},
		"max steps":                   {works, nil, func(a *events.Agent) { a.Config.MaxSteps = 1 }, "max_steps", "ERROR: agent helper ended in max_steps: max steps 1 exceeded"},
		"its own budget":              {answers, nil, func(a *events.Agent) { a.Budget = &events.Budget{MaxTotalTokens: 1} }, "budget_total_tokens", "ERROR: agent helper ended in budget_total_tokens"},
		"an agent that is not stored": {"", nil, nil, "agent_not_found", "ERROR: "},
		"a tool that is missing":      {answers, nil, func(a *events.Agent) { a.Tools = []string{"nothing"} }, "unknown_tool", `ERROR: no actor announces the tool "nothing"`},
		"a timeout":                   {works, []subagent.Tool{{Agent: "helper", Timeout: 20 * time.Second}}, nil, "budget_wall_time", "ERROR: agent helper ended in budget_wall_time: the run took longer than its 20s"},
	} {
		t.Run(name, func(t *testing.T) {
			tools := c.tools
			if tools == nil {
				tools = helper
			}
			bubble(t, tools, func(t *testing.T, r *rig) {
				r.define("boss", asksHelper)
				if c.change == nil {
					c.change = func(*events.Agent) {}
				}
				if c.script != "" {
					r.define("helper", c.script, c.change)
				}
				mem := r.ends(r.start("boss"), 5*time.Minute)
				require.Equal(t, events.Done, mem.State, "the model is told, and goes on")
				require.Equal(t, c.code, code(mem, "call_1_1"))
				require.Contains(t, result(t, mem, "call_1_1"), c.text)
			})
		})
	}
}

func TestCancellingAChildTellsItsParent(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", asksHelper)
		r.define("helper", works)
		run := r.start("boss")
		r.wait(10 * time.Second)
		_, err := r.host.Gateway().Cancel(t.Context(), "", child(run, "call_1_1").ID, events.By{})
		require.NoError(t, err)
		mem := r.ends(run, 10*time.Second)
		require.Equal(t, "cancelled", code(mem, "call_1_1"))
		require.Equal(t, "ERROR: agent helper was cancelled", result(t, mem, "call_1_1"))
	})
}

// A parent that ends takes its children along, and theirs.
func TestTheEndOfAParent(t *testing.T) {
	nested := func(r *rig, change ...func(*events.Agent)) events.Run {
		r.define("boss", asksHelper, change...)
		r.define("helper", `[{"calls":[{"name":"deep","arguments":{"task":"dig"}}]},{"text":"Done it."}]`)
		r.define("deep", works)
		return r.start("boss")
	}
	two := []subagent.Tool{{Agent: "helper"}, {Agent: "deep"}}
	allEnd := func(t *testing.T, r *rig, run events.Run, state events.State, ends ...events.State) {
		require.Equal(t, state, r.ends(run, 30*time.Second).State)
		below := child(run, "call_1_1")
		for _, run := range []events.Run{below, child(below, "call_1_1")} {
			require.Contains(t, ends, r.ends(run, 10*time.Second).State)
		}
	}
	t.Run("cancelled", func(t *testing.T) {
		bubble(t, two, func(t *testing.T, r *rig) {
			run := nested(r)
			r.wait(10 * time.Second)
			_, err := r.host.Gateway().Cancel(t.Context(), "", run.ID, events.By{})
			require.NoError(t, err)
			allEnd(t, r, run, events.Cancelled, events.Cancelled)
		})
	})
	t.Run("out of time", func(t *testing.T) {
		bubble(t, two, func(t *testing.T, r *rig) {
			run := nested(r, func(a *events.Agent) { a.Budget = &events.Budget{MaxWallTime: events.Duration(20 * time.Second)} })
			allEnd(t, r, run, events.Errored, events.Errored, events.Cancelled) // their time is up as well
		})
	})
}

// A parent that waits holds no delivery and no slot: two hundred of them wait at a
// concurrency of four.
func TestWaitingParentsHoldNoSlot(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.stop()
		r.options.Concurrency = 4
		r.begin()
		r.define("boss", asksHelper)
		r.define("helper", `[{"calls":[{"name":"work"}]},{"text":"Slow help."}]`, func(a *events.Agent) {
			a.Approval = &events.Approval{Policy: events.ApproveAlways}
		})
		var runs []events.Run
		for range 200 {
			runs = append(runs, r.start("boss"))
		}
		r.wait(time.Minute)
		for _, run := range runs {
			mem := r.memory(run)
			require.Equal(t, events.Acting, mem.State)
			require.True(t, mem.Call("call_1_1").Waits())
		}
		require.Zero(t, r.journal.Outstanding(), "nothing is held")
		for _, run := range runs {
			_, err := r.host.Gateway().Decide(t.Context(), "", child(run, "call_1_1").ID,
				events.Decision{CallID: "call_1_1", Decision: events.DecisionRejected, By: "me"})
			require.NoError(t, err)
		}
		for _, run := range runs {
			require.Equal(t, "Helped: Slow help.", *r.ends(run, time.Minute).FinalAnswer)
		}
	})
}

// Whenever the process dies, the child's answer comes to its parent.
func TestAnswersOutliveEveryProcess(t *testing.T) {
	for _, at := range []time.Duration{0, time.Millisecond, 10 * time.Second, 59 * time.Second, 61 * time.Second} {
		t.Run(at.String(), func(t *testing.T) {
			bubble(t, helper, func(t *testing.T, r *rig) {
				r.define("boss", asksHelper)
				r.define("helper", works)
				run := r.start("boss")
				r.wait(at)
				r.kill(10 * time.Minute)
				mem := r.ends(run, 5*time.Minute)
				require.Equal(t, "Helped: The work is done.", *mem.FinalAnswer)
			})
		})
	}
}

// The answer comes to a parent that is paused; what follows from it waits.
func TestPausedParents(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", asksHelper)
		r.define("helper", works)
		run := r.start("boss")
		r.wait(10 * time.Second)
		g := r.host.Gateway()
		_, err := g.Pause(t.Context(), "", run.ID, events.By{})
		require.NoError(t, err)
		r.wait(2 * time.Minute)
		mem := r.memory(run)
		require.Equal(t, events.Planning, mem.State, "the answer was taken, and the model is not asked")
		_, err = g.Resume(t.Context(), "", run.ID, events.By{})
		require.NoError(t, err)
		require.Equal(t, events.Done, r.ends(run, time.Minute).State)
	})
}

// A resumed parent drives its call once more, and there is one child for all that.
func TestResumedParentsHaveOneChild(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", asksHelper)
		r.define("helper", works)
		run := r.start("boss")
		r.wait(10 * time.Second)
		for range 3 {
			_, err := r.host.Gateway().Pause(t.Context(), "", run.ID, events.By{})
			require.NoError(t, err)
			_, err = r.host.Gateway().Resume(t.Context(), "", run.ID, events.By{})
			require.NoError(t, err)
			r.wait(time.Second)
		}
		require.Equal(t, events.Done, r.ends(run, 2*time.Minute).State)
		require.Equal(t, 1, r.asked, "the work was done once")
	})
}

// A fork has a child of its own; that of its parent belongs to its parent.
func TestForksHaveChildrenOfTheirOwn(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", asksHelper)
		r.define("helper", works)
		run := r.start("boss")
		r.wait(10 * time.Second)
		fork, err := r.host.Gateway().Fork(t.Context(), "", run.ID, forking.Request{At: r.memory(run).N})
		require.NoError(t, err)
		forked := events.NewRun("default", fork.RunID, 1)
		require.Equal(t, events.Done, r.ends(run, 2*time.Minute).State)
		mem := r.ends(forked, 2*time.Minute)
		require.Equal(t, events.Done, mem.State)
		require.Equal(t, child(forked, "call_1_1").ID, mem.ToolCalls["call_1_1"].Run)
		require.Equal(t, 2, r.asked)
	})
}

// A child that was purged cannot be had again: the parent is told.
func TestPurgedChild(t *testing.T) {
	bubble(t, helper, func(t *testing.T, r *rig) {
		r.define("boss", `[{"calls":[{"name":"helper","arguments":{"task":"help"}}]},{"text":"Without help."}]`)
		r.define("helper", answers)
		r.stop()
		r.options.Subagents = nil // nobody starts children
		r.begin()
		require.NoError(t, announce.NewDirectory(r.journal, nil).Announce(t.Context(), events.AgentsPool, "x", []events.ToolSpec{{
			Name: "helper", Schema: json.RawMessage(`{}`), Effect: "idempotent", Pool: events.AgentsPool,
		}}))
		run := r.start("boss")
		r.wait(10 * time.Second)
		require.NoError(t, tombstones.Put(context.Background(), r.journal, child(run, "call_1_1"), tombstones.Tombstone{}))
		r.stop()
		r.options.Subagents = helper
		r.begin()
		mem := r.ends(run, time.Minute)
		require.Equal(t, subagent.CodeRunPurged, code(mem, "call_1_1"))
	})
}

func TestConfigurations(t *testing.T) {
	for name, c := range map[string]struct {
		tools []subagent.Tool
		want  string
	}{
		"no agent's name": {[]subagent.Tool{{Name: "x", Agent: "No Name"}}, `agent "No Name" is not an agent's name`},
		"twice":           {[]subagent.Tool{{Agent: "a"}, {Name: "a", Agent: "b"}}, "two agents have this name"},
		"a bad risk":      {[]subagent.Tool{{Agent: "a", Risk: "huge"}}, "risk"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, r *rig) {
				o := r.options
				o.Bus, o.Subagents = r.journal.NewProcess(), c.tools
				_, err := host.New(o)
				require.ErrorContains(t, err, c.want)
			})
		})
	}
}
