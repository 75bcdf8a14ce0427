package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// forkScript takes a run through every state that a fork can begin in: a single
// call, a batch over two pools, a call that waits for a human.
const forkScript = `[
	{"calls": [{"id": "a", "name": "near", "arguments": {"q": "one"}}]},
	{"calls": [{"id": "b", "name": "near", "arguments": {"q": "two"}}, {"id": "c", "name": "far", "arguments": {"q": "three"}}]},
	{"calls": [{"id": "d", "name": "asked", "arguments": {"q": "four"}}]},
	{"text": "{{observation 1}}, {{observation 2}}, {{observation 3}}, {{observation -1}}."}
]`

const forkAnswer = "near one, near two, far three, asked four."

// forkHost runs all roles on a journal of several shards.
func forkHost(t *testing.T, bus *simtest.Journal) *control.Controller {
	t.Helper()
	var tools []tool.Tool
	for name, pool := range map[string]string{"near": "default", "far": "remote", "asked": "default"} {
		echo, err := typed.New(tool.Definition{Name: name, Description: "Echoes.", Effect: tool.Once, Pool: pool},
			func(_ context.Context, q query) (string, error) { return name + " " + q.Q, nil })
		require.NoError(t, err)
		tools = append(tools, echo)
	}
	registry, err := toolset.New(tools...)
	require.NoError(t, err)
	h, _ := running(t, host.Options{Bus: bus, Tools: registry, Providers: map[string]llm.Caller{"scripted": scripted.New()}})
	return h.Gateway()
}

func startForkable(t *testing.T, g *control.Controller) string {
	t.Helper()
	def := events.DefaultAgent()
	def.Name, def.LLM.Provider, def.Tools = "forked", "scripted", []string{"near", "far", "asked"}
	def.LLM.Script = json.RawMessage(forkScript)
	def.Approval = &events.Approval{Policy: events.ApproveTools, Tools: []string{"asked"}}
	started, err := g.Start(t.Context(), "", control.StartRequest{Agent: &def, Task: "ask"})
	require.NoError(t, err)
	return started.RunID
}

// carry takes a run to its end and returns its memory.
func carry(t *testing.T, g *control.Controller, id string) *reducer.Memory {
	t.Helper()
	var mem *reducer.Memory
	decided := false
	require.Eventually(t, func() bool {
		mem = new(reducer.Memory)
		require.NoError(t, json.Unmarshal(stateOf(t, g, id).Memory, mem))
		if mem.State == events.WaitingForHuman && !decided {
			decided = true
			decideAs(t, g, id, events.Decision{CallID: "d", Decision: events.DecisionApproved})
		}
		return slices.Contains([]events.State{events.Done, events.Errored, events.Cancelled}, mem.State)
	}, time.Minute, time.Millisecond, "run %s", id)
	return mem
}

// TestForksOfEveryEventAreCarriedToTheirEnd forks a run that has ended after each
// of its events: by real roles every fork comes to the same answer, in which each
// call has one result.
func TestForksOfEveryEventAreCarriedToTheirEnd(t *testing.T) {
	t.Parallel()
	bus := simtest.New(simtest.Options{Shards: 3})
	g := forkHost(t, bus)
	parent := startForkable(t, g)
	whole := carry(t, g, parent)
	require.Equal(t, forkAnswer, *whole.FinalAnswer)

	begun := map[events.State]bool{}
	partial, open := false, 0
	for at := uint64(1); at < whole.N; at++ {
		fork, err := g.Fork(t.Context(), "", parent, forking.Request{At: at})
		if refusal.Is(err, refusal.CodeApprovalOpen) {
			open++
			continue
		}
		require.NoError(t, err, "at %d", at)
		begun[fork.State] = true
		before, err := g.State(t.Context(), "", fork.RunID, 1)
		require.NoError(t, err)
		first := new(reducer.Memory)
		require.NoError(t, json.Unmarshal(before.Memory, first))
		partial = partial || fork.State == events.ParallelActing && len(first.ParallelResults) == 1

		mem := carry(t, g, fork.RunID)
		require.Nil(t, mem.Error, "at %d", at)
		require.Equal(t, forkAnswer, *mem.FinalAnswer, "at %d", at)
		require.Len(t, mem.History, 4, "at %d", at)
		require.Equal(t, whole.Step, mem.Step)
		require.Equal(t, whole.Control.Replies, mem.Control.Replies, "the script goes on where it was")
	}
	for _, s := range []events.State{events.Planning, events.Acting, events.ParallelActing, events.WaitingForHuman, events.Observing} {
		require.True(t, begun[s], "no fork began in %s", s)
	}
	require.Positive(t, open, "none was refused between an approval and its call's result")
	require.True(t, partial, "no fork began with some results of a batch in")
	_, err := g.Fork(t.Context(), "", parent, forking.Request{At: whole.N})
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, refusal.CodeRunEnded, refused.Code)
	require.Equal(t, whole.N, carry(t, g, parent).N, "the parent is as it was")

	report, err := verify.Log(t.Context(), bus, reducer.NewMachine(reducer.MachineOptions{}), verify.Options{All: true})
	require.NoError(t, err)
	require.Empty(t, report.Findings)
	require.Equal(t, int(whole.N)-open, report.Outcomes[verify.Done])
}

// TestForkOfARunThatGoesOn forks a run that waits, then both are decided
// differently, and a fork of the fork goes on from its parent's decision.
func TestForkOfARunThatGoesOn(t *testing.T) {
	t.Parallel()
	g := forkHost(t, simtest.New(simtest.Options{Shards: 2}))
	parent := startForkable(t, g)
	awaitCalls(t, g, parent, 1)
	at := stateOf(t, g, parent).N
	fork, err := g.Fork(t.Context(), "", parent, forking.Request{At: at, Patch: json.RawMessage(`{"task": "ask again"}`)})
	require.NoError(t, err)
	require.Equal(t, events.WaitingForHuman, fork.State)
	decideAs(t, g, fork.RunID, events.Decision{CallID: "d", Decision: events.DecisionRejected, Reason: "no"})
	mem := carry(t, g, fork.RunID)
	require.Equal(t, "near one, near two, far three, REJECTED: no.", *mem.FinalAnswer)
	require.Equal(t, "ask again", mem.Messages[0].Content)
	require.Equal(t, forkAnswer, *carry(t, g, parent).FinalAnswer)

	second, err := g.Fork(t.Context(), "", fork.RunID, forking.Request{At: 2})
	require.NoError(t, err)
	mem = carry(t, g, second.RunID)
	require.Equal(t, 2, mem.Control.ForkedFrom.Depth)
	require.Equal(t, "near one, near two, far three, REJECTED: no.", *mem.FinalAnswer)

	_, err = g.Decide(t.Context(), "", second.RunID, events.Decision{CallID: "d", Decision: events.DecisionApproved, By: "bob"})
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, refusal.CodeRunEnded, refused.Code)
	require.Equal(t, "ann", fmt.Sprint(refused.Fields["decision"].(*events.Decision).By), "the decision stands in its parent's log")
}
