package reducer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func nobody(id string) *events.ToolCallResult {
	p := result(id, false, "no actor serves the pool")
	p.Code = reducer.CodeNoActor
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
		&events.ToolFailure{Outcome: &events.ToolOutcome{Code: reducer.CodeNoActor, CallID: "a"}},
		&events.ToolFailure{Outcome: &events.ToolOutcome{Code: reducer.CodeNoActor, Observation: "made up"}},
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
	e, err := events.DefaultCodec().Decode(s.Records[len(s.Records)-2].Body)
	require.NoError(t, err)
	require.Equal(t, reducer.AbandonedBatch(), e.Data)
}
