package print

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/record"
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
		"           1m01s                           alpha: exit: ERROR: 1\n"+
		"    2     1.000s  5 in, 3 out            "+provider+": None.\n\nevents\n")
	var doc struct{ Steps []Step }
	require.NoError(t, json.Unmarshal([]byte(text(t, readRun(t, r, 5), JSON)), &doc))
	began := r.Mem.Started
	require.Equal(t, []Step{
		{record.Step{N: 2, At: began.Add(time.Second), Kind: "model", Name: provider, Failed: true, DurationMS: 1000}, `rate_limited: slow \x1b down`},
		{record.Step{Step: 1, N: 3, At: began.Add(2 * time.Second), Kind: "model", Name: "big", DurationMS: 1000, Tokens: record.Tokens{Input: 10, Output: 2, CostUSD: &cost}}, `alpha({"a": 1})`},
		{record.Step{Step: 1, N: 5, At: began.Add(4 * time.Second), Kind: "tool", Name: "alpha", CallID: "c1", Failed: true, DurationMS: 61_000}, "exit: ERROR: 1"},
	}, doc.Steps)
}

func TestTree(t *testing.T) {
	child := &list.Node{RunID: "r2", Relation: list.RelationSub, CallID: "c1", Agent: "payer", State: events.Errored, Task: "Pay\x1b.", Selected: true,
		Children: []*list.Node{{RunID: "r4", Relation: list.RelationFork, At: 7, Agent: "payer", State: events.Planning}}}
	root := &list.Node{RunID: "r1", Relation: list.RelationRoot, Agent: "writer", State: events.Done, CostUSD: 0.25, HandOffs: []list.HandOff{{N: 9, To: "writer"}},
		Children: []*list.Node{child, {RunID: "r3", Relation: list.RelationSub, CallID: "c2", Agent: "critic", State: events.WaitingForHuman}}}
	var b bytes.Buffer
	require.NoError(t, Tree(&b, Text, list.Tree{Root: root, Truncated: true}, false))
	require.Equal(t, `r1  ✓ done  writer, handed over to writer at 9  $0.2500
├─ answers c1: r2 *  ✗ error  payer  Pay\x1b.
│  └─ fork at 7: r4  ◇ planning  payer
└─ answers c2: r3  ‖ waiting_for_human  critic
and more: the tree shows the first runs only
`, b.String())
}

func TestUsage(t *testing.T) {
	cost := 0.5
	tokens := record.Tokens{Input: 100, Output: 20, Cached: 5, CostUSD: &cost}
	u := &record.Usage{
		Total: record.Use{Tokens: tokens, ModelCalls: 2, ToolCalls: 1, DurationMS: 61_000}, Own: record.Use{ModelCalls: 1}, WaitingMS: 1500, ElapsedMS: 3_600_000,
		Steps:    []record.Step{{Step: 1, N: 4, Kind: record.KindTool, Name: "pay\x1b", Failed: true, DurationMS: 20}},
		Models:   []*record.ModelUse{{Name: "big", Calls: 2, Failed: 1, Tokens: tokens, DurationMS: 900}},
		Children: []record.ChildUse{{RunID: "r2", CallID: "c1", Agent: "payer", State: events.Done}},
	}
	var b bytes.Buffer
	require.NoError(t, Usage(&b, Text, u, false))
	require.Equal(t, `total    100 in, 20 out, 5 cached, $0.5000; 2 model calls and 1 tool calls, which took 1m01s
own      0 in, 0 out, 0 cached; 1 model calls and 0 tool calls, which took 0.000s
time     1h00m, waiting for people 1.500s

STEP  N  KIND  NAME     RESULT  TIME    IN  OUT  CACHED  COST
1     4  tool  pay\x1b  failed  0.020s  0   0    0       -

MODEL  CALLS  FAILED  TIME    IN   OUT  CACHED  COST
big    2      1       0.900s  100  20   5       $0.5000

SUB-RUN  CALL  AGENT  STATE  TIME    IN  OUT  CACHED  COST
r2       c1    payer  done   0.000s  0   0    0       -
`, b.String())
}
