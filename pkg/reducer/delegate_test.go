package reducer_test

import (
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
