package subagent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Only an end that is done, or that leaves an answer, is a success of the call: one of
// the application's own graph may be neither.
func TestWhatAnEndMeans(t *testing.T) {
	t.Parallel()
	answer, none := "Here is help.", ""
	for name, c := range map[string]struct {
		state      events.State
		answer     *string
		failed     *reducer.RunError
		code, text string
	}{
		"done":                         {events.Done, &answer, nil, "", answer},
		"done without an answer":       {events.Done, nil, nil, "", ""},
		"cancelled with an answer":     {events.Cancelled, &answer, nil, CodeCancelled, "agent a was cancelled"},
		"an error":                     {events.Errored, nil, &reducer.RunError{Code: "auth", Message: "no key"}, "auth", "agent a ended in auth: no key"},
		"an error without a reason":    {events.Errored, nil, nil, CodeFailed, "agent a ended in error"},
		"an end of one's own":          {"refused", nil, nil, "refused", "agent a ended in refused"},
		"one with an answer":           {"archived", &answer, nil, "", answer},
		"one with an empty answer":     {"archived", &none, nil, "", ""},
		"one that leaves a reason too": {"refused", nil, &reducer.RunError{Code: "x", Message: "not that"}, "refused", "agent a ended in refused: not that"},
	} {
		mem := &reducer.Memory{State: c.state, FinalAnswer: c.answer, Error: c.failed}
		mem.Control.Agent.Name = "a"
		e := endingOf(mem)
		require.Equal(t, c.code, e.failure(), name)
		require.Equal(t, c.text, e.text(), name)
	}
}

// The parent's model is told that an answer was cut off.
func TestAnIncompleteAnswerSaysSo(t *testing.T) {
	t.Parallel()
	answer := "Here is he"
	mem := &reducer.Memory{State: events.Done, FinalAnswer: &answer}
	mem.Control.Incomplete = true
	require.Equal(t, "Here is he\n\n[moorebus: this answer is incomplete, it was cut off]", endingOf(mem).text())
}

// A call that is given up although its run has ended has what that used in its result.
func TestWhatIsGivenUpIsPaidFor(t *testing.T) {
	t.Parallel()
	e := &ending{usage: reducer.TotalUsage{Input: 3, Output: 4, Total: 7, Cost: 0.5}}
	o := events.ToolOutcome{CallID: "a", Code: codes.AttemptsExhausted, Observation: "ERROR: given up"}
	c := call{subrun: events.Run{ID: "below"}}
	single := withUsage(&events.ToolFailure{Outcome: &o}, c, e).(*events.ToolFailure).Outcome
	c.batch = true
	batch := withUsage(&events.ToolCallResult{ToolOutcome: o}, c, e).(*events.ToolCallResult).ToolOutcome
	for _, got := range []events.ToolOutcome{*single, batch} {
		require.Equal(t, codes.AttemptsExhausted, got.Code)
		require.Equal(t, "below", got.Run)
		require.Equal(t, 7, got.Usage.Total)
		require.InDelta(t, 0.5, *got.Usage.CostUSD, 0)
	}
	require.Nil(t, o.Usage, "what was given is as it was")
	bound := effects.Effect{Failed: reducer.Attempt{Handler: 2 * effects.MaxHandlerFailures, Lost: 2 * reducer.MaxWorkersLost}}
	require.False(t, hopeless(bound))
	bound.Failed.Lost++
	require.True(t, hopeless(bound))
}
