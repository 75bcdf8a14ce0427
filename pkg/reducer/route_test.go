package reducer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// TestRoutes: the `<to>` and `<pool>` of every event, as CONTRACT section 1 has
// them.
func TestRoutes(t *testing.T) {
	stranger := single("a", "stranger")
	for _, c := range []struct {
		state   events.State
		payload events.Payload
		want    string
	}{
		{events.Idle, reducertest.StartOf("x", events.ModeTask), "planning.default"},
		{events.Planning, single("a", "alpha"), "acting.default"},
		{events.Planning, single("a", "beta"), "acting.web"},
		{events.Planning, stranger, "acting.default"},
		{events.Planning, oneBatch(), "parallel_acting.web"},
		{events.Planning, threeBatch(), "none.default"},
		{events.Planning, finalAnswer("forty-two"), "done.default"},
		{events.Planning, turnAnswer("hello"), "waiting_for_user.default"},
		{events.Planning, user("m", "x"), "planning.default"},
		{events.Planning, &events.LLMThought{}, "planning.default"},
		{events.Planning, &events.MaxSteps{}, "error.default"},
		{events.Planning, &events.LowConfidence{}, "reflecting.default"},
		{events.Planning, &events.AnswerTooShort{}, "planning.default"},
		{events.Planning, &events.ToolBlacklisted{}, "planning.default"},
		{events.Planning, &events.ReplyInvalid{}, "planning.default"},
		{events.Planning, heldOne(), "waiting_for_human.default"},
		{events.Planning, held("a"), "waiting_for_human.default"},
		{events.Planning, &events.LLMAttemptFailed{}, "none.default"},
		{events.Planning, &events.ContextWindowExpanded{}, "planning.default"},
		{events.Planning, &events.ToolCallsAddedToContext{}, "planning.default"},
		{events.Planning, loaded("x", 1), "planning.default"},
		{events.Planning, &events.ContextWindowExpanded{ContextReply: part(own("x", "load_messages", "more"))}, "none.default"},
		{events.Planning, &events.WorkingMemoryAdded{}, "none.default"},
		{events.Planning, &events.StorageSaved{}, "none.default"},
		{events.Planning, &events.Paused{}, "none.default"},
		{events.Planning, &events.BudgetRaised{}, "none.default"},
		{events.Planning, &events.CancelledRun{}, "cancelled.default"},
		{events.Planning, &events.BudgetExceeded{}, "error.default"},
		{events.Planning, fatal(), "error.default"},
		{events.Acting, success("a", "1"), "observing.default"},
		{events.Acting, failure("a", "1"), "observing.default"},
		{events.Acting, &events.ToolCallStarted{CallID: "a"}, "none.default"},
		{events.Acting, user("m", "x"), "none.default"},
		{events.Acting, &events.ContextWindowExpanded{}, "none.default"},
		{events.ParallelActing, &events.ToolCallDispatched{CallID: "d"}, "parallel_acting.math"},
		{events.ParallelActing, &events.ToolCallStarted{CallID: "a"}, "none.default"},
		{events.ParallelActing, result("a", true, "1"), "none.default"},
		{events.WaitingForHuman, &events.HumanApproved{Decision: decision("a", "approved")}, "acting.default"},
		{events.WaitingForHuman, &events.HumanModified{Decision: decision("a", "modified")}, "acting.default"},
		{events.WaitingForHuman, &events.HumanRejected{Decision: decision("a", "rejected")}, "observing.default"},
		{events.WaitingForHuman, &events.ApprovalExpired{}, "observing.default"},
		{events.WaitingForHuman, user("m", "x"), "none.default"},
		{events.WaitingForUser, user("m", "x"), "planning.default"},
		{events.WaitingForUser, &events.Closed{}, "done.default"},
		{events.Observing, &events.Continue{}, "planning.default"},
		{events.Observing, &events.NeedsReflection{}, "reflecting.default"},
		{events.Observing, &events.NeedsPaging{}, "paging.default"},
		{events.Reflecting, &events.ReflectDone{}, "planning.default"},
		{events.Paging, &events.PageDone{}, "planning.default"},
		// Resumed goes to the current state.
		{events.Planning, &events.Resumed{}, "planning.default"},
		{events.Acting, &events.Resumed{}, "acting.web"},
		{events.ParallelActing, &events.Resumed{}, "planning.default"},
		{events.WaitingForHuman, &events.Resumed{}, "waiting_for_human.default"},
		{events.WaitingForUser, &events.Resumed{}, "waiting_for_user.default"},
		{events.Observing, &events.Resumed{}, "observing.default"},
		{events.Reflecting, &events.Resumed{}, "reflecting.default"},
		{events.Paging, &events.Resumed{}, "paging.default"},
	} {
		require.Equal(t, c.want, in(t, c.state).route(c.payload), "%s in %s", events.TypeOf(c.payload), c.state)
	}
}

func TestRouteOfAnUnknownOutcome(t *testing.T) {
	s := in(t, events.Acting).do(&events.ToolCallStarted{CallID: "a"})
	require.Equal(t, "waiting_for_human.default", s.route(&events.HumanApprovalRequired{Requests: []events.Request{{CallID: "a"}}}))
}

func TestARunWithAParentEndsInTheAgentsPool(t *testing.T) {
	for want, p := range map[string]events.Payload{
		"done.agents": finalAnswer("forty-two"), "error.agents": fatal(), "cancelled.agents": &events.CancelledRun{},
	} {
		require.Equal(t, want, started(t, withParent).route(p))
	}
	require.Equal(t, "error.agents", started(t, withParent).route(&events.MaxSteps{}))
	require.Equal(t, "error.agents", started(t, withParent).route(&events.BudgetExceeded{}))
	s := started(t, withParent)
	require.Equal(t, "acting.default", s.route(single("a", "alpha")), "only its end")
	require.Equal(t, "done.agents", started(t, chat, withParent).do(turnAnswer("hello")).route(&events.Closed{}))
}

func TestSubjectsAreTheRuns(t *testing.T) {
	s := started(t)
	subject, _, err := s.Append(events.Control, &events.Paused{})
	require.NoError(t, err)
	require.Equal(t, "moore.0.default.control.none.default."+s.ID.ID, subject.String())
	_, _, err = s.Machine.Draft(s.Mem, events.NewRun("default", s.NewID(), 1), events.Control, &events.Paused{}, reducer.Stamp{})
	require.ErrorContains(t, err, "belongs to run")
}
