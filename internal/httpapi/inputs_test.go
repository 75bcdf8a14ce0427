package httpapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

func (r *rig) inputs(id, body string) answer {
	r.T.Helper()
	return r.do("POST", "/v1/runs/"+id+"/inputs", body)
}

func TestMessageOfTheUserWakesPlanning(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("chat")
		r.Happens(id, events.Planning, turnDone("hello"))
		a := r.inputs(id, `[{"type":"user-message","messageId":"u1","content":"And 2+2?","timestamp":1700000000000}]`)
		require.Equal(t, 200, a.status, a.body)
		require.JSONEq(t, `{"accepted":1,"n":3}`, a.body)
		require.Equal(t, "moore.0.default.waiting_for_user.planning.default."+id, r.Records(id)[2].Subject)

		a = r.inputs(id, `[{"type":"user-message","messageId":"u1","content":"And 2+2?"}]`)
		require.JSONEq(t, `{"accepted":1,"n":3}`, a.body, "a known message is accepted and appends nothing")

		a = r.inputs(id, `[{"type":"UserMessage","content":"Faster"}]`)
		require.JSONEq(t, `{"accepted":1,"n":4}`, a.body)
		require.Equal(t, "moore.0.default.control.planning.default."+id, r.Records(id)[3].Subject)
	})
}

func TestInputsAreAppendedTogether(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("chat")
		r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: called("c1")})
		r.Happens(id, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true, Observation: "found"}})
		r.Happens(id, events.Observing, &events.Continue{})
		r.Happens(id, events.Planning, turnDone("hello"))
		a := r.inputs(id, `[
			{"type":"user_message","message_id":"u1","content":"one"},
			{"type":"userMessage","messageId":"u2","content":"two"},
			{"type":"user-message","messageId":"u1","content":"one"},
			{"type":"add-tool-calls-to-context","toolCallIds":["c1"]},
			{"type":"expand-context-window","increment":3}
		]`)
		require.Equal(t, 200, a.status, a.body)
		require.JSONEq(t, `{"accepted":5,"n":9}`, a.body)
		require.Equal(t, []string{"UserMessage", "UserMessage", "ToolCallsAddedToContext", "ContextWindowExpanded"}, r.Types(id)[5:])
		var subjects []string
		for _, rec := range r.Records(id)[5:] {
			s, err := events.ParseSubject(rec.Subject)
			require.NoError(t, err)
			subjects = append(subjects, string(s.From)+" "+string(s.To))
		}
		require.Equal(t, []string{"waiting_for_user none", "control none", "control none", "control planning"}, subjects,
			"only the last one wakes")
	})
}

// Edits while a chat waits for its user apply to the next turn.
func TestEditsOfTheContextBetweenTurns(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.start("chat")
		r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: called("c1")})
		r.Happens(id, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: "c1", Success: true, Observation: "found"}})
		r.Happens(id, events.Observing, &events.Continue{})
		r.Happens(id, events.Planning, turnDone("hello"))
		edits := `{"type":"add-tool-calls-to-context","toolCallIds":["c1"]},{"type":"expand-context-window","increment":3}`
		require.Equal(t, 200, r.inputs(id, "["+edits+"]").status)
		require.Nil(t, r.memory(id).ReactContext)
		require.Equal(t, 200, r.inputs(id, `[{"type":"user-message","content":"and now?"},`+edits+`]`).status)
		context := r.memory(id).ReactContext
		require.Equal(t, []string{"c1"}, context.ToolCallIDs)
		require.Len(t, context.Edits, 1, "the window shows all three messages already")
		for n, next := range []bool{true, true, false, false} {
			at := []int{5, 6, 8, 9}[n]
			require.Equal(t, next, strings.Contains(string(r.Records(id)[at].Body), `"next_turn":true`), at)
		}
	})
}

func TestACallOfTheContextIsNamedByTheProvidersID(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		name := callname.New(nil, "c 1")
		id := r.start("chat")
		reply := called(name)
		reply.Calls[0].ProviderID = "c 1"
		r.Happens(id, events.Planning, &events.LLMToolCall{ToolCallReply: reply})
		r.Happens(id, events.Acting, &events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: name, Success: true, Observation: "found"}})
		require.Equal(t, 200, r.inputs(id, `[{"type":"add-tool-calls-to-context","toolCallIds":["c 1"]}]`).status)
		added := r.Records(id)[len(r.Records(id))-1].Body
		require.Contains(t, string(added), `"call_ids":["`+name+`"]`)
	})
}

func TestInputErrors(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	const good = `{"type":"user-message","content":"kept out"},`
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
		says   string
	}{
		"not JSON":        {`[{`, 400, "bad_request", "line 1"},
		"nothing":         {``, 400, "bad_request", "JSON"},
		"not a list":      {`{"type":"user-message"}`, 400, "bad_request", "a mapping"},
		"empty list":      {`[]`, 400, "bad_input", "no inputs"},
		"trailing data":   {`[` + good[:len(good)-1] + `] []`, 400, "bad_request", "top-level"},
		"UTF-8":           {"[{\"type\":\"user-message\",\"content\":\"\xc3\x28\"}]", 400, "bad_request", "UTF-8"},
		"not an object":   {`[` + good + `3]`, 400, "bad_input", "input 1"},
		"no type":         {`[` + good + `{"content":"x"}]`, 400, "bad_input", "input 1: type"},
		"type is no text": {`[` + good + `{"type":7}]`, 400, "bad_input", "input 1: type"},
		"unknown type":    {`[` + good + `{"type":"user-shout"}]`, 400, "bad_input", "user-shout"},
		"all the types": {
			`[{"type":"user-shout"}]`, 400, "bad_input",
			"user-message, expand-context-window, add-tool-calls-to-context, llm-chunk, llm-message-complete, tool-call-started, tool-call-result",
		},
		"unknown key":       {`[` + good + `{"type":"user-message","content":"x","colour":1}]`, 400, "bad_input", "colour"},
		"key in two forms":  {`[` + good + `{"type":"user-message","content":"x","messageId":"a","message_id":"a"}]`, 400, "bad_input", "message_id"},
		"no content":        {`[` + good + `{"type":"user-message"}]`, 400, "bad_input", "content: is missing"},
		"empty content":     {`[` + good + `{"type":"user-message","content":""}]`, 400, "bad_input", "content: is empty"},
		"content no text":   {`[` + good + `{"type":"user-message","content":{}}]`, 400, "bad_input", "want a string"},
		"empty id":          {`[` + good + `{"type":"user-message","content":"x","messageId":""}]`, 400, "bad_input", "message_id"},
		"long id":           {`[` + good + `{"type":"user-message","content":"x","messageId":"` + strings.Repeat("i", 257) + `"}]`, 400, "bad_input", "message_id"},
		"timestamp":         {`[` + good + `{"type":"user-message","content":"x","timestamp":"soon"}]`, 400, "bad_input", "timestamp"},
		"increment":         {`[` + good + `{"type":"expand-context-window","increment":0}]`, 400, "bad_input", "increment"},
		"increment no int":  {`[` + good + `{"type":"expand-context-window","increment":1.5}]`, 400, "bad_input", "increment"},
		"no calls":          {`[` + good + `{"type":"add-tool-calls-to-context"}]`, 400, "bad_input", "tool_call_ids"},
		"empty calls":       {`[` + good + `{"type":"add-tool-calls-to-context","tool_call_ids":[]}]`, 400, "bad_input", "tool_call_ids"},
		"calls no text":     {`[` + good + `{"type":"add-tool-calls-to-context","tool_call_ids":[1]}]`, 400, "bad_input", "tool_call_ids[0]"},
		"unknown call":      {`[` + good + `{"type":"add-tool-calls-to-context","tool_call_ids":["c9"]}]`, 422, "unknown_call", "c9"},
		"too many":          {`[` + strings.Repeat(good, 256) + good[:len(good)-1] + `]`, 400, "bad_input", "at most 256"},
		"too large":         {`[{"type":"user-message","content":"` + strings.Repeat("x", 2<<20) + `"}]`, 413, "too_large", "1048576"},
		"event too large":   {`[{"type":"user-message","content":"` + strings.Repeat("x", 1000<<10) + `"}]`, 413, "too_large", "960"},
		"chunk":             {`[` + good + `{"type":"llm-chunk","messageId":"m","chunk":"x"}]`, 409, "not_yours", "input 1"},
		"chunk without":     {`[` + good + `{"type":"llm-chunk","messageId":"m"}]`, 400, "bad_input", "chunk"},
		"message complete":  {`[` + good + `{"type":"llm-message-complete","messageId":"m"}]`, 409, "not_yours", "input 1"},
		"complete without":  {`[` + good + `{"type":"LlmMessageComplete"}]`, 400, "bad_input", "message_id"},
		"call started":      {`[` + good + `{"type":"ToolCallStarted","toolCallId":"c","name":"x","parameters":"{}"}]`, 404, "unknown_call", "input 1"},
		"started without":   {`[` + good + `{"type":"tool-call-started","name":"x"}]`, 400, "bad_input", "tool_call_id"},
		"call result":       {`[` + good + `{"type":"tool-call-result","toolCallId":"c","result":{"isSuccess":true,"content":"x"}}]`, 404, "unknown_call", "input 1"},
		"result of event":   {`[` + good + `{"type":"tool_call_result","call_id":"c","success":true,"observation":"x"}]`, 404, "unknown_call", "input 1"},
		"result without":    {`[` + good + `{"type":"tool-call-result","toolCallId":"c"}]`, 400, "bad_input", "result"},
		"result unknown":    {`[` + good + `{"type":"tool-call-result","toolCallId":"c","result":{"isSuccess":true,"cont":"x"}}]`, 400, "bad_input", "cont"},
		"result of neither": {`[` + good + `{"type":"tool-call-result","toolCallId":"c","result":{"isSuccess":true}}]`, 400, "bad_input", "content"},
	} {
		t.Run(name, func(t *testing.T) {
			a := r.fails(c.status, c.code, r.inputs(id, c.body))
			require.Contains(t, a.text(t, "message"), c.says)
			if c.code == "bad_input" && strings.Contains(c.body, "kept out") && name != "too many" {
				require.EqualValues(t, 1, a.field(t, "index"))
			}
			require.Equal(t, []string{"Start"}, r.Types(id), "all or nothing")
		})
	}
	r.fails(404, "run_not_found", r.inputs(runlog.NewID(), `[`+good[:len(good)-1]+`]`))
	r.Happens(id, events.Planning, answered("the end"))
	a := r.fails(409, "run_ended", r.inputs(id, `[`+good[:len(good)-1]+`]`))
	require.Equal(t, "done", a.text(t, "state"))
}

// An append with an unknown outcome is found again by its id, and not repeated.
func TestInputsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t, simtest.New(simtest.Options{Seed: 7, Faults: simtest.Faults{UnknownOutcome: 0.4, Lost: 0.4}}), nil)
	id := r.start("chat")
	for i := range 20 {
		a := r.inputs(id, fmt.Sprintf(`[{"type":"user-message","content":"%d"},{"type":"user-message","content":"again %d"}]`, i, i))
		require.Equal(t, 200, a.status, a.body)
	}
	require.Len(t, r.Records(id), 41)
}

func TestControl(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		post := func(id, what, body string) answer { return r.do("POST", "/v1/runs/"+id+"/"+what, body) }
		id := r.start("chat")
		a := post(id, "pause", `{"reason":"lunch","by":"ann"}`)
		require.Equal(t, 200, a.status)
		require.JSONEq(t, `{"state":"planning","n":2}`, a.body)
		require.JSONEq(t, `{"state":"planning","n":2}`, post(id, "pause", "").body, "it is paused already")
		require.JSONEq(t, `{"state":"planning","n":3}`, post(id, "resume", "{}").body)
		r.fails(409, "not_paused", post(id, "resume", " "))
		require.JSONEq(t, `{"state":"planning","n":4}`, post(id, "pause", "").body)
		require.JSONEq(t, `{"state":"planning","n":5}`, post(id, "resume", " ").body)
		other := r.start("chat")
		r.Happens(other, events.Control, &events.Paused{By: events.By{Reason: "restored"}, Restored: true})
		require.JSONEq(t, `{"state":"planning","n":3}`, post(other, "pause", `{"reason":"wait"}`).body, "somebody pauses it, too")
		r.fails(409, "not_paused", post(other, "resume", `{"restored":true}`))
		page := r.do("GET", "/v1/runs?paused=any", "")
		require.Contains(t, page.body, `"pause_reason":"wait"`)
		require.NotContains(t, page.body, id)
		require.Contains(t, r.do("GET", "/v1/runs/"+other, "").body, `"pause_reason":"wait"`)
		require.JSONEq(t, `{"state":"planning","n":4}`, post(other, "resume", "").body)
		r.Happens(other, events.Control, &events.Paused{By: events.By{Reason: "restored"}, Restored: true})
		require.Contains(t, r.do("GET", "/v1/runs?paused=restored", "").body, other)
		require.JSONEq(t, `{"state":"planning","n":6}`, post(other, "resume", `{"restored":true,"by":"ann"}`).body)
		r.fails(400, "bad_parameter", r.do("GET", "/v1/runs?paused=yes", ""))
		require.JSONEq(t, `{"state":"planning","n":6}`, post(id, "budget", `{"max_total_tokens":5000,"max_wall_time":"1h","by":"ann"}`).body)

		a = r.fails(409, "not_waiting", post(id, "close", ""))
		require.Equal(t, "planning", a.text(t, "state"))
		r.Happens(id, events.Planning, turnDone("hello"))
		require.JSONEq(t, `{"state":"done","n":8}`, post(id, "close", "").body)
		require.Equal(t, []string{"Start", "Paused", "Resumed", "Paused", "Resumed", "BudgetRaised", "LlmMessageComplete", "Closed"}, r.Types(id))
		for what, code := range map[string]string{"pause": "run_ended", "resume": "run_ended", "cancel": "run_ended", "close": "not_waiting"} {
			a = r.fails(409, code, post(id, what, ""))
			require.Equal(t, id, a.text(t, "run"))
		}

		id = r.start("task")
		require.JSONEq(t, `{"state":"cancelled","n":2}`, post(id, "cancel", `{"reason":"enough"}`).body)
		require.Equal(t, "moore.0.default.control.cancelled.default."+id, r.Records(id)[1].Subject)
	})
}

func TestControlErrors(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	for _, body := range []string{`{"reson":"x"}`, `[]`, `{"reason":1}`, `{} {}`, `x`, "{\"by\":\"\xff\"}"} {
		r.fails(400, "bad_request", r.do("POST", "/v1/runs/"+id+"/cancel", body))
	}
	for _, body := range []string{``, `{}`, `{"max_tokens":1}`, `{"max_cost_usd":-1}`, `{"max_wall_time":3}`, `{"by":"ann"}`} {
		r.fails(400, "bad_request", r.do("POST", "/v1/runs/"+id+"/budget", body))
	}
	for _, what := range []string{"cancel", "pause", "resume", "close"} {
		r.fails(404, "run_not_found", r.do("POST", "/v1/runs/"+runlog.NewID()+"/"+what, ""))
		r.fails(413, "too_large", r.do("POST", "/v1/runs/"+id+"/"+what, strings.Repeat(" ", 2<<20)))
	}
	require.Equal(t, []string{"Start"}, r.Types(id))
}

func TestWhoMeetsPoisonEndsTheRun(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	r.inject(id, events.Nobody, "not an event")
	a := r.fails(409, "run_ended", r.inputs(id, `[{"type":"user-message","content":"hello?"}]`))
	require.Equal(t, "error", a.text(t, "state"))
	state := r.do("GET", "/v1/runs/"+id, "")
	require.EqualValues(t, 3, state.field(t, "n"))
	require.Contains(t, state.body, `"code":"poison"`)

	id = r.start("task")
	r.inject(id, events.Nobody, "not an event")
	a = r.do("POST", "/v1/runs/"+id+"/cancel", "")
	require.JSONEq(t, `{"state":"cancelled","n":3}`, a.body, "cancelling is what remains possible")
	require.Len(t, r.pages("state=error&"), 1)
	require.Len(t, r.pages("state=cancelled&"), 1)
}

func TestDecisionsOfABatchAreJoined(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		decisions []string
		joined    string
	}{
		"one is approved":  {[]string{events.DecisionRejected, events.DecisionApproved}, "HumanApprovedParallel"},
		"all are rejected": {[]string{events.DecisionRejected, events.DecisionRejected}, "HumanRejected"},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryBus(t, 1, func(t *testing.T, r *rig) {
				id := r.start("task")
				r.Happens(id, events.Planning, &events.HumanApprovalRequired{
					ToolCallReply: called("c1", "c2"),
					Requests:      []events.Request{{CallID: "c1", Tool: "search"}, {CallID: "c2", Tool: "search"}},
				})
				for i, decision := range c.decisions {
					r.Happens(id, events.WaitingForHuman, &events.HumanDecision{Decision: events.Decision{
						CallID: fmt.Sprintf("c%d", i+1), Decision: decision, By: "ann",
					}})
				}
				require.Eventually(t, func() bool { return len(r.Records(id)) == 5 }, patience, waitStep)
				require.Equal(t, c.joined, r.Types(id)[4])
			})
		})
	}
}
