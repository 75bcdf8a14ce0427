package httpapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

// child starts the sub-run of a call, and returns its id.
func (r *rig) child(parent, call string, as *events.Parent) string {
	id := runid.Child(parent, call)
	start := reducertest.StartOf("help", events.ModeTask)
	start.Parent = as
	r.Happens(id, events.Idle, start)
	return id
}

func (r *rig) childOf(parent, call string) string {
	return r.child(parent, call, &events.Parent{Run: parent, CallID: call})
}

// caller starts a run that waits for the results of the calls.
func (r *rig) caller(calls ...string) string {
	id := r.start("task")
	r.Happens(id, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: called(calls...)})
	return id
}

func TestCancelReachesTheChildrenOfOpenCalls(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 3, func(t *testing.T, r *rig) {
		parent := r.caller("c1", "c2", "c3", "c4", "c5")
		known, running := r.childOf(parent, "c1"), r.childOf(parent, "c2")
		r.Happens(parent, events.ParallelActing, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{CallID: "c1", Success: true}})
		r.Happens(running, events.Planning, &events.LLMToolCall{ToolCallReply: called("g1")})
		grandchild := r.childOf(running, "g1")
		foreign := r.child(parent, "c3", &events.Parent{Run: runlog.NewID(), CallID: "c3"})
		done := r.childOf(parent, "c4")
		r.Happens(done, events.Planning, answered("Helped."))
		none := r.child(parent, "c5", nil)

		a := r.do("POST", "/v1/runs/"+parent+"/cancel", `{"by":"ann","reason":"enough"}`)
		require.Equal(t, 200, a.status, a.body)
		states := map[string]events.State{}
		for _, id := range []string{known, running, grandchild, foreign, done, none} {
			states[id] = r.memory(id).State
		}
		require.Equal(t, map[string]events.State{
			known: events.Planning, running: events.Cancelled, grandchild: events.Cancelled,
			foreign: events.Planning, done: events.Done, none: events.Planning,
		}, states)
		records := r.Records(grandchild)
		require.Contains(t, string(records[len(records)-1].Body), `"by":"ann"`)
		require.Contains(t, string(records[len(records)-1].Body), "run "+running+", which called it, has ended")
	})
}

// A repeated cancel cancels the sub-runs that the first one left.
func TestCancelAgainReachesWhatWasLeft(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	parent := r.caller("c1", "c2")
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+parent+"/cancel", "").status)
	child := r.childOf(parent, "c1")
	r.Happens(child, events.Planning, &events.LLMToolCall{ToolCallReply: called("g1")})
	r.Happens(child, events.Control, &events.CancelledRun{})
	grandchild := r.childOf(child, "g1")
	for range 2 {
		r.fails(409, "run_ended", r.do("POST", "/v1/runs/"+parent+"/cancel", ""))
		require.Equal(t, events.Cancelled, r.memory(grandchild).State, "through a child that was cancelled before")
		require.Len(t, r.Records(grandchild), 2)
		require.Len(t, r.Records(child), 3)
	}
}

func TestChildrenOfARunThatEndedOtherwise(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	failed, going := r.caller("c1", "c2"), r.caller("c1", "c2")
	r.Happens(failed, events.Control, &events.BudgetExceeded{Outcome: events.Outcome{Code: "wall_time"}})
	abandoned, wanted := r.childOf(failed, "c2"), r.childOf(going, "c2")
	require.NoError(t, r.control.CancelChildren(t.Context(), "", failed, events.By{By: "gateway"}))
	require.NoError(t, r.control.CancelChildren(t.Context(), "", going, events.By{By: "gateway"}))
	require.Equal(t, events.Cancelled, r.memory(abandoned).State)
	require.Equal(t, events.Planning, r.memory(wanted).State, "its parent waits for it")
	require.Error(t, r.control.CancelChildren(t.Context(), "", runlog.NewID(), events.By{}))
}
