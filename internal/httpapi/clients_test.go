package httpapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/pkg/events"
)

// The inputs of the seed, as its README has them.
const (
	seedStarted = `{"type": "tool-call-started", "toolCallId": "tool-1", "name": "search", "parameters": "{\"query\":\"example\"}", "timestamp": 1700000000000}`
	seedResult  = `{"type": "tool-call-result", "toolCallId": "tool-1", "result": {"isSuccess": true, "content": "Search results..."}}`
)

// startClient starts a run whose client has the tools search and ask.
func (r *rig) startClient(more string) string {
	r.T.Helper()
	require.NoError(r.T, r.Directory.Withdraw(r.T.Context(), searchTool.Pool, "a"))
	a := r.do("POST", "/v1/runs", `{"task":"Find it.","agent":{"name":"tester","llm":{"provider":"openai"},"client_tools":[
		{"name":"search","description":"Searches.","schema":{"type":"object"}},
		{"name":"ask","description":"Asks.","schema":{"type":"object"},"timeout":"720h"}]`+more+`}}`)
	require.Equal(r.T, 201, a.status, a.body)
	return a.text(r.T, "run_id")
}

func callTo(id, name string) events.Call {
	return events.Call{ID: id, Name: name, Arguments: `{"query":"example"}`}
}

func replyWith(calls ...events.Call) events.ToolCallReply { return events.ToolCallReply{Calls: calls} }

// TestSeedsToolCall: the client answers a call in the seed's own words.
func TestSeedsToolCall(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.startClient("")
		r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: replyWith(callTo("tool-1", "search"))})
		require.JSONEq(t, `{"accepted":1,"n":3}`, r.inputs(id, "["+seedStarted+"]").body)
		require.JSONEq(t, `{"accepted":2,"n":4}`, r.inputs(id, "["+seedStarted+","+seedResult+"]").body)
		require.Equal(t, []string{"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess"}, r.Types(id)[:4])
		for _, n := range []int{2, 3} {
			s, err := events.ParseSubject(r.Records(id)[n].Subject)
			require.NoError(t, err)
			require.Equal(t, events.Control, s.From)
		}
		a := r.inputs(id, "["+seedStarted+","+seedResult+"]")
		require.JSONEq(t, `{"accepted":2,"n":4}`, a.body, "the same again")
		require.Contains(t, string(r.Records(id)[3].Body), "SUCCESS: Search results...")
		other := strings.Replace(seedResult, "Search results...", "Others", 1)
		a = r.fails(409, "already_answered", r.inputs(id, "["+other+"]"))
		require.Equal(t, map[string]any{"isSuccess": true, "content": "Search results..."}, a.field(t, "result"))
		r.Happens(id, events.Observing, &events.Continue{})
		r.Happens(id, events.Planning, answered("the end"))
		n := len(r.Records(id))
		require.JSONEq(t, fmt.Sprintf(`{"accepted":2,"n":%d}`, n), r.inputs(id, "["+seedStarted+","+seedResult+"]").body, "after the end too")
		r.fails(409, "already_answered", r.inputs(id, "["+other+"]"))
		r.fails(404, "unknown_call", r.inputs(id, strings.ReplaceAll("["+seedResult+"]", "tool-1", "tool-9")))
		require.Len(t, r.Records(id), n)
	})
}

// TestContentLikeAnError: what a client's tool found may begin like an error.
func TestContentLikeAnError(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.startClient("")
	r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: replyWith(callTo("tool-1", "search"))})
	body := "[" + strings.Replace(seedResult, "Search results...", "ERROR: is a word of the page", 1) + "]"
	require.Equal(t, 200, r.inputs(id, body).status)
	require.Equal(t, 200, r.inputs(id, body).status, "the same again")
}

// TestClientsFailure: an error is a ToolFailure, in a batch a ToolCallResult, and the gateway
// joins a batch of client calls alone.
func TestClientsFailure(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.startClient("")
		r.Happens(id, events.Planning, &events.LLMParallelToolCalls{ToolCallReply: replyWith(callTo("a", "search"), callTo("b", "ask"))})
		failed := `{"type":"tool_call_result","tool_call_id":"a","result":{"is_success":false,"error":"no"}}`
		require.Equal(t, 200, r.inputs(id, "["+failed+"]").status)
		good := `{"type":"ToolCallResult","call_id":"b","success":true,"observation":"yes"}`
		bad := strings.Replace(good, "yes", "maybe", 1)
		r.fails(409, "already_answered", r.inputs(id, "["+good+","+bad+"]"))
		require.Len(t, r.Types(id), 3, "all or none")
		require.Equal(t, 200, r.inputs(id, "["+good+","+good+"]").status)
		require.Eventually(t, func() bool { return len(r.Records(id)) == 5 }, patience, waitStep)
		require.Equal(t, []string{"ToolCallResult", "ToolCallResult", "ToolSuccess"}, r.Types(id)[2:])
		require.Contains(t, string(r.Records(id)[2].Body), `"ERROR: no"`)
	})
}

// TestWhatClientsMayNotAnswer has the refusals in the order in which they are made.
func TestWhatClientsMayNotAnswer(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	announced := events.ToolSpec{Name: "count", Description: "Counts.", Schema: searchTool.Schema, Pool: "default", Effect: "pure", Risk: "low"}
	r.announce("b", announced)
	id := r.startClient(`,"tools":["count"],"approval":{"policy":"tools","tools":["ask"]},"config":{"parallel_tools":false}`)
	result := func(call string) string {
		return `[{"type":"tool-call-result","toolCallId":"` + call + `","result":{"isSuccess":true,"content":"x"}}]`
	}
	reply := replyWith(callTo("c1", "count"))
	reply.Refused = []events.Refusal{{Call: callTo("r1", "nothing"), Code: "unknown_tool", Observation: "ERROR: no"}}
	r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: reply})
	r.fails(404, "unknown_call", r.inputs(id, result("zz")))
	r.fails(404, "unknown_call", r.inputs(id, result("r1")))
	r.fails(409, "not_yours", r.inputs(id, result("c1")))
	r.Happens(id, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true, Observation: "SUCCESS: 1"}})
	r.Happens(id, events.Observing, &events.Continue{})
	r.fails(409, "not_yours", r.inputs(id, result("c1")))
	r.fails(404, "unknown_call", r.inputs(id, result("r1")))
	r.Happens(id, events.Planning, waiting("", "ask", []string{"q1"}, "q1"))
	r.fails(409, "not_delivered", r.inputs(id, result("q1")))
	r.fails(409, "not_delivered", r.inputs(id, `[{"type":"tool-call-started","toolCallId":"q1"}]`))
	a := r.fails(422, "call_differs", r.inputs(id, `[{"type":"tool-call-started","toolCallId":"q1","name":"other"}]`))
	require.EqualValues(t, 0, a.field(t, "index"))
	r.fails(422, "call_differs", r.inputs(id, `[{"type":"tool-call-started","toolCallId":"q1","parameters":"{\"z\":1}"}]`))
	r.Happens(id, events.WaitingForHuman, &events.HumanApproved{Decision: events.Decision{CallID: "q1", Decision: "approved", By: "ann"}})
	require.Equal(t, 200, r.inputs(id, `[{"type":"tool-call-started","toolCallId":"q1"}]`).status)
	require.Equal(t, 200, r.inputs(id, `[{"type":"tool-call-started","toolCallId":"q1"}]`).status)
	n := len(r.Records(id))
	require.Equal(t, "ToolCallStarted", r.Types(id)[n-1])
	require.Equal(t, "HumanApproved", r.Types(id)[n-2])
	require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/cancel", "").status)
	r.fails(409, "run_ended", r.inputs(id, result("q1")))
	require.Equal(t, 200, r.inputs(id, `[{"type":"tool-call-started","toolCallId":"q1"}]`).status, "it stands in the log")
}

// TestLargeResultsOfClients go to the object store without their secrets, and are the same
// again by their digest.
func TestLargeResultsOfClients(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(c *config) { c.Results = toolcall.Results{Patterns: []string{"hush[0-9]+|REDACT"}} })
	id := r.startClient("")
	r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: replyWith(callTo("tool-1", "search"))})
	body := func(text string) string { return "[" + strings.Replace(seedResult, "Search results...", text, 1) + "]" }
	large := "hush12 " + strings.Repeat("y", 400<<10) + " end"
	require.Equal(t, 200, r.inputs(id, body(large)).status)
	var e struct {
		Data events.ToolOutcome `json:"data"`
	}
	require.NoError(t, json.Unmarshal(r.Records(id)[2].Body, &e))
	o := e.Data
	require.NotNil(t, o.Ref, "%s", r.Records(id)[2].Body[:300])
	require.True(t, strings.HasPrefix(o.Observation, "SUCCESS: [REDACTED] yyy"), o.Observation[:40])
	whole, err := r.Bus.Blob(t.Context(), *o.Ref)
	require.NoError(t, err)
	require.Equal(t, "[REDACTED] "+large[len("hush12 "):], string(whole))
	require.JSONEq(t, `{"accepted":1,"n":3}`, r.inputs(id, body(large)).body)
	require.JSONEq(t, `{"accepted":1,"n":3}`, r.inputs(id, body("hush77"+large[len("hush12"):])).body, "what is kept is the same")
	r.fails(409, "already_answered", r.inputs(id, body(large+"!")))
}

// TestResultWithAnImage: the same request may have a result and a message with an image, and may be repeated.
func TestResultWithAnImage(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, func(c *config) { c.Results = toolcall.Results{Patterns: []string{"Search|REDACT"}} })
	id := r.startClient("")
	r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: replyWith(callTo("tool-1", "search"))})
	body := `[` + seedResult + `,{"type":"user-message","messageId":"m","content":[` + image("x") + `]}]`
	require.JSONEq(t, `{"accepted":2,"n":4}`, r.inputs(id, body).body)
	require.JSONEq(t, `{"accepted":2,"n":4}`, r.inputs(id, body).body, "the same again")
}
