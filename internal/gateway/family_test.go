package gateway_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/simulated"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// waiting starts a run that waits for the run that answers its call a, and that one.
func (r *timed) waiting() (parent, child events.Run) {
	r.t.Helper()
	start := reducertest.StartOf("ask somebody", events.ModeTask)
	start.Tools = []events.ToolSpec{{Name: "helper", Effect: "idempotent", Pool: events.AgentsPool}}
	parent = r.Start(start)
	r.Append(parent, events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{
		Confidence: 1, Calls: []events.Call{{ID: "a", Name: "helper", Arguments: `{"task":"x"}`}},
	}})
	child = r.child(parent, "a")
	r.Append(parent, events.Acting, &events.ToolCallStarted{CallID: "a"})
	for _, run := range []events.Run{parent, child} {
		require.NoError(r.t, r.Journal.SetTimer(r.t.Context(), run, journal.TimerRun, time.Now().Add(time.Minute), nil))
	}
	return parent, child
}

// takes has somebody take the ends of children, and answer nobody.
func (r *timed) takes() {
	p := r.Journal.NewProcess()
	r.Go(func(ctx context.Context) error {
		return p.Consume(ctx, journal.Inbox{States: []events.State{events.Done}, Pool: events.AgentsPool}, 1, func(d journal.Delivery) { _ = d.Ack() })
	})
}

// A run that waits for another one does not stand still, unless that has ended.
func TestWaitingForAChildIsNoStandstill(t *testing.T) {
	inTime(t, simulated.Options{}, func(t *testing.T, r *timed) {
		r.serve(nil)
		parent, child := r.waiting()
		r.Append(child, events.Planning, &events.LLMMessageComplete{}) // it waits for its user, so it goes on
		sleep(10 * stall)
		require.Zero(t, r.Count(parent, events.TypeResumed))
		require.Equal(t, events.Acting, r.Memory(parent).State)
	})
}

// A child whose end was taken and brought no answer has its parent driven once more.
func TestAnswerThatWasLost(t *testing.T) {
	inTime(t, simulated.Options{}, func(t *testing.T, r *timed) {
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

// A child whose end nobody has taken yet waits for its turn, and so does its parent.
func TestAnswerThatIsQueued(t *testing.T) {
	inTime(t, simulated.Options{}, func(t *testing.T, r *timed) {
		r.serve(nil)
		parent, child := r.waiting()
		r.Append(child, events.Planning, answered("here it is"))
		sleep(5 * stall)
		require.Zero(t, r.Count(parent, events.TypeResumed))
	})
}

// A run whose call was answered without it is cancelled; one whose parent is not in
// the log goes on.
func TestForsakenChildren(t *testing.T) {
	inTime(t, simulated.Options{}, func(t *testing.T, r *timed) {
		r.serve(nil)
		parent, child := r.waiting()
		r.Append(child, events.Planning, &events.LLMMessageComplete{})
		lone := r.child(r.Store.Place("default", r.Store.NewID()), "a")
		r.Append(lone, events.Planning, &events.LLMMessageComplete{})
		require.NoError(t, r.Journal.SetTimer(t.Context(), lone, journal.TimerRun, time.Now().Add(time.Minute), nil))
		r.Append(parent, events.Control, &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "a", Code: reducer.CodeNoActor, Observation: "ERROR: none"}})
		sleep(stall)
		require.Equal(t, events.Cancelled, r.Memory(child).State)
		require.Equal(t, events.WaitingForUser, r.Memory(lone).State)
	})
}
