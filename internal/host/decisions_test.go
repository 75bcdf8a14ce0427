package host_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// What a human decides on a call is what the tool gets and the model sees.
func TestDecisionsReachModelAndTool(t *testing.T) {
	reply := llm.ToolCalls{Calls: []llm.Call{
		{ID: "a", Name: "echo", Arguments: `{"q":"one"}`}, {ID: "b", Name: "echo", Arguments: `{"q":"two"}`}, {ID: "c", Name: "echo", Arguments: `{"q":"three"}`},
	}}
	one := llm.ToolCalls{Calls: []llm.Call{{ID: "d", Name: "echo", Arguments: `{"q":"four"}`}}}
	mock := scripted.NewMock(reply, one, scripted.Say("all decided"))
	g, id := startHeld(t, mock)

	awaitCalls(t, g, id, 3)
	for _, d := range []events.Decision{
		{CallID: "a", Decision: events.DecisionModified, Arguments: `{"q":"other"}`},
		{CallID: "b", Decision: events.DecisionRejected, Reason: "not that"},
		{CallID: "c", Decision: events.DecisionApproved},
	} {
		decideAs(t, g, id, d)
	}
	awaitCalls(t, g, id, 1)
	decideAs(t, g, id, events.Decision{CallID: "d", Decision: events.DecisionModified, Arguments: `{"q":"five"}`})
	require.Eventually(t, func() bool { return stateOf(t, g, id).State == events.Done }, time.Minute, 5*time.Millisecond)

	require.Equal(t, map[string]string{"a": `{"q":"other"}`, "b": `{"q":"two"}`, "c": `{"q":"three"}`, "d": `{"q":"five"}`}, argumentsSeen(mock))
	require.Equal(t, map[string]string{
		"a": "you said other", "b": "REJECTED: not that", "c": "you said three", "d": "you said five",
	}, resultsSeen(mock))
}

// A question is put to a human under every policy, also in the middle of a batch
// and by a tool of another name, and its answer is what the model gets, even after
// every process has been replaced.
func TestAnswersReachTheModel(t *testing.T) {
	reply := llm.ToolCalls{Calls: []llm.Call{
		{ID: "a", Name: "boss", Arguments: `{"question":"Which?"}`}, {ID: "b", Name: "echo", Arguments: `{"q":"two"}`},
	}}
	one := llm.ToolCalls{Calls: []llm.Call{{ID: "c", Name: "boss", Arguments: `{"question":"Sure?"}`}}}
	early, late := scripted.NewMock(reply), scripted.NewMock(one, scripted.Say("all answered"))
	journal := simtest.New(simtest.Options{})
	first := startHost(t, journal, early)
	id := first.start(t, &events.Approval{Policy: events.ApproveNever})
	awaitCalls(t, first.Gateway(), id, 1)
	first.stop()

	g := startHost(t, journal, late).Gateway()
	_, err := g.Decide(t.Context(), "", id, events.Decision{CallID: "a", Decision: events.DecisionApproved, By: "ann"})
	require.ErrorContains(t, err, "boss asks a question")
	decideAs(t, g, id, events.Decision{CallID: "a", Decision: events.DecisionModified, Arguments: `{"question":"Which?","answer":"the red one"}`})
	require.Eventually(t, func() bool { return late.CallCount() == 1 }, time.Minute, 5*time.Millisecond)
	awaitCalls(t, g, id, 1)
	decideAs(t, g, id, events.Decision{CallID: "c", Decision: events.DecisionRejected, Reason: "ask later"})
	require.Eventually(t, func() bool { return stateOf(t, g, id).State == events.Done }, time.Minute, 5*time.Millisecond)
	require.Equal(t, map[string]string{"a": "the red one", "b": "you said two", "c": "REJECTED: ask later"}, resultsSeen(late))
}

// startHeld starts a run on which every call waits, with all roles at work.
func startHeld(t *testing.T, mock llm.Caller) (g *control.Controller, id string) {
	t.Helper()
	h := startHost(t, simtest.New(simtest.Options{}), mock)
	return h.Gateway(), h.start(t, &events.Approval{Policy: events.ApproveAlways})
}

// working is all roles at work.
type working struct {
	*host.Host
	stop func()
}

func startHost(t *testing.T, journal *simtest.Journal, mock llm.Caller) working {
	t.Helper()
	echo, err := typed.New(tool.Definition{Name: "echo", Description: "Echoes.", Effect: tool.Pure},
		func(_ context.Context, q query) (string, error) { return "you said " + q.Q, nil })
	require.NoError(t, err)
	human, err := builtin.New(builtin.AskHuman, builtin.Options{})
	require.NoError(t, err)
	registry, err := toolset.New(echo, tool.Redefine(human, tool.Definition{Name: "boss"}))
	require.NoError(t, err)
	h, stop := running(t, host.Options{Bus: journal, Tools: registry, Providers: map[string]llm.Caller{"mock": mock}})
	return working{Host: h, stop: stop}
}

// start starts a run that may call everything.
func (h working) start(t *testing.T, policy *events.Approval) (id string) {
	t.Helper()
	def := events.DefaultAgent()
	def.Name, def.LLM.Provider, def.Tools, def.Approval = "asker", "mock", []string{"echo", "boss"}, policy
	started, err := h.Gateway().Start(t.Context(), "", control.StartRequest{Agent: &def, Task: "ask"})
	require.NoError(t, err)
	return started.RunID
}

func stateOf(t *testing.T, g *control.Controller, id string) runs.RunState {
	t.Helper()
	state, err := g.State(t.Context(), "", id, 0)
	require.NoError(t, err)
	return state
}

// awaitCalls waits until so many calls of one reply wait for a human.
func awaitCalls(t *testing.T, g *control.Controller, id string, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var mem struct {
			PendingApproval *struct {
				Requests []events.Request `json:"requests"`
			} `json:"pending_approval"`
		}
		require.NoError(t, json.Unmarshal(stateOf(t, g, id).Memory, &mem))
		return mem.PendingApproval != nil && len(mem.PendingApproval.Requests) == n
	}, time.Minute, 5*time.Millisecond)
}

func decideAs(t *testing.T, g *control.Controller, id string, d events.Decision) {
	t.Helper()
	d.By = "ann"
	_, err := g.Decide(t.Context(), "", id, d)
	require.NoError(t, err)
}

// argumentsSeen are the arguments of each call in the mock's last request,
// resultsSeen what it was told came of them.
func argumentsSeen(mock *scripted.Mock) map[string]string {
	seen := map[string]string{}
	for _, m := range mock.Requests()[mock.CallCount()-1].Messages {
		for _, c := range m.Calls {
			seen[c.ID] = c.Arguments
		}
	}
	return seen
}

func resultsSeen(mock *scripted.Mock) map[string]string {
	seen := map[string]string{}
	for _, m := range mock.Requests()[mock.CallCount()-1].Messages {
		if m.Role == llm.RoleTool {
			seen[m.CallID] = m.Content
		}
	}
	return seen
}
