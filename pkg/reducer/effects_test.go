package reducer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestEffectsOfEveryState(t *testing.T) {
	for state, want := range map[events.State][]string{
		events.Idle: nil, events.Planning: {"plan/1"}, events.Acting: {"tool/2/a"}, events.WaitingForHuman: nil, events.WaitingForUser: nil,
		events.Observing: {"observe/3"}, events.Reflecting: {"reflect/2"}, events.Paging: {"page/4"},
		events.ParallelActing: {"dispatch/2/a", "dispatch/2/b", "dispatch/2/d"},
		events.Done:           nil, events.Errored: nil, events.Cancelled: nil,
	} {
		s := in(t, state)
		require.Equal(t, want, s.keys(), state)
		for _, e := range s.Effects() {
			owner := state
			if e.Kind == effects.KindDispatch {
				owner = events.Planning
			}
			require.Equal(t, owner, e.State)
		}
	}
}

func TestKeysNeverContainTheAttempt(t *testing.T) {
	for _, state := range []events.State{events.Planning, events.Acting, events.ParallelActing, events.Observing, events.Reflecting, events.Paging} {
		s := in(t, state)
		key := s.keys()[0]
		s.do(&events.LLMAttemptFailed{Kind: codes.KindHandler, Key: key}, &events.LLMAttemptFailed{Kind: codes.KindWorkerLost, Key: key},
			&events.LLMAttemptFailed{Kind: "overloaded", Key: key}, &events.LLMAttemptFailed{Kind: codes.KindHandler, Key: "other"},
			&events.LLMAttemptFailed{Kind: "rate_limited", Key: key},
			&events.LLMAttemptFailed{Kind: "rate_limited", Key: key, NotAsked: true, Under: 1, Delivery: 5})
		require.Equal(t, reducer.Attempt{Key: key, Handler: 1, RateLimited: 1, NotAsked: 1, Provider: 1, Under: 1, Delivery: 5}, s.effect(key).Failed)
		require.Equal(t, 4, s.effect(key).Failed.Total(), "a lost worker is forgotten once another one reports a failure")
		s.do(&events.Paused{}, &events.Resumed{})
		if state != events.ParallelActing { // a re-drive dispatches anew
			require.Contains(t, s.keys(), key, "a pause does not change what the work is")
		}
		s.do(user("m", "x"))
		if state == events.Planning {
			require.NotContains(t, s.keys(), key, "the call in flight is obsolete")
			require.Zero(t, s.Effects()[0].Failed)
		}
	}
}

func TestAContextEditAsksTheModelAgain(t *testing.T) {
	for _, edit := range []events.Payload{&events.ContextWindowExpanded{}, &events.ToolCallsAddedToContext{}} {
		s := in(t, events.Planning).do(edit)
		require.Equal(t, []string{"plan/2"}, s.keys())
		s = in(t, events.Acting).do(edit)
		require.Equal(t, []string{"tool/2/a"}, s.keys())
	}
	s := in(t, events.Planning).do(&events.WorkingMemoryAdded{}, &events.BudgetRaised{})
	require.Equal(t, []string{"plan/1"}, s.keys())
}

func TestPausedHoldsWhatHasNotStarted(t *testing.T) {
	for state, held := range map[events.State]bool{
		events.Planning: true, events.Reflecting: true, events.Acting: true, events.Observing: false, events.Paging: false,
	} {
		s := in(t, state).do(&events.Paused{})
		require.Equal(t, held, s.Effects()[0].Held, state)
		s.do(&events.Resumed{})
		require.False(t, s.Effects()[0].Held, state)
	}
	s := in(t, events.Acting).do(&events.ToolCallStarted{CallID: "a"}, &events.Paused{})
	require.False(t, s.effect("tool/2/a").Held, "a call that was started is concluded")
	require.Equal(t, uint64(3), s.effect("tool/2/a").Started)
	s = started(t).do(oneBatch(), &events.ToolCallStarted{CallID: "b"}, &events.Paused{})
	require.False(t, s.effect("tool/2/b").Held)
	require.True(t, s.effect("tool/2/c").Held)
	s = in(t, events.ParallelActing).do(&events.Paused{})
	for _, e := range s.Effects() {
		require.True(t, e.Held, "no dispatch while paused")
	}
	s = started(t).do(oneBatch(), result("b", true, "1"), &events.Paused{}, result("c", true, "1"))
	require.False(t, s.effect("join/2").Held, "the join of a batch goes on")
}

func TestOnePoolIsOneDelivery(t *testing.T) {
	s := started(t)
	require.Equal(t, "parallel_acting.web", s.route(oneBatch()))
	require.Equal(t, []string{"tool/2/b", "tool/2/c"}, s.keys())
	for _, e := range s.Effects() {
		require.Equal(t, uint64(2), e.Wake)
	}
	require.Equal(t, "none.default", s.route(result("c", true, "1")))
	require.Equal(t, []string{"tool/2/b"}, s.keys())
	require.Equal(t, "parallel_acting.web", s.route(result("b", true, "1")), "the last one wakes whoever joins")
	join := s.effect("join/2")
	require.Equal(t, uint64(4), join.Wake)
	require.Equal(t, events.ParallelActing, join.State)
	require.Equal(t, "observing.default", s.route(&events.ToolSuccess{}))
}

func TestSeveralPoolsAreDispatched(t *testing.T) {
	s := started(t)
	require.Equal(t, "none.default", s.route(threeBatch()))
	require.Equal(t, []string{"dispatch/2/a", "dispatch/2/b", "dispatch/2/d"}, s.keys())
	for _, e := range s.Effects() {
		require.Equal(t, uint64(1), e.Wake, "the planner's own delivery, which it acks after the last")
	}
	require.Equal(t, "parallel_acting.web", s.route(&events.ToolCallDispatched{CallID: "b"}))
	require.Equal(t, []string{"tool/2/b", "dispatch/2/a", "dispatch/2/d"}, s.keys())
	require.Equal(t, uint64(3), s.effect("tool/2/b").Wake)
	require.Equal(t, "parallel_acting.default", s.route(&events.ToolCallDispatched{CallID: "a"}))
	require.Equal(t, uint64(3), s.effect("tool/2/b").Wake, "another call's dispatch is not its own")
	require.Equal(t, uint64(4), s.effect("tool/2/a").Wake)
	s.do(result("b", true, "1"))
	require.Equal(t, []string{"tool/2/a", "dispatch/2/d"}, s.keys())

	require.Equal(t, "planning.default", s.route(&events.Resumed{}), "several pools go to the planner")
	require.Equal(t, []string{"tool/2/a", "dispatch/6/a", "dispatch/6/d"}, s.keys(), "due again for each call without a result")
	require.Equal(t, uint64(6), s.effect("dispatch/6/a").Wake)
	s.do(&events.ToolCallDispatched{CallID: "a"}, &events.ToolCallDispatched{CallID: "d"})
	require.Equal(t, uint64(7), s.effect("tool/2/a").Wake)
	require.Equal(t, "none.default", s.route(result("a", false, "x")))
	require.Equal(t, "parallel_acting.math", s.route(result("d", false, "x")), "the pool of the last result")
	require.Equal(t, []string{"join/2"}, s.keys())
	require.Equal(t, "parallel_acting.math", s.route(&events.Resumed{}), "every result is in")
	require.Equal(t, uint64(11), s.effect("join/2").Wake)
}

func TestAStartedCallIsLeftToItsDelivery(t *testing.T) {
	s := in(t, events.Acting).do(&events.ToolCallStarted{CallID: "a"})
	require.Equal(t, "acting.web", s.route(&events.Resumed{}))
	require.Equal(t, uint64(2), s.effect("tool/2/a").Wake, "only the delivery that started it may say what became of it")

	s = started(t).do(oneBatch(), &events.ToolCallStarted{CallID: "b"})
	require.Equal(t, "parallel_acting.web", s.route(&events.Resumed{}))
	require.Equal(t, uint64(2), s.effect("tool/2/b").Wake)
	require.Equal(t, uint64(4), s.effect("tool/2/c").Wake, "one that was not started is re-driven")

	s = in(t, events.Acting)
	require.Equal(t, "acting.web", s.route(&events.Resumed{}))
	require.Equal(t, uint64(3), s.effect("tool/2/a").Wake)
}

func TestWakeNumbers(t *testing.T) {
	s := in(t, events.Planning)
	require.Equal(t, uint64(1), s.effect("plan/1").Wake)
	s.do(&events.LLMAttemptFailed{Kind: "overloaded"}, &events.Paused{})
	require.Equal(t, uint64(1), s.effect("plan/1").Wake, "what goes to nobody wakes nobody")
	s.do(&events.Resumed{})
	require.Equal(t, uint64(4), s.effect("plan/1").Wake, "an older delivery leaves it to the re-drive")
	s.do(user("m", "x"))
	require.Equal(t, uint64(5), s.effect("plan/5").Wake)
}

func TestDecideIsDueAfterTheLastDecision(t *testing.T) {
	s := started(t).do(held("a", "b"))
	require.Equal(t, "none.default", s.route(decided("a", "approved")))
	require.Empty(t, s.keys())
	require.Equal(t, "waiting_for_human.default", s.route(decided("b", "approved")))
	require.Equal(t, []string{"decide/2"}, s.keys())
	require.Equal(t, uint64(4), s.effect("decide/2").Wake)
	require.Equal(t, "planning.default", s.route(&events.HumanApprovedParallel{}), "several pools")
	require.Equal(t, []string{"dispatch/5/a", "dispatch/5/b", "dispatch/5/d"}, s.keys())

	s = started(t).do(approvalOf([]string{"b", "c"}, callOf("b", "beta"), callOf("c", "gamma")), decided("b", "rejected"), decided("c", "approved"))
	require.Equal(t, "parallel_acting.web", s.route(&events.HumanApprovedParallel{}), "one pool")
	require.Equal(t, []string{"tool/5/c"}, s.keys(), "a rejected call does not run")
}

func TestExhaustedWorkIsGivenUp(t *testing.T) {
	for kind, limit := range map[string]int{codes.KindHandler: 3, codes.KindWorkerLost: 10} {
		for _, state := range []events.State{events.Planning, events.Acting, events.ParallelActing, events.Observing, events.Reflecting} {
			s := in(t, state)
			if state == events.ParallelActing {
				s.do(&events.ToolCallDispatched{CallID: "a"}, &events.ToolCallDispatched{CallID: "b"})
			}
			key := s.keys()[0]
			for range limit {
				s.do(&events.LLMAttemptFailed{Kind: kind, Key: key, Message: "no luck"})
				require.Empty(t, s.effect(key).Exhausted, "%s: not before more than %d", kind, limit)
			}
			s.do(&events.LLMAttemptFailed{Kind: kind, Key: key, Message: "out of luck"})
			e := s.effect(key)
			require.NotEmpty(t, e.Exhausted)
			require.Equal(t, kind == codes.KindHandler, strings.HasSuffix(e.Exhausted, ", the last time with: out of luck"), e.Exhausted)
			switch p := effects.GiveUp(s.Mem, e).(type) {
			case *events.ToolFailure:
				require.Equal(t, events.Acting, state)
				require.Equal(t, codes.AttemptsExhausted, p.Outcome.Code)
				require.Contains(t, p.Outcome.Observation, "ERROR: ")
			case *events.ToolCallResult:
				require.Equal(t, events.ParallelActing, state)
				require.Equal(t, codes.AttemptsExhausted, p.Code)
				require.Equal(t, "a", p.CallID)
				require.False(t, p.Success)
			case *events.FatalError:
				require.Contains(t, []events.State{events.Planning, events.Observing, events.Reflecting}, state)
				require.Equal(t, codes.AttemptsExhausted, p.Code)
				require.NotEmpty(t, p.Message)
			default:
				t.Fatalf("%T", p)
			}
			_, _, err := s.Append(e.State, effects.GiveUp(s.Mem, e))
			require.NoError(t, err, "giving up is legal")
		}
	}
	s := in(t, events.Planning)
	for range 20 {
		s.do(&events.LLMAttemptFailed{Kind: "overloaded", Key: "plan/1"})
	}
	require.Empty(t, s.effect("plan/1").Exhausted, "a provider's failures are the planner's matter")
}

// Only workers lost in a row end the attempts, except in runs of earlier revisions. What
// was given up stays given up.
func TestAReportedFailureForgetsLostWorkers(t *testing.T) {
	lost := &events.LLMAttemptFailed{Kind: codes.KindWorkerLost, Key: "plan/1"}
	limited := &events.LLMAttemptFailed{Kind: codes.KindRateLimited, Key: "plan/1", NotAsked: true}
	hashes := reducer.DefaultTable().Identities()
	for _, old := range append(hashes[:2:2], "") {
		s := started(t, func(p *events.Start) { p.TableHash = old })
		for range reducer.MaxWorkersLost {
			s.do(lost, limited)
		}
		require.Empty(t, s.effect("plan/1").Exhausted)
		require.NotEmpty(t, s.do(lost).effect("plan/1").Exhausted, "revision of %q", old)
	}
	s := started(t)
	for range 3 * reducer.MaxWorkersLost {
		s.do(lost, limited)
	}
	for range reducer.MaxWorkersLost {
		s.do(lost)
	}
	require.Empty(t, s.effect("plan/1").Exhausted)
	s.do(lost)
	require.Equal(t, "lost its worker 11 times", s.do(limited).effect("plan/1").Exhausted)
}

func TestADispatchThatFailsIsCountedAndGivenUp(t *testing.T) {
	s := in(t, events.ParallelActing)
	for range 4 {
		_, _, err := s.Append(events.Planning, &events.LLMAttemptFailed{Kind: codes.KindHandler, Key: "dispatch/2/a"})
		require.NoError(t, err, "the planner owns the dispatch")
	}
	e := s.effect("dispatch/2/a")
	require.NotEmpty(t, e.Exhausted)
	_, _, err := s.Append(e.State, effects.GiveUp(s.Mem, e))
	require.NoError(t, err)
	require.Equal(t, events.Errored, s.Mem.State)
}

func TestAttemptsAreForgottenWithTheWork(t *testing.T) {
	s := in(t, events.Planning).do(&events.LLMAttemptFailed{Kind: codes.KindHandler, Key: "plan/1"}, single("a", "alpha"))
	require.Empty(t, s.Mem.Control.Attempts)
}

func TestSafetyCap(t *testing.T) {
	s := started(t, func(p *events.Start) { p.Agent.Config.MaxSteps = 1 })
	limit := 5*1 + 3
	for i := range 2 {
		id := fmt.Sprint("c", i)
		s.do(single(id, "alpha"), success(id, "1"), &events.Continue{})
	}
	require.Equal(t, 7, s.Mem.Control.SinceUser.Changes)
	s.do(single("x", "alpha"))
	require.Equal(t, limit, s.Mem.Control.SinceUser.Changes)
	require.Equal(t, effects.KindTool, s.Effects()[0].Kind, "at the cap all is well")
	s.do(success("x", "1"))
	require.Equal(t, effects.KindEnd, s.Effects()[0].Kind)
	end := effects.End(s.Mem).(*events.FatalError)
	require.Equal(t, codes.SafetyCap, end.Code)
	require.Contains(t, end.Message, "8 state changes")
	s.do(end)

	talk := started(t, chat, func(p *events.Start) { p.Agent.Config.MaxSteps = 1 })
	for i := range 20 {
		talk.do(turnAnswer("hello"), user(fmt.Sprint("m", i), "again"))
	}
	require.Equal(t, effects.KindPlan, talk.Effects()[0].Kind, "in chat mode the count starts again at a message")
}

func TestActingWithoutACallWantsAnEnd(t *testing.T) {
	mem := in(t, events.Acting).Mem.Clone()
	mem.Control.Calls, mem.CurrentToolCall = nil, nil
	wants := effects.Of(reducer.DefaultTable(), mem)
	require.Len(t, wants, 1)
	require.Equal(t, effects.KindTool, wants[0].Kind)
	require.Empty(t, wants[0].CallID, "the handler ends the run and says so")
}
