package control_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// child starts the sub-run of a call.
func (r *timed) child(parent events.Run, call string) events.Run {
	r.T.Helper()
	run := r.Store.Place(parent.Namespace, runid.Child(parent.ID, call))
	start := reducertest.StartOf("help", events.ModeTask)
	start.Tools = append(start.Tools, events.ToolSpec{Name: "helper", Effect: "idempotent", Pool: events.AgentsPool})
	start.Parent = &events.Parent{Run: parent.ID, CallID: call}
	r.Append(run, events.Idle, start)
	return run
}

// The deadline of a run also ends the sub-runs of its open calls.
func TestDeadlineEndsTheChildren(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, wallTime(10*time.Minute))
		into["acting"](r, run)
		child := r.child(run, "a")
		sleep(9 * time.Minute)
		require.Equal(t, events.Planning, r.Memory(child).State)
		sleep(2 * time.Minute)
		require.Equal(t, events.Errored, r.Memory(run).State)
		require.Equal(t, events.Cancelled, r.Memory(child).State)
	})
}

// If a gateway dies between the end of a run and the end of its sub-runs, the run's timer ends
// them.
func TestTheTimerEndsChildrenThatWereLeft(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, nil)
		into["acting"](r, run)
		child := r.child(run, "a")
		r.Append(run, events.Control, &events.CancelledRun{}) // and no more
		sleep(stall + time.Minute)
		require.Equal(t, events.Cancelled, r.Memory(child).State)
	})
}

// waiting starts a run that waits for the sub-run of its call a, and the sub-run.
func (r *timed) waiting() (parent, child events.Run) {
	r.T.Helper()
	start := reducertest.StartOf("ask somebody", events.ModeTask)
	start.Tools = []events.ToolSpec{{Name: "helper", Effect: "idempotent", Pool: events.AgentsPool}}
	parent = r.Start(start)
	r.Append(parent, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
		Confidence: 1, Calls: []events.Call{{ID: "a", Name: "helper", Arguments: `{"task":"x"}`}},
	}})
	child = r.child(parent, "a")
	r.Append(parent, events.Acting, &events.ToolCallStarted{CallID: "a"})
	for _, run := range []events.Run{parent, child} {
		require.NoError(r.T, r.Journal.SetTimer(r.T.Context(), run, ports.TimerRun, time.Now().Add(time.Minute), nil))
	}
	return parent, child
}

// takes consumes the ends of sub-runs without answering their calls.
func (r *timed) takes() {
	p := r.Journal.NewProcess()
	r.Go(func(ctx context.Context) error {
		return p.Consume(ctx, journal.Inbox{States: []events.State{events.Done}, Pool: events.AgentsPool}, 1, func(d journal.Delivery) { _ = d.Ack() })
	})
}

// A run that waits for a sub-run has not stalled, unless the sub-run has ended.
func TestWaitingForASubrunIsNoStall(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		r.serve(nil)
		parent, child := r.waiting()
		r.Append(child, events.Planning, &events.LLMMessageComplete{}) // it waits for its user, so it goes on
		sleep(10 * stall)
		require.Zero(t, r.Count(parent, events.TypeResumed))
		require.Equal(t, events.Acting, r.Memory(parent).State)
	})
}

// If the end of a sub-run was consumed without an answer, its parent is re-driven.
func TestAnswerThatWasLost(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		r.serve(nil)
		r.takes()
		parent, child := r.waiting()
		sleep(2 * stall)
		r.Append(child, events.Planning, answered("here it is"))
		sleep(stall / 2)
		require.Zero(t, r.Count(parent, events.TypeResumed), "not at once")
		sleep(stall)
		require.Equal(t, 1, r.Count(parent, events.TypeResumed))
	})
}

// While the end of a sub-run is queued, neither it nor its parent stalls.
func TestAnswerThatIsQueued(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		r.serve(nil)
		parent, child := r.waiting()
		r.Append(child, events.Planning, answered("here it is"))
		sleep(5 * stall)
		require.Zero(t, r.Count(parent, events.TypeResumed))
	})
}

// A sub-run whose call was answered without it is cancelled. One whose parent is not in the
// log continues.
func TestAbandonedSubruns(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		r.serve(nil)
		parent, child := r.waiting()
		r.Append(child, events.Planning, &events.LLMMessageComplete{})
		lone := r.child(r.Store.Place("default", r.Store.NewID()), "a")
		r.Append(lone, events.Planning, &events.LLMMessageComplete{})
		require.NoError(t, r.Journal.SetTimer(t.Context(), lone, ports.TimerRun, time.Now().Add(time.Minute), nil))
		r.Append(parent, events.Control, &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "a", Code: codes.NoActor, Observation: "ERROR: none"}})
		sleep(stall)
		require.Equal(t, events.Cancelled, r.Memory(child).State)
		require.Equal(t, events.WaitingForUser, r.Memory(lone).State)
	})
}

// An end on an edge of another publisher is not an end: the run ends as poisoned when its
// timer fires, and is not listed as ended before.
func TestForgedEnd(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run, other := r.start(g, nil), r.start(g, nil)
		into["waiting_for_human"](r, other)
		into["acting"](r, run)
		controltest.Forge(t, r.Journal, run, events.Control, &events.CancelledRun{}, events.Acting, events.Nobody)
		page, err := g.Runs(t.Context(), "", list.Query{Cursor: run.ID})
		require.NoError(t, err)
		require.Empty(t, page.Runs)
		page, err = g.Runs(t.Context(), "", list.Query{})
		require.NoError(t, err)
		states := map[string]events.State{}
		for _, info := range page.Runs {
			states[info.RunID] = info.State
		}
		require.Equal(t, map[string]events.State{run.ID: events.Acting, other.ID: events.WaitingForHuman}, states)

		// An end on an edge of its worker, of a run in another state.
		at := r.Memory(other)
		body, err := new(events.Codec).Encode(&events.Event{
			ID: runlog.NewID(), Source: "moorebus/test/1", Run: other.ID, Time: time.Now(), N: at.N + 1, From: events.Acting, To: events.Errored,
			Cause: at.Control.LastID, Prev: at.Control.Head, Data: &events.FatalError{Outcome: events.Outcome{Code: "x", Message: "x"}},
		})
		require.NoError(t, err)
		r.Journal.Inject(other.Shard, events.Subject{Run: other, From: events.Acting, To: events.Errored, Pool: "default"}.String(), body)
		sleep(stall + time.Minute)
		for _, run := range []events.Run{run, other} {
			mem, err := r.Fold(run)
			require.Error(t, err)
			require.Equal(t, events.Errored, mem.State)
			require.Equal(t, codes.Poison, mem.Error.Code)
		}
		require.Zero(t, r.Journal.Timers())
	})
}

// An end on its worker's own edge does not end a run that is in another state, not even after
// a step that the state does not allow either.
func TestForgedEndOfAnotherState(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		inject := func(run events.Run, e *events.Event) *events.Event {
			e.ID, e.Source, e.Run, e.Time = runlog.NewID(), "moorebus/test/1", run.ID, time.Now()
			body, err := new(events.Codec).Encode(e)
			require.NoError(t, err)
			r.Journal.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: e.To, Pool: "default"}.String(), body)
			e.Prev = events.Hash(body)
			return e
		}
		answer := func(n uint64, cause, prev string) *events.Event {
			return &events.Event{N: n, From: events.Planning, To: events.Done, Cause: cause, Prev: prev, Data: answered("x")}
		}
		plain, hidden, fair := r.start(g, nil), r.start(g, nil), r.start(g, nil)
		r.Append(fair, events.Planning, answered("x"))
		into["waiting_for_human"](r, plain)
		into["waiting_for_human"](r, hidden)
		at := r.Memory(plain)
		inject(plain, answer(at.N+1, at.Control.LastID, at.Control.Head))
		states := map[string]events.State{}
		page, err := g.Runs(t.Context(), "", list.Query{})
		require.NoError(t, err)
		for _, info := range page.Runs {
			states[info.RunID] = info.State
		}
		require.Equal(t, events.WaitingForHuman, states[plain.ID])
		require.Equal(t, events.Done, states[fair.ID])

		at = r.Memory(hidden)
		step := inject(hidden, &events.Event{
			N: at.N + 1, From: events.Planning, To: events.Planning, Cause: at.Control.LastID, Prev: at.Control.Head,
			Data: &events.LLMAttemptFailed{Kind: "overloaded", Key: "plan/1"},
		})
		inject(hidden, answer(step.N+1, step.ID, step.Prev))
		sleep(stall)
		for _, run := range []events.Run{plain, hidden} {
			mem, err := r.Fold(run)
			require.Error(t, err)
			require.Equal(t, events.Errored, mem.State)
			require.Equal(t, codes.Poison, mem.Error.Code)
		}
		require.Zero(t, r.Journal.Timers())
	})
}

// A record that repeats a number of a waiting run is checked.
func TestForgedNumberOfAWaitingRun(t *testing.T) {
	inTime(t, func(t *testing.T, r *timed) {
		g, _ := r.serve(nil)
		run := r.start(g, nil)
		into["waiting_for_human"](r, run)
		sleep(2 * stall)
		at := r.Memory(run)
		body, err := new(events.Codec).Encode(&events.Event{
			ID: runlog.NewID(), Source: "moorebus/test/1", Run: run.ID, Time: time.Now(), N: at.N, From: events.Planning, To: events.Planning,
			Cause: at.Control.LastID, Prev: at.Control.Head, Data: &events.LLMAttemptFailed{Kind: "overloaded", Key: "plan/1"},
		})
		require.NoError(t, err)
		r.Journal.Inject(run.Shard, events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: "default"}.String(), body)
		sleep(stall)
		mem, err := r.Fold(run)
		require.Error(t, err)
		require.Equal(t, events.Errored, mem.State)
	})
}
