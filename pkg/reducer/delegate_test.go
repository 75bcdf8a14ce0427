package reducer_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// withAgents gives a run two agents as tools beside its others.
func withAgents(p *events.Start) {
	for _, name := range []string{"helper", "heir"} {
		p.Tools = append(p.Tools, events.ToolSpec{Name: name, Effect: "idempotent", Pool: events.AgentsPool})
	}
}

func tools(wants []effects.Effect) (ids []string) {
	for _, e := range wants {
		if e.Kind == effects.KindTool {
			ids = append(ids, e.CallID)
		}
	}
	return ids
}

// A call that a run answers is due until that run is there, and again when the run
// that asked is driven once more; nobody concludes that its outcome is unknown.
func TestDelegatedCalls(t *testing.T) {
	s := started(t, withAgents).do(single("a", "helper"))
	table := reducer.DefaultTable()
	require.Equal(t, []string{"a"}, tools(effects.Of(table, s.Mem)))
	s.do(&events.ToolCallStarted{CallID: "a"})
	require.Empty(t, effects.Of(table, s.Mem), "the other run's end brings the answer")
	require.True(t, s.Mem.Call("a").Waits())
	s.do(&events.Paused{}, &events.Resumed{})
	wants := effects.Of(table, s.Mem)
	require.Equal(t, []string{"a"}, tools(wants))
	require.Zero(t, wants[0].Started)
	require.Equal(t, s.Mem.N, wants[0].Wake)
	s.do(&events.ToolCallStarted{CallID: "a"})
	before := s.Mem.TotalUsage.Total
	usage := &events.Usage{Input: 5, Output: 2, Total: 7}
	s.do(&events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "a", Success: true, Observation: "SUCCESS: x", Code: "ok", Run: "r", Usage: usage}})
	require.Equal(t, before+7, s.Mem.TotalUsage.Total)
	require.Equal(t, "r", s.Mem.ToolCalls["a"].Run)
}

// A pause holds what has not begun, and only that.
func TestDelegatedCallsOfAPausedRun(t *testing.T) {
	s := started(t, withAgents).do(single("a", "helper"), &events.Paused{})
	wants := effects.Of(reducer.DefaultTable(), s.Mem)
	require.Len(t, wants, 1)
	require.True(t, wants[0].Held)
}

// Usage is believed of runs that answer, and never makes less of what was used.
func TestForgedUsage(t *testing.T) {
	forged := &events.Usage{Input: -100, Output: -100, Total: -100}
	for _, name := range []string{"helper", "alpha"} {
		s := started(t, withAgents).do(single("a", name))
		before := s.Mem.TotalUsage
		s.do(&events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "a", Success: true, Observation: "SUCCESS: x", Code: "ok", Usage: forged}})
		require.Equal(t, before, s.Mem.TotalUsage, name)
	}
}

func handedOff(call string) *events.HandedOff {
	a := events.DefaultAgent()
	a.Name, a.SystemPrompt, a.Config.MaxDepth, a.Config.MaxSteps = "heir", "I go on.", 9, 3
	a.Budget = &events.Budget{MaxTotalTokens: 1}
	return &events.HandedOff{Agent: a, AgentHash: "h", CallID: call, Tools: []events.ToolSpec{{Name: "other", Pool: "default"}}}
}

// The agent is another one; the conversation, the counts and the bounds of the run
// stay.
func TestHandedOff(t *testing.T) {
	budgeted := func(p *events.Start) { p.Agent.Budget = &events.Budget{MaxTotalTokens: 5000} }
	s := started(t, withAgents, budgeted).do(single("a", "heir"))
	depth, messages, step := s.Mem.Config.MaxDepth, s.Mem.Messages, s.Mem.Step
	require.Equal(t, "none.agents", s.route(handedOff("a")), "and it is stored")
	mem := s.Mem
	require.Equal(t, events.Acting, mem.State)
	require.Equal(t, "I go on.", mem.SystemPrompt)
	require.Equal(t, "heir", mem.Control.Agent.Name)
	require.Contains(t, mem.Tools, "other")
	require.NotContains(t, mem.Tools, "alpha")
	require.Equal(t, 3, mem.Config.MaxSteps)
	require.Equal(t, 5000, mem.Budget.MaxTotalTokens)
	require.Equal(t, depth, mem.Config.MaxDepth)
	require.Equal(t, messages, mem.Messages)
	require.Equal(t, step, mem.Step)
	require.True(t, mem.Call("a").HandedOff)
	s.refuses(handedOff("a"), "stands there twice")
}

func TestHandOffsThatMayNotBe(t *testing.T) {
	started(t, withAgents).do(single("a", "alpha")).refuses(handedOff("a"), "by a call of another pool")
	started(t, withAgents).refuses(handedOff("a"), "no place in state planning")
	queued := single("a", "heir")
	queued.Queued = []events.Call{{ID: "b", Name: "alpha"}}
	started(t, withAgents).do(queued).refuses(handedOff("a"), "beside other calls")
	nameless := handedOff("a")
	nameless.Agent.Name = ""
	started(t, withAgents).do(single("a", "heir")).refuses(nameless, "names no agent")
}

// Every actor may publish out of Acting; which agent a run goes by is the word of that
// of the agents alone.
func TestForgedHandOff(t *testing.T) {
	s := started(t, withAgents).do(single("a", "heir"))
	_, e, body, err := s.Draft(events.Acting, handedOff("a"))
	require.NoError(t, err)
	forged := events.Subject{Run: s.ID, From: events.Acting, To: events.Nobody, Pool: events.DefaultPool}
	_, err = s.Machine.Apply(s.Mem, forged.String(), body)
	require.ErrorContains(t, err, "HandedOff comes from the actor of agents alone")
	require.Equal(t, e.N, s.Mem.Control.Poison.N)
}

// steps carries n calls out, one in each step.
func (s *scene) steps(prefix string, n int) *scene {
	s.t.Helper()
	for i := range n {
		id := fmt.Sprint(prefix, i)
		s.do(single(id, "alpha"), success(id, "x"), &events.Continue{})
	}
	return s
}

// handOver hands the run over to its agent with some changes, with the same tools.
func (s *scene) handOver(id string, change func(*events.Agent)) *scene {
	s.t.Helper()
	p := handedOff(id)
	p.Agent.Config = s.Mem.Config
	change(&p.Agent)
	p.Tools = []events.ToolSpec{{Name: "alpha", Effect: "pure", Pool: "default"}, {Name: "heir", Effect: "idempotent", Pool: events.AgentsPool}}
	return s.do(single(id, "heir"), p, success(id, "ok"), &events.Continue{})
}

// The new agent's max_steps end the run, and not the safety cap that follows from
// them: the run has changed its state more often already.
func TestASmallerHeirEndsByMaxSteps(t *testing.T) {
	t.Parallel()
	s := started(t, withAgents).steps("c", 10)
	s.handOver("h", func(a *events.Agent) { a.Config.MaxSteps = 5 })
	require.Equal(t, events.Planning, s.Mem.State)
	wants := s.Effects()
	require.Len(t, wants, 1)
	require.Equal(t, effects.KindPlan, wants[0].Kind, "Planning says that there are no steps left")
	require.Equal(t, 11, s.Mem.Control.SinceUser.Steps)
}

// Agents that hand a run to and fro come to an end: each hand-off takes a step.
func TestHandOffsToAndFroAreBounded(t *testing.T) {
	t.Parallel()
	s := started(t, withAgents)
	for i := range 30 {
		s.handOver(fmt.Sprint("h", i), func(a *events.Agent) { a.Config.MaxSteps = 1000 + i%2 })
		require.Equal(t, i+1, s.Mem.Control.SinceUser.Steps)
		require.Less(t, s.Mem.Control.SinceUser.Changes, 5)
	}
}

// Working memory and its storage stay the run's when it is handed over: what was
// loaded stays known as stored, and what was paged can be had back.
func TestAHandOffKeepsTheStorage(t *testing.T) {
	t.Parallel()
	s := started(t, withAgents)
	first := s.Mem.Control.Agent.Name
	s.do(single("a", "alpha"), &events.StorageLoaded{Tags: []string{"k"}, Entries: []events.Entry{remembered("1", "k")}}, success("a", "1"), &events.Continue{})
	s.handOver("h", func(*events.Agent) {})
	require.Equal(t, "heir", s.Mem.Control.Agent.Name)
	require.Equal(t, first, s.Mem.Control.StorageAgent)
	require.True(t, s.Mem.WorkingMemory[0].Loaded)
}

// What providers read of the definition is that of the agent that the run has now,
// also in a fork under another one.
func TestSettingsFollowTheAgent(t *testing.T) {
	t.Parallel()
	s := started(t, withAgents)
	require.Nil(t, s.Mem.Settings(), "there is no script")
	script := func(text string) events.LLM {
		return events.LLM{Provider: "scripted", Script: json.RawMessage(`[ {"text":"` + text + `"} ]`)}
	}
	s.handOver("h", func(a *events.Agent) { a.LLM = script("one") })
	for range 2 {
		require.JSONEq(t, `{"provider":"scripted","script":[{"text":"one"}]}`, string(s.Mem.Settings()))
	}
	agent := s.Mem.Control.Agent
	agent.LLM = script("two")
	fork := forked(t, s, events.Forked{Agent: &agent, AgentHash: "h"})
	require.Contains(t, string(fork.Settings()), "two")
	s.handOver("i", func(*events.Agent) {})
	require.Nil(t, s.Mem.Settings())
}

// forked is the memory of a fork of a run where it stands.
func forked(t *testing.T, parent *scene, p events.Forked) *reducer.Memory {
	t.Helper()
	fork, err := parent.Fork(parent.Mem.N, p)
	require.NoError(t, err)
	return fork.Mem
}

// A fork under another agent has that one's storage: nothing lies there yet, and
// what was paged before is not promised any more.
func TestAForkUnderAnotherAgentHasItsStorage(t *testing.T) {
	t.Parallel()
	parent := started(t, withAgents).do(single("p", "alpha"), &events.WorkingMemoryAdded{Entry: remembered("v", "gone")}, success("p", "1"), &events.NeedsPaging{}, pagedOut("gone"))
	parent.do(single("a", "alpha"), &events.StorageLoaded{Tags: []string{"k"}, Entries: []events.Entry{remembered("1", "k")}}, success("a", "1"), &events.Continue{})
	owner := parent.Mem.Control.StorageAgent

	other := parent.Mem.Control.Agent
	other.Name = "other"
	fork := forked(t, parent, events.Forked{Agent: &other, AgentHash: "x"})
	require.Equal(t, "other", fork.Control.StorageAgent)
	require.False(t, fork.WorkingMemory[0].Loaded, "paging has to store it")
	note := ""
	for _, m := range reducer.View(nil, fork) {
		if m.Role == "user" && len(m.Content) > 0 && m.Content[0] == '[' {
			note = m.Content
		}
	}
	require.Contains(t, note, "the storage of agent "+owner+" before; this run uses that of agent other")
	require.NotContains(t, note, "brings an entry back")

	for _, p := range []events.Forked{{}, {Agent: &parent.Mem.Control.Agent, AgentHash: "x"}} {
		same := forked(t, parent, p)
		require.Equal(t, owner, same.Control.StorageAgent)
		require.True(t, same.WorkingMemory[0].Loaded)
		require.Contains(t, script(same), "storage_load brings an entry back")
	}
}

// A fork of a run that was handed over is no fork under another agent, whatever else it
// changes of the one that the run goes by.
func TestAForkAfterAHandOffKeepsTheStorage(t *testing.T) {
	t.Parallel()
	s := started(t, withAgents)
	owner := s.Mem.Control.StorageAgent
	s.do(single("a", "alpha"), &events.StorageLoaded{Tags: []string{"k"}, Entries: []events.Entry{remembered("1", "k")}}, success("a", "1"), &events.Continue{})
	s.handOver("h", func(*events.Agent) {})
	raised := s.Mem.Control.Agent
	require.NotEqual(t, owner, raised.Name)
	raised.Budget = &events.Budget{MaxTotalTokens: 1_000_000}
	fork := forked(t, s, events.Forked{Agent: &raised, AgentHash: "x"})
	require.Equal(t, 1_000_000, fork.Budget.MaxTotalTokens)
	require.Equal(t, owner, fork.Control.StorageAgent)
	require.True(t, fork.WorkingMemory[0].Loaded)

	raised.Name = "third"
	require.Equal(t, "third", forked(t, s, events.Forked{Agent: &raised, AgentHash: "x"}).Control.StorageAgent)
}

// A window that was widened under tools is the agent's again under the text protocol,
// and what stood for calls of Moorebus' own takes no place in it.
func TestAHandOffToTheTextProtocolForgetsTheEdits(t *testing.T) {
	t.Parallel()
	s := started(t, withAgents, chat, func(p *events.Start) { p.Agent.Config.ContextWindowSize, p.Agent.Config.MaxSteps = 3, 1000 })
	s.do(turnAnswer("First."), user("m2", "second?"), loaded("old", 0), turnAnswer("Second."), user("m3", "third?"))
	s.do(loaded("x", 9)).steps("c", 1).do(loaded("y", 0))
	require.Equal(t, 5, s.Mem.ReactContext.ContextWindowSize)
	s.handOver("h", func(a *events.Agent) { a.LLM.Text = true })
	require.Equal(t, 3, s.Mem.ReactContext.ContextWindowSize)
	require.Empty(t, s.Mem.Control.Internal)
	s.sees(`
		system: I go on.
		user: find it
		user: third?
		assistant:  [c0 alpha {"n":1.0}]
		tool c0 alpha: x
		assistant:  [h heir {"n":1.0}]
		tool h heir: ok`)
}

// Under the text protocol the window alone says what is shown, so the calls that a
// model with tools made do not stay in the prompt for ever.
func TestAHandOffToTheTextProtocolBoundsTheView(t *testing.T) {
	t.Parallel()
	s := started(t, withAgents, func(p *events.Start) { p.Agent.Config.ContextWindowSize, p.Agent.Config.MaxSteps = 2, 1000 })
	s.steps("c", 20).handOver("h", func(a *events.Agent) { a.LLM.Text = true })
	require.Empty(t, s.Mem.ReactContext.ToolCallIDs)
	s.sees(`
		system: I go on.
		user: find it
		assistant:  [c19 alpha {"n":1.0}]
		tool c19 alpha: x
		assistant:  [h heir {"n":1.0}]
		tool h heir: ok`)
}

// The other way round the calls of the loop belong to its context again, but not
// those of earlier loops.
func TestAHandOffFromTheTextProtocolKeepsTheCalls(t *testing.T) {
	t.Parallel()
	s := started(t, withAgents, chat, textual).steps("old", 1)
	s.do(turnAnswer("Hello there."), user("m", "and then?")).steps("c", 3)
	require.Empty(t, s.Mem.ReactContext.ToolCallIDs)
	s.handOver("h", func(a *events.Agent) { a.LLM.Text = false })
	require.Equal(t, []string{"c0", "c1", "c2", "h"}, s.Mem.ReactContext.ToolCallIDs)
}
