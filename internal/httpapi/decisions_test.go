package httpapi_test

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// payTool is a tool whose arguments a human may get wrong.
var payTool = events.ToolSpec{
	Name: "pay", Description: "Pays.", Effect: "once", Pool: "default", Risk: "high",
	Schema: json.RawMessage(`{"type":"object","properties":{"amount":{"type":"integer"}},"required":["amount"],"additionalProperties":false}`),
}

const payer = `{"agent":{"name":"payer","llm":{"provider":"openai"},"tools":["search","pay"],"blacklist":["search"],"approval":{"policy":"always"}},"task":"Pay."}`

// held starts a run that waits for a human to decide on the calls, or on those in asked only.
func (r *rig) held(tool string, calls []string, asked ...string) string {
	r.T.Helper()
	return r.asked(waiting("", tool, calls, asked...))
}

// asked starts a run that waits for p.
func (r *rig) asked(p *events.HumanApprovalRequired) string {
	r.T.Helper()
	r.announce("b", searchTool, payTool)
	var id string
	require.Eventually(r.T, func() bool {
		a := r.do("POST", "/v1/runs", payer)
		if a.status == 201 {
			id = a.text(r.T, "run_id")
		}
		return a.status == 201
	}, patience, 10*time.Millisecond, "the tool is known soon")
	r.Happens(id, events.Planning, p)
	return id
}

func (r *rig) decide(id, body string) answer {
	r.T.Helper()
	return r.do("POST", "/v1/runs/"+id+"/decisions", body)
}

// memory returns the run's memory from the gateway.
func (r *rig) memory(id string) *reducer.Memory {
	r.T.Helper()
	state, err := r.control.State(r.T.Context(), "", id, 0)
	require.NoError(r.T, err)
	var mem reducer.Memory
	require.NoError(r.T, json.Unmarshal(state.Memory, &mem))
	return &mem
}

func (r *rig) reaches(id string, want events.State) *reducer.Memory {
	r.T.Helper()
	require.Eventually(r.T, func() bool { return r.memory(id).State == want }, patience, 10*time.Millisecond)
	return r.memory(id)
}

func TestDecideOneCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body, to, event string
		check           func(t *testing.T, mem *reducer.Memory)
	}{
		"approved": {`{"call_id":"c1","decision":"approved","by":"ann"}`, "acting", "HumanApproved", func(t *testing.T, mem *reducer.Memory) {
			require.Equal(t, `{"amount":1}`, mem.CurrentToolCall.Arguments)
		}},
		"modified": {`{"call_id":"c1","decision":"modified","arguments":"{ \"amount\": 2 }","by":"ann"}`, "acting", "HumanModified", func(t *testing.T, mem *reducer.Memory) {
			require.Equal(t, `{ "amount": 2 }`, mem.CurrentToolCall.Arguments, "verbatim")
		}},
		"rejected": {`{"call_id":"c1","decision":"rejected","reason":"too much","by":"ann"}`, "observing", "HumanRejected", func(t *testing.T, mem *reducer.Memory) {
			require.Equal(t, "REJECTED: too much", *mem.LastObservation)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryBus(t, 1, func(t *testing.T, r *rig) {
				id := r.held("pay", []string{"c1"})
				a := r.decide(id, c.body)
				require.Equal(t, 200, a.status, a.body)
				require.JSONEq(t, `{"state":"`+c.to+`","n":3}`, a.body)
				require.Equal(t, c.event, r.Types(id)[2])
				require.Equal(t, "moore.0.default.waiting_for_human."+c.to+".default."+id, r.Records(id)[2].Subject)
				require.Contains(t, string(r.Records(id)[2].Body), `"by":"ann"`)
				c.check(t, r.memory(id))

				second := r.fails(409, "already_decided", r.decide(id, `{"call_id":"c1","decision":"approved","by":"bob"}`))
				first, err := json.Marshal(second.field(t, "decision"))
				require.NoError(t, err)
				require.JSONEq(t, c.body, string(first))
				require.Len(t, r.Records(id), 3)

				require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/cancel", "").status)
				ended := r.fails(409, "run_ended", r.decide(id, `{"call_id":"c1","decision":"approved","by":"bob"}`))
				require.NotNil(t, ended.field(t, "decision"), "the first one")
				require.Contains(t, ended.body, " already, by ")
				require.NotContains(t, r.fails(409, "run_ended", r.decide(id, `{"call_id":"c9","decision":"approved","by":"bob"}`)).body, `"decision":{`)
			})
		})
	}
}

// A decision may name a call by the model's own id.
func TestDecideByTheProvidersID(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		const odd = "two\nlines"
		name := callname.New(nil, odd)
		asked := waiting("", "pay", []string{name})
		asked.Calls[0].ProviderID = odd
		id := r.asked(asked)
		require.NotEqual(t, odd, name)
		body := `{"call_id":"two\nlines","decision":"approved","by":"ann"}`
		require.Equal(t, 200, r.decide(id, body).status)
		require.Contains(t, string(r.Records(id)[2].Body), `"call_id":"`+name+`"`)
		second := r.fails(409, "already_decided", r.decide(id, body))
		require.Equal(t, "ann", second.field(t, "decision").(map[string]any)["by"])
		require.Equal(t, 200, r.do("POST", "/v1/runs/"+id+"/cancel", "").status)
		require.NotNil(t, r.fails(409, "run_ended", r.decide(id, body)).field(t, "decision"))
		r.fails(409, "run_ended", r.decide(id, `{"call_id":"`+name+`","decision":"approved","by":"ann"}`))
	})
}

func TestModificationIsChecked(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	for name, c := range map[string]struct{ tool, arguments, code, says string }{
		"unknown tool":     {"ghost", `{"amount":1}`, "unknown_tool", "ghost"},
		"blacklisted":      {"search", `not even JSON`, "blacklisted", "search"},
		"not JSON":         {"pay", `{"amount":`, "invalid_arguments", "pay"},
		"no object":        {"pay", `[1]`, "invalid_arguments", "pay"},
		"against a schema": {"pay", `{"amount":"2"}`, "invalid_arguments", "amount"},
		"surplus":          {"pay", `{"amount":2,"to":"me"}`, "invalid_arguments", "to"},
		"in another case":  {"pay", `{"amount":2,"Amount":3}`, "invalid_arguments", "upper and lower case"},
	} {
		t.Run(name, func(t *testing.T) {
			id := r.held(c.tool, []string{"c1"})
			text, err := json.Marshal(c.arguments)
			require.NoError(t, err)
			a := r.fails(422, c.code, r.decide(id, `{"call_id":"c1","decision":"modified","by":"ann","arguments":`+string(text)+`}`))
			require.Contains(t, a.text(t, "message"), c.says)
			require.Equal(t, events.WaitingForHuman, r.memory(id).State)
			require.Equal(t, 200, r.decide(id, `{"call_id":"c1","decision":"rejected","by":"ann"}`).status, "it still waits")
		})
	}
	id := r.held("pay", []string{"c1"})
	require.Equal(t, 200, r.decide(id, `{"call_id":"c1","decision":"modified","arguments":{"amount":2.0},"by":"ann"}`).status)
	require.Contains(t, string(r.Records(id)[2].Body), `"arguments":"{\"amount\":2.0}"`, "the numbers of an object are not rewritten")
	bare := simulatedRig(t, func(c *config) { c.Validator = nil })
	id = bare.held("pay", []string{"c1"})
	bare.fails(422, "invalid_arguments", bare.decide(id, `{"call_id":"c1","decision":"modified","by":"ann","arguments":"[]"}`))
	bare.fails(422, "invalid_arguments", bare.decide(id, `{"call_id":"c1","decision":"modified","by":"ann","arguments":"{"}`))
	require.Equal(t, 200, bare.decide(id, `{"call_id":"c1","decision":"modified","by":"ann","arguments":"{}"}`).status)
}

// A question is answered, not approved. The tool's schema does not have the answer.
func TestDecideAQuestion(t *testing.T) {
	t.Parallel()
	question := func(calls ...string) *events.HumanApprovalRequired {
		p := waiting("", "pay", calls)
		for i := range p.Requests {
			p.Requests[i].Asks = true
		}
		return p
	}
	for name, calls := range map[string][]string{"single": {"c1"}, "batch": {"c1", "c2"}} {
		t.Run(name, func(t *testing.T) {
			r := simulatedRig(t, nil)
			id := r.asked(question(calls...))
			for body, code := range map[string]string{
				`"decision":"approved"`:                                            "answer_needed",
				`"decision":"modified","arguments":{"amount":1}`:                   "answer_needed",
				`"decision":"modified","arguments":{"amount":1,"answer":" "}`:      "answer_needed",
				`"decision":"modified","arguments":{"amount":1,"answer":7}`:        "answer_needed",
				`"decision":"modified","arguments":{"answer":"yes"}`:               "invalid_arguments",
				`"decision":"modified","arguments":{"amount":1,"answer":"","a":1}`: "answer_needed",
				`"decision":"modified","arguments":"[]"`:                           "invalid_arguments",
			} {
				a := r.fails(422, code, r.decide(id, `{"call_id":"c1","by":"ann",`+body+`}`))
				require.Equal(t, "c1", a.text(t, "call_id"))
			}
			require.Equal(t, events.WaitingForHuman, r.memory(id).State)
			for _, call := range calls {
				a := r.decide(id, `{"call_id":"`+call+`","by":"ann","decision":"modified","arguments":{"amount":1, "answer":"yes"}}`)
				require.Equal(t, 200, a.status, a.body)
			}
			want := events.Acting
			if len(calls) > 1 {
				want = events.ParallelActing
			}
			require.Equal(t, `{"amount":1, "answer":"yes"}`, r.reaches(id, want).ToolCalls["c1"].Parameters, "verbatim")
		})
	}
}

func TestDecideBatch(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.held("pay", []string{"c1", "c2", "c3"})
		a := r.decide(id, `{"call_id":"c2","decision":"rejected","reason":"no","by":"ann"}`)
		require.JSONEq(t, `{"state":"waiting_for_human","n":3}`, a.body)
		second := r.fails(409, "already_decided", r.decide(id, `{"call_id":"c2","decision":"approved","by":"bob"}`))
		require.Equal(t, map[string]any{"call_id": "c2", "decision": "rejected", "reason": "no", "by": "ann"}, second.field(t, "decision"))
		r.fails(422, "invalid_arguments", r.decide(id, `{"call_id":"c1","decision":"modified","arguments":"{}","by":"ann"}`))
		require.Equal(t, 200, r.decide(id, `{"call_id":"c1","decision":"modified","arguments":"{\"amount\":7}","by":"bob"}`).status)
		require.JSONEq(t, `{"state":"waiting_for_human","n":5}`, r.decide(id, `{"call_id":"c3","decision":"approved","by":"ann"}`).body)
		mem := r.reaches(id, events.ParallelActing)
		require.Equal(t, []string{"HumanDecision", "HumanDecision", "HumanDecision", "HumanApprovedParallel"}, r.Types(id)[2:])
		require.Contains(t, r.Records(id)[3].Subject, ".waiting_for_human.none.")
		require.Contains(t, r.Records(id)[4].Subject, ".waiting_for_human.waiting_for_human.")
		require.Equal(t, `{"amount":7}`, mem.ToolCalls["c1"].Parameters)
		require.Equal(t, `{"amount":1}`, mem.ToolCalls["c3"].Parameters)
		require.Len(t, mem.ParallelResults, 1)
		require.Equal(t, "REJECTED: no", mem.ParallelResults[0].Observation)
		second = r.fails(409, "already_decided", r.decide(id, `{"call_id":"c1","decision":"approved","by":"ann"}`))
		require.Contains(t, second.body, `"by":"bob"`)
	})
}

func TestDecideBatchAllRejected(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.held("pay", []string{"c1", "c2"})
		for _, call := range []string{"c1", "c2"} {
			a := r.decide(id, `{"call_id":"`+call+`","decision":"rejected","reason":"not `+call+`","by":"ann"}`)
			require.Equal(t, 200, a.status, a.body)
		}
		mem := r.reaches(id, events.Observing)
		require.Equal(t, "HumanRejected", r.Types(id)[4])
		require.Equal(t, "REJECTED: not c1", mem.ToolCalls["c1"].Result.Text())
		require.Equal(t, "REJECTED: not c2", mem.ToolCalls["c2"].Result.Text())
		r.fails(409, "already_decided", r.decide(id, `{"call_id":"c2","decision":"approved","by":"bob"}`))
	})
}

// The calls of a batch that need no decision wait with the others, and run.
func TestDecideBatchInPart(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.held("pay", []string{"c1", "c2"}, "c2")
		r.fails(409, "not_waiting", r.decide(id, `{"call_id":"c1","decision":"approved","by":"ann"}`))
		require.Equal(t, 200, r.decide(id, `{"call_id":"c2","decision":"rejected","by":"ann"}`).status)
		require.Len(t, r.reaches(id, events.ParallelActing).ParallelResults, 1)
	})
}

// A call with an unknown outcome is asked about out of Acting. If it was approved before, this
// is a new request.
func TestDecideOutOfActing(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		id := r.held("pay", []string{"c1"})
		require.Equal(t, 200, r.decide(id, `{"call_id":"c1","decision":"approved","by":"ann"}`).status)
		again := waiting("", "pay", nil, "c1")
		r.Happens(id, events.Acting, &events.ToolCallStarted{CallID: "c1"}, again)
		a := r.decide(id, `{"call_id":"c1","decision":"rejected","reason":"it happened","by":"bob"}`)
		require.JSONEq(t, `{"state":"observing","n":6}`, a.body)
		second := r.fails(409, "already_decided", r.decide(id, `{"call_id":"c1","decision":"approved","by":"cyd"}`))
		require.Contains(t, second.body, `"by":"bob"`)
	})
}

func TestCallsThatDoNotWait(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.held("pay", []string{"c1"})
	r.fails(404, "unknown_call", r.decide(id, `{"call_id":"c9","decision":"approved","by":"ann"}`))
	r.fails(404, "run_not_found", r.decide(runlog.NewID(), `{"call_id":"c1","decision":"approved","by":"ann"}`))
	r.fails(404, "run_not_found", r.decide("nonsense", `{"call_id":"c1","decision":"approved","by":"ann"}`))
	other := r.start("task")
	r.fails(404, "unknown_call", r.decide(other, `{"call_id":"c1","decision":"approved","by":"ann"}`))
	r.Happens(other, events.Planning, &events.LLMToolCall{ToolCallReply: called("c1")})
	a := r.fails(409, "not_waiting", r.decide(other, `{"call_id":"c1","decision":"approved","by":"ann"}`))
	require.Equal(t, "acting", a.text(t, "state"))
	require.Equal(t, []string{"Start", "LlmToolCall"}, r.Types(other))
}

func TestDecisionBody(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.held("pay", []string{"c1"})
	for name, c := range map[string]struct {
		body, code, says string
	}{
		"nothing":               {``, "bad_request", "JSON"},
		"no object":             {`[]`, "bad_request", "want a JSON object"},
		"unknown key":           {`{"call_id":"c1","decision":"approved","by":"ann","force":true}`, "bad_request", "force"},
		"twice":                 {`{"call_id":"c1","call_id":"c2","decision":"approved","by":"ann"}`, "bad_request", "call_id"},
		"arguments as a list":   {`{"call_id":"c1","decision":"modified","by":"ann","arguments":[2]}`, "bad_decision", "as an object"},
		"empty arguments":       {`{"call_id":"c1","decision":"modified","by":"ann","arguments":""}`, "bad_decision", "as an object"},
		"no call":               {`{"decision":"approved","by":"ann"}`, "bad_decision", "call_id"},
		"no decision":           {`{"call_id":"c1","by":"ann"}`, "bad_decision", "decision"},
		"other decision":        {`{"call_id":"c1","decision":"Approved","by":"ann"}`, "bad_decision", "Approved"},
		"nobody":                {`{"call_id":"c1","decision":"approved"}`, "bad_decision", "by"},
		"blank":                 {`{"call_id":"c1","decision":"approved","by":" "}`, "bad_decision", "by"},
		"modified to nothing":   {`{"call_id":"c1","decision":"modified","by":"ann"}`, "bad_decision", "arguments"},
		"approved and modified": {`{"call_id":"c1","decision":"approved","by":"ann","arguments":"{}"}`, "bad_decision", "arguments"},
		"rejected and modified": {`{"call_id":"c1","decision":"rejected","by":"ann","arguments":"{}"}`, "bad_decision", "arguments"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, r.fails(400, c.code, r.decide(id, c.body)).text(t, "message"), c.says)
		})
	}
	_, err := r.control.Decide(t.Context(), "", id, events.Decision{CallID: "c1", Decision: "rejected", Reason: "\xff", By: "ann"})
	var refused *refusal.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, refusal.CodeBadDecision, refused.Code)
	large := strings.Repeat("x", 1000<<10)
	r.fails(413, "too_large", r.decide(id, `{"call_id":"c1","decision":"rejected","by":"ann","reason":"`+large+`"}`))
	require.Len(t, r.Records(id), 2)
}

// The store's clock decides when it is too late, and the client is told so.
func TestDecisionAfterTheDeadline(t *testing.T) {
	t.Parallel()
	var late atomic.Bool
	deadline := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	j := simtest.New(simtest.Options{})
	r := newRig(t, j, func(c *config) {
		c.Store = runlog.New(runlog.Options{Log: j, Clock: func() time.Time {
			if late.Load() {
				return deadline.Add(time.Second)
			}
			return deadline.Add(-time.Second)
		}})
	})
	for _, calls := range [][]string{{"c1"}, {"c1", "c2"}} {
		late.Store(false)
		id := r.start("task")
		r.Happens(id, events.Planning, waiting(deadline.Format(time.RFC3339), "search", calls))
		last := calls[len(calls)-1]
		if len(calls) > 1 {
			require.Equal(t, 200, r.decide(id, `{"call_id":"c1","decision":"approved","by":"ann"}`).status, "in time")
		}
		n := len(r.Records(id))
		late.Store(true)
		r.fails(404, "unknown_call", r.decide(id, `{"call_id":"c9","decision":"approved","by":"ann"}`))
		require.Len(t, r.Records(id), n, "a decision on an unknown call expires nothing")
		for range 2 {
			a := r.fails(409, "approval_expired", r.decide(id, `{"call_id":"`+last+`","decision":"approved","by":"ann"}`))
			require.Equal(t, "observing", a.text(t, "state"))
			require.EqualValues(t, n+1, a.field(t, "n"))
		}
		require.Equal(t, "ApprovalExpired", r.Types(id)[n])
		require.Equal(t, "REJECTED: expired", r.memory(id).ToolCalls[last].Result.Text())
	}
	late.Store(false)
	id := r.start("task")
	r.Happens(id, events.Planning, waiting(deadline.Format(time.RFC3339), "search", []string{"c1"}))
	require.Equal(t, 200, r.decide(id, `{"call_id":"c1","decision":"approved","by":"ann"}`).status)
}

// Of two simultaneous decisions one wins, and the other client gets it, even if the outcome of
// an append is unknown.
func TestDecisionsRace(t *testing.T) {
	t.Parallel()
	j := simtest.New(simtest.Options{Seed: 3, Faults: simtest.Faults{UnknownOutcome: 0.3, Lost: 0.3}})
	a := newRig(t, j, nil)
	b := newRig(t, j, func(c *config) { c.Instance = "other" })
	for range 10 {
		id := a.held("pay", []string{"c1"})
		answers := make(chan answer, 2)
		go func() { answers <- a.decide(id, `{"call_id":"c1","decision":"approved","by":"ann"}`) }()
		go func() { answers <- b.decide(id, `{"call_id":"c1","decision":"rejected","by":"bob"}`) }()
		won, lost := <-answers, <-answers
		if won.status != 200 {
			won, lost = lost, won
		}
		require.Equal(t, 200, won.status, won.body)
		a.fails(409, "already_decided", lost)
		require.Len(t, a.Records(id), 3)
	}
}
