package reducer_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// stored returns the subject and body of an event that a stranger stores as the
// run's next one, whatever the table says.
func (s *scene) stored(typ events.Type, to events.State, data string) (string, []byte) {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": s.NewID(), "type": typ, "source": "moorebus/test/1", "subject": s.ID.ID, "time": "2026-01-02T03:04:05Z",
		"datacontenttype": "application/json", "dataschema": "moorebus/" + string(typ) + "/1", "n": s.Mem.N + 1, "from": s.Mem.State,
		"to": to, "step": s.Mem.Step, "data": json.RawMessage(data),
	})
	require.NoError(s.t, err)
	if s.Mem.N > 0 {
		tail := `,"cause":"` + s.Mem.Control.LastID + `","prev":"` + s.Mem.Control.Head + `"}`
		body = append(body[:len(body)-1], tail...)
	}
	return events.Subject{Run: s.ID, From: s.Mem.State, To: to, Pool: "default"}.String(), body
}

// TestEveryIllegalEdgePoisons stores every event that the table does not allow
// in a state, in every state.
func TestEveryIllegalEdgePoisons(t *testing.T) {
	for _, state := range allStates {
		scene := in(t, state)
		for _, typ := range events.Types() {
			if _, legal := oracle(state, typ); legal || state == events.Idle && typ == events.TypeForked {
				continue // a fork has no row, and cases of its own
			}
			s := *scene
			s.Run = scene.Clone()
			subject, body := s.stored(typ, state, `{}`)
			poisonBy(t, s.Run, subject, body)
			if !slices.Contains(terminalStates, state) {
				require.Contains(t, s.Mem.Control.Poison.Reason, "not in the transition table")
				require.Equal(t, string(typ), s.Mem.Control.Poison.Type)
			}
		}
	}
}

func TestTransitionErrorNamesStateAndEvent(t *testing.T) {
	s := in(t, events.Planning)
	_, _, _, err := s.Draft(events.Planning, success("a", "1"))
	var wrong *reducer.TransitionError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, &reducer.TransitionError{From: events.Planning, Event: events.TypeToolSuccess}, wrong)
	require.ErrorContains(t, err, "ToolSuccess in state planning")
	require.NotErrorAs(t, in(t, events.Planning).mustFail(turnAnswer("x")), &wrong)
}

// mustFail drafts from a state that may not publish.
func (s *scene) mustFail(p events.Payload) error {
	_, _, _, err := s.Draft(events.Observing, p)
	require.Error(s.t, err)
	return err
}

// TestOnlyAnEndFollowsPoison: FatalError and Cancelled and nothing else.
func TestOnlyAnEndFollowsPoison(t *testing.T) {
	for _, state := range allStates {
		if slices.Contains(terminalStates, state) {
			continue
		}
		scene := in(t, state)
		require.Error(t, scene.Store(events.Subject{Run: scene.ID, From: state, To: state, Pool: "default"}.String(), []byte("{")))
		require.Equal(t, state, scene.Mem.State)
		n := scene.Mem.N
		wants := scene.Effects()
		require.Len(t, wants, 1)
		require.Equal(t, effects.KindEnd, wants[0].Kind)
		require.Empty(t, wants[0].State, "anyone may do it")

		for _, typ := range events.Types() {
			to, legal := oracle(state, typ)
			if !legal || typ == events.TypeFatalError || typ == events.TypeCancelled {
				continue
			}
			s := *scene
			s.Run = scene.Clone()
			subject, body := s.stored(typ, to, `{"mode":"task"}`)
			require.Error(t, s.Store(subject, body), "%s in %s", typ, state)
			require.Equal(t, n, s.Mem.Control.Poison.N, "the first bad record is the one that counts")
		}

		for _, owner := range []events.State{events.Planning, events.Acting, events.Observing, events.WaitingForHuman, events.Control} {
			s := scene.Clone()
			end := effects.End(s.Mem).(*events.FatalError)
			require.Equal(t, codes.Poison, end.Code)
			require.Equal(t, n, end.N)
			require.NotEmpty(t, end.Reason)
			_, _, err := s.Append(owner, end)
			require.NoError(t, err, "whichever role meets it first, out of a state it owns")
			require.Equal(t, events.Errored, s.Mem.State)
			require.Equal(t, codes.Poison, s.Mem.Error.Code)
			require.Equal(t, reducertest.Canonical(s.Fold()), reducertest.Canonical(s.Mem))
		}
		s := scene.Clone()
		_, _, err := s.Append(events.Control, &events.CancelledRun{})
		require.NoError(t, err)
	}
}

// TestPoisonedStart: the record that the end is caused by may be readable, or
// not.
func TestPoisonedStart(t *testing.T) {
	for _, cause := range []string{"", "01932c07-0000-7000-9000-000000000001"} {
		s := newScene(t)
		subject, body := s.stored(events.TypeStart, events.Planning, `{"mode":"dream"}`)
		require.Error(t, s.Store(subject, body))
		require.Equal(t, events.Idle, s.Mem.State)
		require.Equal(t, "Start", s.Mem.Control.Poison.Type)
		sub, e, err := s.Machine.Draft(s.Mem, s.ID, events.Planning, effects.End(s.Mem), reducer.Stamp{ID: s.NewID(), Source: "moorebus/planner/1", Cause: cause})
		require.NoError(t, err)
		require.Equal(t, uint64(2), e.N)
		body, err = s.Machine.Codec().Encode(e)
		require.NoError(t, err)
		require.NoError(t, s.Store(sub.String(), body))
		require.Equal(t, events.Errored, s.Mem.State)
	}
}

func TestPoisonNamesTheType(t *testing.T) {
	for body, want := range map[string]string{
		"not JSON": "", `{"type":"OrderShipped"}`: "OrderShipped", `{"type":"LlmToolCall","n":0}`: "LlmToolCall", `{"type":5}`: "",
	} {
		s := in(t, events.Planning)
		require.Error(t, s.Store(events.Subject{Run: s.ID, From: "planning", To: "acting", Pool: "default"}.String(), []byte(body)))
		require.Equal(t, want, s.Mem.Control.Poison.Type, body)
		require.Contains(t, effects.End(s.Mem).(*events.FatalError).Message, want)
	}
	s := in(t, events.Planning)
	_, body := s.stored(events.TypePaused, events.Planning, `{}`)
	before := reducertest.Canonical(s.Mem)
	_, err := s.Machine.Apply(s.Mem, "not.a.subject", body)
	require.ErrorIs(t, err, reducer.ErrSubject)
	require.ErrorContains(t, err, "not.a.subject")
	require.Equal(t, before, reducertest.Canonical(s.Mem), "it belongs to no run and changes none")
	long := in(t, events.Planning)
	subject := events.Subject{Run: long.ID, From: "planning", To: "acting", Pool: "default"}.String()
	require.Error(t, long.Store(subject, []byte(`{"type":"`+strings.Repeat("x", 1<<20)+`"}`)))
	require.Less(t, len(reducertest.Canonical(long.Mem)), 20_000, "a bad record does not swell memory")
}

// TestPayloadsThatDoNotFitTheRun: the edge is legal, what is said is not.
func TestPayloadsThatDoNotFitTheRun(t *testing.T) {
	s := in(t, events.Planning)
	s.refuses(interrupted("", "x", ""), "has no message_id")
	s.refuses(&events.LLMToolCall{}, "has 0 calls")
	s.refuses(&events.LLMToolCall{ToolCallReply: replyOf(callOf("a", "alpha"), callOf("b", "alpha"))}, "has 2 calls")
	s.refuses(batchOf(callOf("a", "alpha")), "at least 2")
	s.refuses(batchOf(callOf("a", "alpha"), callOf("a", "beta")), "not new in the run")
	s.refuses(single("", "alpha"), "not new in the run")
	beside := single("a", "alpha")
	beside.Refused = []events.Refusal{{Call: callOf("a", "x")}}
	s.refuses(beside, "not new in the run")
	s.refuses(&events.HumanApprovalRequired{ToolCallReply: replyOf(callOf("a", "alpha"))}, "no requests")
	s.refuses(&events.HumanApprovalRequired{Requests: []events.Request{{CallID: "a"}}}, "no calls")
	ask := approvalOf([]string{"a"}, callOf("a", "alpha"), callOf("b", "beta"))
	ask.Requests[0].CallID = "z"
	s.refuses(ask, "which it does not have")
	ask.Requests = []events.Request{{CallID: "a"}, {CallID: "a"}}
	s.refuses(ask, "twice")
	s.refuses(user("", "x"), "message_id")
	s.refuses(&events.ToolCallsAddedToContext{CallIDs: []string{"zz"}}, "unknown call \"zz\"")
	s.refuses(&events.ToolCallDispatched{CallID: "a"}, "no place in state planning")
	s.refuses(&events.ToolCallStarted{CallID: "a"}, "no place in state planning")
	s.refuses(result("a", true, "1"), "no place in state planning")
	s.refuses(decided("a", "approved"), "nothing waits")

	s = in(t, events.Idle)
	start := reducertest.StartOf("x", events.ModeTask)
	start.Mode = "dream"
	s.refuses(start, "neither task nor chat")

	s = in(t, events.Acting)
	s.refuses(success("b", "1"), "not of this reply")
	s.refuses(&events.ToolSuccess{}, "no outcome")
	wrong := outcome("a", false, "x")
	s.refuses(&events.ToolSuccess{Outcome: &wrong}, "no outcome of its own kind")
	s.refuses(result("a", true, "1"), "no place in state acting")
	s.refuses(&events.ToolCallDispatched{CallID: "a"}, "no place in state acting")
	s.refuses(&events.HumanApprovalRequired{Requests: []events.Request{{CallID: "b"}}}, "not of this reply")
	s.refuses(&events.HumanApprovalRequired{Requests: []events.Request{{CallID: "a"}, {CallID: "b"}}}, "2 requests")
	s.refuses(&events.HumanApprovalRequired{Requests: []events.Request{{CallID: "a"}}}, "was not started")
	s.do(success("a", "1"), &events.Continue{})
	s.refuses(single("a", "alpha"), "not new in the run")
	s.refuses(&events.ReplyInvalid{RefusedReply: events.RefusedReply{Calls: []events.Call{callOf("a", "x")}}}, "not new in the run")
	s.refuses(&events.ToolBlacklisted{RefusedReply: events.RefusedReply{Calls: []events.Call{callOf("a", "x")}}}, "not new in the run")

	s = in(t, events.ParallelActing)
	s.refuses(&events.ToolSuccess{}, "3 calls have no result")
	s.refuses(success("a", "1"), "ends a batch")
	s.refuses(result("z", true, "1"), "not of this reply")
	s.do(result("a", false, "1"))
	s.refuses(result("a", true, "2"), "has its result already")
	s.refuses(&events.ToolCallStarted{CallID: "a"}, "has its result already")
	s.refuses(&events.ToolCallDispatched{CallID: "a"}, "has its result already")
	s.refuses(&events.ToolFailure{}, "2 calls have no result")
	s.do(result("b", false, "1"), result("d", false, "1"))
	s.refuses(&events.ToolSuccess{}, "does not match")
	s.do(&events.ToolFailure{})

	s = started(t).do(oneBatch(), result("b", true, "1"), result("c", false, "1"))
	s.refuses(&events.ToolFailure{}, "does not match")
}

func TestDecisionsThatDoNotFit(t *testing.T) {
	s := started(t).do(heldOne())
	s.refuses(&events.HumanApproved{Decision: decision("z", "approved")}, "does not wait")
	s.refuses(&events.HumanApproved{Decision: decision("a", "rejected")}, "want approved")
	s.refuses(&events.HumanModified{Decision: decision("a", "approved")}, "want modified")
	s.refuses(&events.HumanRejected{Decision: decision("a", "approved")}, "want rejected")
	s.refuses(&events.HumanModified{Decision: events.Decision{CallID: "a", Decision: "modified"}}, "no arguments")
	s.refuses(decided("a", "approved"), "call by call")
	s.refuses(&events.HumanApprovedParallel{}, "not every call")
	s.refuses(&events.HumanRejected{}, "does not wait")

	s = started(t).do(held("a", "b"))
	s.refuses(&events.HumanApproved{Decision: decision("a", "approved")}, "call by call")
	s.refuses(decided("d", "approved"), "does not wait")
	s.refuses(decided("a", "sure"), "want approved or modified or rejected")
	s.refuses(decided("a", ""), "want approved")
	s.refuses(&events.HumanApprovedParallel{}, "not every call")
	s.refuses(&events.HumanRejected{}, "not every call")
	s.do(decided("a", "rejected"))
	s.refuses(decided("a", "approved"), "decided already")
	s.do(decided("b", "rejected"))
	s.refuses(&events.HumanRejected{}, "does not match") // d is left, which nobody had to decide on
	s.do(&events.HumanApprovedParallel{})
	require.Equal(t, events.ParallelActing, s.Mem.State)

	s = started(t).do(approvalOf([]string{"a", "b"}, callOf("a", "alpha"), callOf("b", "beta")), decided("a", "rejected"), decided("b", "rejected"))
	s.refuses(&events.HumanApprovedParallel{}, "does not match")
	s.do(&events.HumanRejected{})
}

// TestQueuedCallsGoFirst: what a model asked for is answered before it is asked
// again.
func TestQueuedCallsGoFirst(t *testing.T) {
	first := single("a", "alpha")
	first.Queued = []events.Call{callOf("q", "beta"), callOf("r", "beta")}
	s := started(t).do(first, success("a", "1"), &events.Continue{})
	s.refuses(single("r", "beta"), "have not gone out yet")
	s.refuses(single("new", "beta"), "have not gone out yet")
	s.refuses(finalAnswer("forty-two"), "have not gone out yet")
	s.refuses(oneBatch(), "have not gone out yet")
	forged := single("q", "beta")
	forged.Calls[0].Arguments = `{"n":2}`
	s.refuses(forged, "have not gone out yet")
	s.do(user("m", "x"), &events.Resumed{})
	s.do(single("q", "beta"), success("q", "1"), &events.Continue{})
	s.do(approvalOf([]string{"r"}, callOf("r", "beta")), &events.HumanApproved{Decision: decision("r", "approved")}, success("r", "1"), &events.Continue{})
	require.Equal(t, 1, s.Mem.Step)
	s.do(finalAnswer("forty-two"))
}

func TestTerminalRunsTakeNothing(t *testing.T) {
	for _, state := range terminalStates {
		s := in(t, state)
		for _, p := range []events.Payload{&events.CancelledRun{}, fatal(), user("m", "x"), &events.Resumed{}} {
			_, _, _, err := s.Draft(events.Control, p)
			var wrong *reducer.TransitionError
			require.True(t, errors.As(err, &wrong))
		}
		require.Empty(t, s.Effects())
	}
}
