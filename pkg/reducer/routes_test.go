package reducer_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// TestOriginsAndRoutes: who may publish each event, and the `<to>` and `<pool>` that it gets,
// as CONTRACT section 1 has them.
func TestOriginsAndRoutes(t *testing.T) {
	noActor, forged, lost := nobody("a"), result("a", true, "forged"), failure("a", "nobody")
	forged.Code, lost.Outcome.Code = codes.NoActor, codes.NoActor
	stranger := single("a", "stranger")
	self, control, planning := []events.State{"own"}, []events.State{events.Control}, []events.State{events.Planning}
	both, planner := []events.State{"own", events.Control}, []events.State{"own", events.Planning}
	for _, c := range []struct {
		state   events.State
		payload events.Payload
		may     []events.State
		want    string
	}{
		{events.Idle, reducertest.StartOf("x", events.ModeTask), self, "planning.default"},
		{events.Planning, single("a", "alpha"), self, "acting.default"},
		{events.Planning, single("a", "beta"), self, "acting.web"},
		{events.Planning, stranger, self, "acting.default"},
		{events.Planning, oneBatch(), self, "parallel_acting.web"},
		{events.Planning, threeBatch(), self, "none.default"},
		{events.Planning, finalAnswer("forty-two"), self, "done.default"},
		{events.Planning, turnAnswer("hello"), self, "waiting_for_user.default"},
		{events.Planning, user("m", "x"), control, "planning.default"},
		{events.Planning, &events.LLMThought{}, self, "planning.default"},
		{events.Planning, &events.MaxSteps{}, self, "error.default"},
		{events.Planning, &events.LowConfidence{}, self, "reflecting.default"},
		{events.Planning, &events.AnswerTooShort{}, self, "planning.default"},
		{events.Planning, &events.ToolBlacklisted{}, self, "planning.default"},
		{events.Planning, &events.ReplyInvalid{}, self, "planning.default"},
		{events.Planning, heldOne(), self, "waiting_for_human.default"},
		{events.Planning, held("a"), self, "waiting_for_human.default"},
		{events.Planning, &events.LLMAttemptFailed{}, self, "none.default"},
		{events.Planning, &events.ContextWindowExpanded{}, both, "planning.default"},
		{events.Planning, &events.ToolCallsAddedToContext{}, both, "planning.default"},
		{events.Planning, loaded("x", 1), self, "planning.default"},
		{events.Planning, &events.ContextWindowExpanded{ContextReply: part(own("x", "load_messages", "more"))}, self, "none.default"},
		{events.Planning, &events.WorkingMemoryAdded{}, self, "none.default"},
		{events.Planning, &events.StorageSaved{}, self, "none.default"},
		{events.Planning, &events.Paused{}, control, "none.default"},
		{events.Planning, &events.BudgetRaised{}, control, "none.default"},
		{events.Planning, &events.CustomMemorySet{Key: "mine", Value: []byte("1")}, control, "none.default"},
		{events.Planning, &events.CancelledRun{}, control, "cancelled.default"},
		{events.Planning, &events.BudgetExceeded{}, both, "error.default"},
		{events.Planning, fatal(), both, "error.default"},
		{events.Planning, &events.Resumed{}, control, "planning.default"},
		{events.Planning, &events.LLMAttemptFailed{Kind: "handler"}, self, "none.default"},
		{events.Acting, success("a", "1"), self, "observing.default"},
		{events.Acting, failure("a", "1"), self, "observing.default"},
		{events.Acting, &events.ToolCallStarted{CallID: "a"}, self, "none.default"},
		{events.Acting, user("m", "x"), control, "none.default"},
		{events.Acting, &events.ContextWindowExpanded{}, both, "none.default"},
		{events.Acting, &events.Resumed{}, control, "acting.web"},
		{events.Acting, lost, both, "observing.default"},
		{events.Acting, &events.LLMAttemptFailed{Kind: "interrupted"}, self, "none.default"},
		{events.Acting, &events.LLMAttemptFailed{Kind: "handler", Content: "x", MessageID: "m"}, self, "none.default"},
		{events.Acting, interrupted("m", "x", ""), planning, "none.default"},
		{events.Acting, &events.BudgetExceeded{}, both, "error.default"},
		{events.Acting, &events.CancelledRun{}, control, "cancelled.default"},
		{events.Acting, &events.WorkingMemoryAdded{}, self, "none.default"},
		{events.Acting, &events.StorageLoaded{}, self, "none.default"},
		{events.ParallelActing, &events.ToolCallDispatched{CallID: "d"}, planning, "parallel_acting.math"},
		{events.ParallelActing, &events.ToolCallStarted{CallID: "a"}, self, "none.default"},
		{events.ParallelActing, result("a", true, "1"), self, "none.default"},
		{events.ParallelActing, &events.Resumed{}, control, "planning.default"},
		{events.ParallelActing, result("a", false, "1"), self, "none.default"},
		{events.ParallelActing, noActor, both, "none.default"},
		{events.ParallelActing, forged, self, "none.default"},
		{events.ParallelActing, &events.LLMAttemptFailed{Kind: "handler"}, planner, "none.default"},
		{events.ParallelActing, fatal(), append(planner, events.Control), "error.default"},
		{events.Observing, &events.Continue{}, self, "planning.default"},
		{events.Observing, &events.NeedsReflection{}, self, "reflecting.default"},
		{events.Observing, &events.NeedsPaging{}, self, "paging.default"},
		{events.Observing, &events.Resumed{}, control, "observing.default"},
		{events.Reflecting, &events.ReflectDone{}, self, "planning.default"},
		{events.Reflecting, &events.Resumed{}, control, "reflecting.default"},
		{events.Paging, &events.PageDone{}, self, "planning.default"},
		{events.Paging, &events.Resumed{}, control, "paging.default"},
		{events.WaitingForHuman, &events.HumanApproved{Decision: decision("a", "approved")}, self, "acting.default"},
		{events.WaitingForHuman, &events.HumanModified{Decision: decision("a", "modified")}, self, "acting.default"},
		{events.WaitingForHuman, &events.HumanRejected{Decision: decision("a", "rejected")}, self, "observing.default"},
		{events.WaitingForHuman, &events.ApprovalExpired{}, self, "observing.default"},
		{events.WaitingForHuman, user("m", "x"), control, "none.default"},
		{events.WaitingForHuman, &events.Resumed{}, control, "waiting_for_human.default"},
		{events.WaitingForUser, user("m", "x"), both, "planning.default"},
		{events.WaitingForUser, &events.Closed{}, self, "done.default"},
		{events.WaitingForUser, &events.Resumed{}, control, "waiting_for_user.default"},
		{events.WaitingForUser, interrupted("m", "x", ""), planning, "none.default"},
	} {
		says := fmt.Sprintf("%s in %s", events.TypeOf(c.payload), c.state)
		for _, from := range append([]events.State{events.Control, events.Nobody, "stranger"}, allStates...) {
			_, _, _, err := in(t, c.state).Draft(from, c.payload)
			if slices.Contains(c.may, from) || from == c.state && slices.Contains(c.may, "own") {
				require.NoError(t, err, "%s from %s", says, from)
			} else {
				require.ErrorContains(t, err, "may not come from "+string(from), says)
			}
		}
		require.Equal(t, c.want, in(t, c.state).route(c.payload), says)
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

func nobody(id string) *events.ToolCallResult {
	p := result(id, false, "no actor serves the pool")
	p.Code = codes.NoActor
	return p
}

// The last result of a batch goes to a pool that somebody served, if there is
// one: there an actor can end the batch as its results are.
func TestWhoEndsABatchThatNobodyServed(t *testing.T) {
	two := func() *scene {
		s := started(t).do(batchOf(callOf("a", "alpha"), callOf("b", "gamma")))
		require.NotEqual(t, s.Mem.Control.Calls[0].Pool, s.Mem.Control.Calls[1].Pool)
		return s
	}
	pools := func(s *scene) (first, second string) { return s.Mem.Control.Calls[0].Pool, s.Mem.Control.Calls[1].Pool }

	s := two()
	served, orphan := pools(s)
	s.do(result("a", true, "1"))
	require.Equal(t, "parallel_acting."+served, s.route(nobody("b")))
	require.Equal(t, "parallel_acting."+served, s.route(&events.Resumed{}))
	s.do(&events.ToolSuccess{})
	require.Equal(t, events.Observing, s.Mem.State)

	s = two()
	s.do(nobody("b"))
	require.Equal(t, "parallel_acting."+served, s.route(result("a", true, "1")), "its own")

	s = two()
	s.do(nobody("a"))
	require.Equal(t, "parallel_acting."+orphan, s.route(nobody("b")), "there is none")
}

func TestAbandonedBatch(t *testing.T) {
	s := started(t).do(batchOf(callOf("a", "alpha"), callOf("b", "alpha")))
	_, _, _, err := s.Draft(events.Control, reducer.AbandonedBatch())
	require.ErrorContains(t, err, "2 calls have no result")
	s.do(nobody("a"), result("b", true, "1"))
	for _, p := range []events.Payload{
		&events.ToolSuccess{}, &events.ToolFailure{},
		&events.ToolSuccess{Outcome: reducer.AbandonedBatch().Outcome},
		&events.ToolFailure{Outcome: &events.ToolOutcome{Code: "other"}},
		&events.ToolFailure{Outcome: &events.ToolOutcome{Code: codes.NoActor, CallID: "a"}},
		&events.ToolFailure{Outcome: &events.ToolOutcome{Code: codes.NoActor, Observation: "made up"}},
	} {
		_, _, _, err := s.Draft(events.Control, p)
		require.Error(t, err, "%T %+v", p, p)
	}
	results := len(s.Mem.ParallelResults)
	_, _, err = s.Append(events.Control, reducer.AbandonedBatch())
	require.NoError(t, err)
	require.Equal(t, events.Observing, s.Mem.State)
	require.Len(t, s.Mem.ParallelResults, results, "it is no result")
	s.do(&events.Continue{})
	require.Len(t, s.Mem.History, 2)

	// What is stored is what was drafted.
	e, err := new(events.Codec).Decode(s.Records[len(s.Records)-2].Body)
	require.NoError(t, err)
	require.Equal(t, reducer.AbandonedBatch(), e.Data)
}

var edges = sync.OnceValue(func() []reducer.Edge { return reducer.Edges(reducer.DefaultTable()) })

// checkEdge requires that whatever may be published is among the edges, on which
// permissions are given.
func checkEdge(t require.TestingT, before *reducer.Memory, s events.Subject, p events.Payload) {
	for _, from := range reducer.Origins(reducer.DefaultTable(), before, p) {
		found := slices.ContainsFunc(edges(), func(e reducer.Edge) bool {
			return e.From == from && e.To == s.To && (e.Pool == s.Pool || e.Pool == events.Wildcard)
		})
		require.True(t, found, "%s in %s goes from %s to %s in pool %s, which is no edge", events.TypeOf(p), before.State, from, s.To, s.Pool)
	}
}

// TestEdges: the edges of the built-in table, state by state, and no others.
func TestEdges(t *testing.T) {
	got := map[events.State][]string{}
	for _, e := range edges() {
		got[e.From] = append(got[e.From], fmt.Sprintf("%s.%s", e.To, e.Pool))
	}
	ended := " error.agents error.default"
	for from, want := range map[events.State]string{
		events.Idle: "acting.*" + ended + " none.default observing.default paging.default parallel_acting.* planning.default reflecting.default waiting_for_human.default waiting_for_user.default",
		events.Planning: "acting.* done.agents done.default" + ended + " none.default parallel_acting.* planning.default" +
			" reflecting.default waiting_for_human.default waiting_for_user.default",
		events.Reflecting:      strings.TrimSpace(ended) + " none.default planning.default",
		events.Acting:          strings.TrimSpace(ended) + " none.agents none.default observing.default waiting_for_human.default",
		events.ParallelActing:  strings.TrimSpace(ended) + " none.default observing.default parallel_acting.*",
		events.Observing:       strings.TrimSpace(ended) + " none.default paging.default planning.default reflecting.default",
		events.Paging:          strings.TrimSpace(ended) + " none.default planning.default",
		events.WaitingForHuman: "acting.*" + ended + " none.default observing.default parallel_acting.* planning.default waiting_for_human.default",
		events.WaitingForUser:  "done.agents done.default" + ended + " none.default planning.default",
		events.Control: "acting.* cancelled.agents cancelled.default" + ended + " none.default observing.default paging.default parallel_acting.*" +
			" planning.default reflecting.default waiting_for_human.default waiting_for_user.default",
		// A poisoned run may be ended by whoever meets it; nobody owns these.
		events.Done: strings.TrimSpace(ended), events.Errored: strings.TrimSpace(ended), events.Cancelled: strings.TrimSpace(ended),
	} {
		require.Equal(t, want, strings.Join(got[from], " "), "from %s", from)
		delete(got, from)
	}
	require.Empty(t, got)
}

// TestCheckEdge: what a body says against its subject, without the run.
func TestCheckEdge(t *testing.T) {
	table, run := reducer.DefaultTable(), events.Run{ID: "r"}
	cancel := events.Event{Run: "r", From: events.Acting, To: events.Cancelled, Data: &events.CancelledRun{}}
	from := func(s events.State) events.Subject {
		return events.Subject{Run: run, From: s, To: events.Cancelled, Pool: events.DefaultPool}
	}
	require.NoError(t, reducer.CheckEdge(table, from(events.Control), &cancel))
	for want, forge := range map[string]func(s *events.Subject, e *events.Event){
		"belongs to run r (subject: x)":                            func(s *events.Subject, _ *events.Event) { s.Run.ID = "x" },
		"Cancelled in state acting may not come from acting":       func(s *events.Subject, _ *events.Event) { s.From = events.Acting },
		"leads to cancelled and is on a subject to none":           func(s *events.Subject, _ *events.Event) { s.To = events.Nobody },
		"leads to cancelled and is on a subject to done":           func(s *events.Subject, _ *events.Event) { s.To = events.Done },
		"to is done, the table leads from acting":                  func(_ *events.Subject, e *events.Event) { e.To = events.Done },
		"invalid transition: moorebus.Cancelled in state done":     func(_ *events.Subject, e *events.Event) { e.From = events.Done },
		"invalid transition: moorebus.Forked in state acting":      func(_ *events.Subject, e *events.Event) { e.Data = &events.Forked{} },
		"invalid transition: moorebus.LlmToolCall in state acting": func(_ *events.Subject, e *events.Event) { e.Data = &events.LLMToolCall{} },
		"leads to acting and is on a subject to cancelled":         func(_ *events.Subject, e *events.Event) { e.To, e.Data = events.Acting, &events.Paused{} },
		"ToolCallDispatched in state parallel_acting may not come fr": func(_ *events.Subject, e *events.Event) {
			e.From, e.To, e.Data = events.ParallelActing, events.ParallelActing, &events.ToolCallDispatched{}
		},
		"invalid transition: moorebus.Forked in state idle is not in ": func(_ *events.Subject, e *events.Event) {
			e.From, e.To, e.Data = events.Idle, events.Done, &events.Forked{}
		},
	} {
		s, e := from(events.Control), cancel
		forge(&s, &e)
		require.ErrorContains(t, reducer.CheckEdge(table, s, &e), strings.ReplaceAll(want, "moorebus.", ""))
	}
	fork := events.Event{Run: "r", From: events.Idle, To: events.Acting, Data: &events.Forked{}}
	require.NoError(t, reducer.CheckEdge(table, events.Subject{Run: run, From: events.Idle, To: events.Acting, Pool: "web"}, &fork))
}
