package console

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestSteps(t *testing.T) {
	r, cost := reducertest.NewRun(nil), 0.25
	asked := call("c1", "alpha", `{"a": 1}`)
	asked.Usage.CostUSD = &cost
	asked.Facts.Asked = &events.Asked{Provider: "p", Model: "big"}
	fill(t, r,
		reducertest.Event{Origin: events.Idle, Payload: reducertest.StartOf("Count", events.ModeTask)},
		reducertest.Event{Origin: events.Planning, Payload: &events.LLMAttemptFailed{Kind: "rate_limited", Message: "slow \x1b down"}},
		reducertest.Event{Origin: events.Planning, Payload: &events.LLMToolCall{ToolCallReply: asked}},
		reducertest.Event{Origin: events.Acting, Payload: &events.ToolCallStarted{CallID: "c1"}},
		reducertest.Event{Origin: events.Acting, Payload: &events.ToolFailure{Outcome: &events.ToolOutcome{CallID: "c1", Code: "exit", Observation: "ERROR: 1", LatencyMS: 61_000}}},
		reducertest.Event{Origin: events.Observing, Payload: &events.Continue{}},
		reducertest.Event{Origin: events.Planning, Payload: answer("None.")},
	)
	provider := r.Mem.Control.Agent.LLM.Provider
	got := text(t, readRun(t, r, 0), Text)
	require.Contains(t, got, "\nsteps\n"+
		"          1.000s                         "+provider+": rate_limited: slow \\x1b down\n"+
		"    1     1.000s  10 in, 2 out, $0.2500  big: alpha({\"a\": 1})\n"+
		"           1m01s                           alpha: ERROR: 1\n"+
		"    2     1.000s  5 in, 3 out            "+provider+": None.\n\nevents\n")
	var doc struct{ Steps []Step }
	require.NoError(t, json.Unmarshal([]byte(text(t, readRun(t, r, 5), JSON)), &doc))
	require.Equal(t, []Step{
		{Step: 0, N: 2, Kind: "model", Name: provider, Failed: true, DurationMS: 1000, Summary: `rate_limited: slow \x1b down`},
		{Step: 1, N: 3, Kind: "model", Name: "big", DurationMS: 1000, Input: 10, Output: 2, CostUSD: &cost, Summary: `alpha({"a": 1})`},
		{Step: 1, N: 5, Kind: "tool", Name: "alpha", CallID: "c1", Failed: true, DurationMS: 61_000, Summary: "ERROR: 1"},
	}, doc.Steps)
}
