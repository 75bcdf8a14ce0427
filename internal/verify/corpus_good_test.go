package verify_test

import (
	"encoding/json"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// goodRuns are the runs of the corpus that are as they should be. To change one
// here does not change its recording; new ones are added.
var goodRuns = []recording{
	{"task_single_calls", func(r *recorder) {
		r.start("Count the words of the best page", nil)
		r.step("call_1", "search", "the page\nhas \"two\" lines: äöü <&>")
		r.on(events.Planning, one("call_2", "word_count"))
		r.on(events.Acting, &events.ToolCallStarted{CallID: "call_2"})
		r.on(events.Acting, failure("call_2", "wc: exit status 1"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("It has two lines; counting failed."))
	}},
	{"task_parallel_one_pool", func(r *recorder) {
		r.start("Search twice", nil)
		r.on(events.Planning, several(call("a", "search"), call("b", "search")))
		r.on(events.ParallelActing, result("b", "second", true))
		r.on(events.ParallelActing, result("a", "none", false))
		r.on(events.ParallelActing, &events.ToolSuccess{})
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("One of two was found."))
	}},
	{"task_parallel_two_pools", func(r *recorder) {
		r.start("Search and count", nil)
		p := several(call("a", "search"), call("b", "word_count"))
		p.Content = "I do both."
		p.Refused = []events.Refusal{{Call: call("c", "nothing"), Observation: "ERROR: tool nothing not found", Code: "not_found"}}
		r.on(events.Planning, p)
		r.on(events.Planning, &events.ToolCallDispatched{CallID: "a"})
		r.on(events.Planning, &events.ToolCallDispatched{CallID: "b"})
		r.on(events.ParallelActing, result("a", "none", false))
		r.on(events.Control, &events.ToolCallResult{ToolOutcome: events.ToolOutcome{
			CallID: "b", Observation: "ERROR: no actor serves pool default", Code: reducer.CodeNoActor,
		}})
		r.on(events.ParallelActing, &events.ToolFailure{})
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("Nothing worked."))
	}},
	{"chat_message_during_call", func(r *recorder) {
		r.start("Hello", chat)
		r.on(events.Planning, one("call_1", "search"))
		r.on(events.Control, &events.UserMessage{MessageID: "m-2", Content: "and be quick"})
		r.on(events.Acting, success("call_1", "found"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Control, &events.UserMessage{MessageID: "m-3", Content: "please"})
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m-4", Reply: said("Found it.")})
		r.on(events.WaitingForUser, &events.UserMessage{MessageID: "m-5", Content: "Thanks"})
		r.on(events.Planning, &events.ContextWindowExpanded{Increment: 5})
		r.on(events.Control, &events.ToolCallsAddedToContext{CallIDs: []string{"call_1"}})
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m-6", Reply: said("You are welcome.")})
		r.on(events.WaitingForUser, &events.Closed{By: events.By{By: "user"}})
	}},
	{"chat_unfinished", func(r *recorder) {
		r.start("Hello", chat)
		r.on(events.Planning, &events.LLMMessageComplete{MessageID: "m-2", Reply: said("Hello to you.")})
	}},
	{"reflection", func(r *recorder) {
		r.start("Think about it", func(p *events.Start) { p.Agent.Config.ReflectEveryNSteps = 2 })
		r.on(events.Planning, &events.LowConfidence{Confidence: 0.2, Usage: events.Usage{Input: 5, Output: 1, Total: 6}})
		r.on(events.Reflecting, &events.ReflectDone{Failed: "overloaded"})
		r.on(events.Planning, one("call_1", "search"))
		r.on(events.Acting, success("call_1", "found"))
		r.on(events.Observing, &events.NeedsReflection{})
		r.on(events.Reflecting, &events.LLMAttemptFailed{Kind: "rate_limited", Message: "slow down", Key: "reflect/6", RetryAfterMS: 100})
		r.on(events.Reflecting, &events.ReflectDone{Summary: "A search found it.", Model: "script", Usage: &events.Usage{Input: 9, Output: 4, Total: 13}})
		r.step("call_2", "search", "found again")
		r.on(events.Planning, &events.AnswerTooShort{Content: "ok"})
		r.on(events.Planning, answer("It was found twice."))
	}},
	{"approval_approved", func(r *recorder) {
		r.askToPay()
		r.on(events.WaitingForHuman, &events.HumanApproved{Decision: decision("call_1", events.DecisionApproved)})
		r.on(events.Acting, &events.ToolCallStarted{CallID: "call_1"})
		r.on(events.Acting, success("call_1", "paid"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("It is paid."))
	}},
	{"approval_rejected", func(r *recorder) {
		r.askToPay()
		r.on(events.WaitingForHuman, &events.HumanRejected{Decision: decision("call_1", events.DecisionRejected)})
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("It is not paid."))
	}},
	{"approval_modified", func(r *recorder) {
		r.askToPay()
		d := decision("call_1", events.DecisionModified)
		d.Arguments = `{"q": "less"}`
		r.on(events.WaitingForHuman, &events.HumanModified{Decision: d})
		r.on(events.Acting, success("call_1", "paid less"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("Less was paid."))
	}},
	{"approval_expired", func(r *recorder) {
		r.askToPay()
		r.on(events.WaitingForHuman, &events.ApprovalExpired{})
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("Nobody decided."))
	}},
	{"approval_batch", func(r *recorder) {
		r.start("Search and pay", nil)
		r.on(events.Planning, approval(call("a", "search"), call("b", "pay")))
		r.on(events.WaitingForHuman, &events.HumanDecision{Decision: decision("a", events.DecisionApproved)})
		r.on(events.WaitingForHuman, &events.HumanDecision{Decision: decision("b", events.DecisionRejected)})
		r.on(events.WaitingForHuman, &events.HumanApprovedParallel{})
		r.on(events.Planning, &events.ToolCallDispatched{CallID: "a"})
		r.on(events.ParallelActing, result("a", "found", true))
		r.on(events.ParallelActing, &events.ToolSuccess{})
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("Found, but not paid."))
	}},
	{"outcome_unknown", func(r *recorder) {
		r.start("Pay", nil)
		r.on(events.Planning, one("call_1", "pay"))
		r.on(events.Acting, &events.ToolCallStarted{CallID: "call_1"})
		r.on(events.Acting, &events.LLMAttemptFailed{Kind: events.KindWorkerLost, Message: "the worker went away", Key: "tool/2/call_1"})
		r.on(events.Acting, &events.HumanApprovalRequired{Requests: []events.Request{request("call_1", "pay")}})
		r.on(events.WaitingForHuman, &events.HumanApproved{Decision: decision("call_1", events.DecisionApproved)})
		r.on(events.Acting, &events.ToolCallStarted{CallID: "call_1"})
		r.on(events.Acting, success("call_1", "paid"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("It is paid."))
	}},
	{"cancelled", func(r *recorder) {
		r.start("Search", nil)
		r.on(events.Planning, one("call_1", "search"))
		r.on(events.Control, &events.CancelledRun{By: events.By{Reason: "changed my mind", By: "user"}})
	}},
	{"paused_resumed", func(r *recorder) {
		r.start("Search", nil)
		r.on(events.Planning, one("call_1", "search"))
		r.on(events.Control, &events.Paused{By: events.By{By: "operator"}})
		r.on(events.Acting, success("call_1", "found"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Control, &events.Resumed{By: events.By{By: "operator"}})
		r.on(events.Planning, answer("It was found."))
	}},
	{"budget", func(r *recorder) {
		r.start("Search", func(p *events.Start) { p.Agent.Budget = &events.Budget{MaxTotalTokens: 30} })
		r.step("call_1", "search", "found")
		r.on(events.Control, &events.BudgetRaised{Budget: events.Budget{MaxTotalTokens: 60}, By: events.By{By: "operator"}})
		r.step("call_2", "search", "found")
		r.on(events.Planning, &events.BudgetExceeded{Outcome: events.Outcome{Code: "budget_exceeded", Message: "60 tokens are used up"}})
	}},
	{"max_steps", func(r *recorder) {
		r.start("Search for ever", func(p *events.Start) { p.Agent.Config.MaxSteps = 2 })
		r.step("call_1", "search", "found")
		r.step("call_2", "search", "found")
		r.on(events.Planning, &events.MaxSteps{Outcome: events.Outcome{Code: "max_steps", Message: "max steps 2 exceeded"}})
	}},
	{"blacklisted_invalid", func(r *recorder) {
		r.start("Pay", func(p *events.Start) { p.Agent.Blacklist = []string{"pay"} })
		refused := events.RefusedReply{
			Calls:   []events.Call{call("call_1", "pay")},
			Results: []events.Answer{{ID: "call_1", Observation: "ERROR: pay is blacklisted", Code: "blacklisted"}},
		}
		r.on(events.Planning, &events.ToolBlacklisted{RefusedReply: refused})
		r.on(events.Planning, &events.ReplyInvalid{RefusedReply: events.RefusedReply{
			Content: "{", Calls: []events.Call{}, Results: []events.Answer{{Observation: "ERROR: not a reply", Code: "invalid"}},
		}})
		r.on(events.Planning, answer("I may not pay."))
	}},
	{"queued_calls", func(r *recorder) {
		r.start("Search twice", func(p *events.Start) { p.Agent.Config.ParallelTools = false })
		p := one("a", "search")
		p.Queued = []events.Call{call("b", "search")}
		r.on(events.Planning, p)
		r.on(events.Acting, success("a", "first"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, &events.LLMToolCall{ToolCallReply: events.ToolCallReply{Calls: []events.Call{call("b", "search")}, Confidence: 1}})
		r.on(events.Acting, success("b", "second"))
		r.on(events.Observing, &events.Continue{})
		r.on(events.Planning, answer("Both were found."))
	}},
	{"thoughts_and_paging", func(r *recorder) {
		r.start("Remember", nil)
		r.on(events.Planning, &events.LLMThought{Reply: said("Where do I begin?")})
		r.on(events.Planning, one("call_1", "search"))
		r.on(events.Acting, &events.WorkingMemoryAdded{Entry: entry("a fact", "b")})
		r.on(events.Acting, &events.StorageSaved{Entry: entry("kept", "k")})
		r.on(events.Acting, &events.StorageLoaded{Tags: []string{"k"}, Entries: []events.Entry{entry("kept", "k")}})
		r.on(events.Acting, &events.WorkingMemoryRemoved{Tags: []string{"k"}})
		r.on(events.Acting, success("call_1", "found"))
		r.on(events.Observing, &events.NeedsPaging{})
		r.on(events.Paging, &events.PageDone{Paged: []events.Entry{entry("a fact", "b")}})
		r.on(events.Planning, answer("I remember."))
	}},
	{"sub_agent_failed", func(r *recorder) {
		r.start("Help another", func(p *events.Start) { p.Parent = &events.Parent{Run: runID(0xffff), CallID: "call_9"} })
		r.on(events.Planning, &events.LLMAttemptFailed{Kind: "auth", Message: "no key", Key: "plan/1"})
		r.on(events.Planning, &events.FatalError{Outcome: events.Outcome{Code: "llm_error", Message: "auth: no key"}})
	}},
	{"foreign_writer", func(r *recorder) {
		// Another program's bodies: other order and spacing, a key that we do not
		// know. They are legal, and are not written again byte for byte.
		r.start("Hello", nil)
		subject, e, err := r.machine.Draft(r.mem, r.run, events.Planning, answer("Written elsewhere."), r.stamp("planning"))
		if err != nil {
			r.t.Fatal(err)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(r.encode(e), &members); err != nil {
			r.t.Fatal(err)
		}
		members["partition"] = json.RawMessage(`{ "key":  1.50 }`)
		members["time"] = json.RawMessage(`"2025-11-20T10:00:00.5+01:00"`)
		body, err := json.Marshal(members)
		if err != nil {
			r.t.Fatal(err)
		}
		r.append(subject.String(), body)
	}},
}

// askToPay is a run that waits for a decision on one call.
func (r *recorder) askToPay() {
	r.start("Pay", nil)
	r.on(events.Planning, approval(call("call_1", "pay")))
}

func approval(calls ...events.Call) *events.HumanApprovalRequired {
	p := &events.HumanApprovalRequired{ToolCallReply: reply(calls...), Deadline: "2025-11-21T09:00:00Z"}
	for _, c := range calls {
		p.Requests = append(p.Requests, request(c.ID, c.Name))
	}
	return p
}

func request(id, tool string) events.Request {
	return events.Request{CallID: id, Tool: tool, Arguments: `{"q": "` + id + `"}`, Risk: "high", Reason: "risk above medium"}
}

func decision(id, what string) events.Decision {
	return events.Decision{CallID: id, Decision: what, Reason: "because", By: "alice"}
}

func entry(value string, tags ...string) events.Entry { return events.Entry{Tags: tags, Value: value} }
