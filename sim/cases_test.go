package sim

import (
	"context"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
)

// How to add a case: one entry in livenessCases.
//
//  1. row is the first cell of its row in ARCHITECTURE.md, letter by letter;
//     TestLivenessTable fails for a row without a case, and for a transition or
//     an event without a row.
//  2. event and from say which event's publisher dies: the one that appends it
//     in that state (nth: not the first time it does). name tells apart cases of
//     one event.
//  3. script is what the model says until it answers; agent changes the
//     definition; people is what people do, from the start on.
//  4. asked says that people ask for the event: they ask again, and the
//     acknowledgement is their answer.
//  5. timer says that the event's publisher acts for a timer that fired: then the
//     acknowledgement is the timer's.
//  6. then says under whose delivery the run goes on once the event is stored.
type livenessCase struct {
	row, name string
	event     events.Type
	from      events.State
	nth       int
	script    []scriptEntry
	agent     func(*events.Agent)
	people    func(context.Context, *person)
	asked     bool
	timer     bool
	then      string

	// change changes the installation; loses says that the case itself takes
	// workers away.
	change func(*scenario)
	loses  bool
	// follows is the kind of effect that the publisher decides without a delivery: each
	// process has every role then.
	follows effects.Kind
	// led says that each process leads the run.
	led bool
	// points are where the publisher dies; nil: [points].
	points []string
	// lost are the types of events of which the bus loses the first deliveries, as many of each
	// type as it is named.
	lost []events.Type
}

// Who carries a run on: nobody, people, the event's own delivery, or the delivery
// that its publisher held. Anything else names the events, one of whose
// deliveries it is.
const (
	nobody = "nobody"
	people = "people"
	itself = "itself"
	held   = "held"
)

func script(all ...scriptEntry) []scriptEntry { return all }

func chat(a *events.Agent) { a.Mode = events.ModeChat }

// decides answers the calls that wait, one after the other.
func decides(decisions ...events.Decision) func(context.Context, *person) {
	return func(ctx context.Context, p *person) {
		for i, d := range decisions {
			p.await(ctx, func(v view) bool {
				return v.terminal || v.state == events.WaitingForHuman && len(v.undecided) == len(decisions)-i
			})
			if v := p.w.audit.view(p.spec.ID); len(v.undecided) > 0 {
				d.CallID, d.By = v.undecided[0], "a person"
				p.put(ctx, d)
			}
		}
	}
}

var (
	approved = events.Decision{Decision: events.DecisionApproved}
	rejected = events.Decision{Decision: events.DecisionRejected, Reason: "no"}
	modified = events.Decision{Decision: events.DecisionModified, Arguments: `{"n":7}`}
)

// when does something as soon as the run is in a state.
func when(s events.State, do func(context.Context, *person)) func(context.Context, *person) {
	return func(ctx context.Context, p *person) {
		p.awaitState(ctx, s)
		do(ctx, p)
	}
}

// then does one thing after the other.
func then(all ...func(context.Context, *person)) func(context.Context, *person) {
	return func(ctx context.Context, p *person) {
		for _, do := range all {
			do(ctx, p)
		}
	}
}

func act(kind string) func(context.Context, *person) {
	return func(ctx context.Context, p *person) { p.act(ctx, actSpec{Kind: kind}) }
}

func says(ctx context.Context, p *person) { p.say(ctx, "more") }

func closes(ctx context.Context, p *person) { p.answer(ctx, view{turns: 1}) }

func adds(call string) func(context.Context, *person) {
	return func(ctx context.Context, p *person) {
		p.inputs(ctx, control.AddToolCallsToContext{CallIDs: []string{call}})
	}
}

// awaits waits for the n-th event.
func awaits(n uint64) func(context.Context, *person) {
	return func(ctx context.Context, p *person) { p.await(ctx, func(v view) bool { return v.n >= n }) }
}

// inFlight waits until the model is being asked: a delivery takes less than its
// jitter, and the model answers later than that.
func inFlight(ctx context.Context, _ *person) { sleep(ctx, 10*jitter) }

// closing waits for the end of the turn and ends the conversation.
var closing = when(events.WaitingForUser, closes)

const (
	rowStart    = "Start"
	rowEnd      = "LlmFinalAnswer, MaxSteps, FatalError, BudgetExceeded, Cancelled, Closed"
	rowAgain    = "LlmThought, AnswerTooShort, ToolBlacklisted, ReplyInvalid"
	rowOne      = "ToolSuccess, ToolFailure (one call)"
	rowBatch    = "ToolSuccess, ToolFailure (batch)"
	rowObserved = "Continue, NeedsReflection, NeedsPaging"
	rowTooLong  = "NeedsReflection out of Planning"
	rowDone     = "ReflectDone, PageDone"
	rowApproved = "HumanApproved, HumanModified, HumanApprovedParallel"
	rowRefused  = "HumanRejected"
	rowOwn      = "ContextWindowExpanded, ToolCallsAddedToContext (the model's own)"
	rowMemory   = "BudgetRaised, CustomMemorySet, ContextWindowExpanded, ToolCallsAddedToContext"
)

// livenessCases are all of them.
var livenessCases = slices.Concat(usualCases, followedCases, ledCases, contextCases, memoryCases, abandonedCases, unknownCases, timedCases, forkedCases, subrunCases, clientCases)

var usualCases = []*livenessCase{
	{row: rowStart, event: events.TypeStart, from: events.Idle, asked: true, then: itself, points: timedPoints},

	{row: "LlmToolCall", event: events.TypeLLMToolCall, from: events.Planning, script: script(calls("look")), then: itself},
	{row: "LlmParallelToolCalls, one pool", name: "one pool", event: events.TypeLLMParallelToolCalls, from: events.Planning,
		script: script(calls("look", "mail")), then: itself},
	{row: "LlmParallelToolCalls, several pools", name: "several pools", event: events.TypeLLMParallelToolCalls, from: events.Planning,
		script: script(calls("look", "sum")), then: held},
	{row: "ToolCallDispatched", name: "first", event: events.TypeToolCallDispatched, from: events.ParallelActing,
		script: script(calls("look", "sum")), then: "Start, ToolCallDispatched"},
	{row: "ToolCallDispatched", name: "last", event: events.TypeToolCallDispatched, from: events.ParallelActing, nth: 2,
		script: script(calls("look", "sum")), then: "ToolCallDispatched"},

	{row: rowEnd, event: events.TypeLLMFinalAnswer, from: events.Planning, then: nobody},
	{row: rowEnd, event: events.TypeMaxSteps, from: events.Planning, script: script(calls("look")), then: nobody,
		agent: func(a *events.Agent) { a.Config.MaxSteps = 1 }},
	{row: rowEnd, event: events.TypeFatalError, from: events.Planning, script: script(failing("auth")), then: nobody},
	{row: rowEnd, event: events.TypeBudgetExceeded, from: events.Planning, then: nobody,
		agent: func(a *events.Agent) { a.Budget = &events.Budget{MaxTotalTokens: 1} }},
	{row: rowEnd, event: events.TypeCancelled, from: events.Acting, script: script(calls("slow")), asked: true, then: nobody,
		people: when(events.Acting, act(actCancel))},
	{row: rowEnd, name: "while people decide", event: events.TypeCancelled, from: events.WaitingForHuman, script: script(calls("look")),
		agent: approveAlways, asked: true, then: nobody, people: when(events.WaitingForHuman, act(actCancel))},
	{row: rowEnd, event: events.TypeClosed, from: events.WaitingForUser, agent: chat, asked: true, then: nobody, people: closing},

	{row: "LlmMessageComplete", event: events.TypeLLMMessageComplete, from: events.Planning, agent: chat, then: people, people: closing},
	{row: rowAgain, event: events.TypeLLMThought, from: events.Planning, then: itself, agent: thinks},
	{row: rowAgain, event: events.TypeAnswerTooShort, from: events.Planning, script: script(scriptEntry{"text": "no"}), then: itself,
		agent: func(a *events.Agent) { a.Config.MinAnswerLength = 5 }},
	{row: rowAgain, event: events.TypeToolBlacklisted, from: events.Planning, script: script(calls("forbidden")), then: itself},
	{row: rowAgain, event: events.TypeReplyInvalid, from: events.Planning, script: script(calls("unheard_of")), then: itself},
	{row: "LowConfidence", event: events.TypeLowConfidence, from: events.Planning, then: itself,
		script: script(scriptEntry{"calls": calls("look")["calls"], "confidence": 0.1})},
	{row: rowTooLong, event: events.TypeNeedsReflection, from: events.Planning,
		script: script(calls("look"), failing("context_too_long"), calls("look")), then: itself},
	{row: "LlmAttemptFailed", name: "that narrows the window", event: events.TypeLLMAttemptFailed, from: events.Planning, agent: chat,
		script: script(scriptEntry{"text": "first"}, failing("context_too_long")), then: held,
		people: then(when(events.WaitingForUser, says), awaits(5), closing)},
	{row: "HumanApprovalRequired", event: events.TypeHumanApprovalRequired, from: events.Planning, script: script(calls("look")),
		agent: approveAlways, then: people, people: decides(approved)},
	{row: "LlmAttemptFailed", event: events.TypeLLMAttemptFailed, from: events.Planning, script: script(failing("overloaded")), then: held},

	{row: "ToolCallStarted", event: events.TypeToolCallStarted, from: events.Acting, script: script(calls("pay")), then: held},
	{row: "ToolCallStarted", name: "in a batch", event: events.TypeToolCallStarted, from: events.ParallelActing,
		script: script(calls("pay", "fetch")), then: held},
	{row: rowOne, event: events.TypeToolSuccess, from: events.Acting, script: script(calls("look")), then: itself},
	{row: rowOne, event: events.TypeToolFailure, from: events.Acting, script: script(calls("broken")), then: itself},
	{row: "ToolCallResult, not the last", name: "not the last", event: events.TypeToolCallResult, from: events.ParallelActing,
		script: script(calls("look", "sum")), then: "ToolCallDispatched"},
	{row: "ToolCallResult, not the last", name: "not the last, one pool", event: events.TypeToolCallResult, from: events.ParallelActing,
		script: script(calls("fetch", "slow")), then: held},
	{row: "ToolCallResult, the last", name: "the last", event: events.TypeToolCallResult, from: events.ParallelActing, nth: 2,
		script: script(calls("look", "sum")), then: itself},
	{row: rowBatch, name: "of a batch", event: events.TypeToolSuccess, from: events.ParallelActing, script: script(calls("look", "sum")), then: itself},
	{row: rowBatch, name: "of a batch", event: events.TypeToolFailure, from: events.ParallelActing, script: script(calls("broken", "broken")), then: itself},

	{row: rowObserved, event: events.TypeContinue, from: events.Observing, script: script(calls("look")), then: itself},
	{row: rowObserved, event: events.TypeNeedsReflection, from: events.Observing, script: script(calls("look")), agent: reflecting, then: itself},
	{row: rowDone, event: events.TypeReflectDone, from: events.Reflecting, script: script(calls("look")), agent: reflecting, then: itself},

	{row: "UserMessage in Planning", name: "in Planning", event: events.TypeUserMessage, from: events.Planning, asked: true, then: itself, people: then(inFlight, says)},
	{row: "UserMessage in WaitingForUser", name: "in WaitingForUser", event: events.TypeUserMessage, from: events.WaitingForUser, agent: chat,
		asked: true, then: itself, people: then(when(events.WaitingForUser, says), awaits(4), closing)},
	{row: "UserMessage in another state", name: "in another state", event: events.TypeUserMessage, from: events.Acting, script: script(calls("slow")),
		asked: true, then: "LlmToolCall", people: when(events.Acting, says)},

	{row: "HumanDecision, not the last", name: "not the last", event: events.TypeHumanDecision, from: events.WaitingForHuman,
		script: script(calls("look", "sum")), agent: approveAlways, asked: true, then: people, people: decides(approved, rejected)},
	{row: "HumanDecision, the last", name: "the last", event: events.TypeHumanDecision, from: events.WaitingForHuman, nth: 2,
		script: script(calls("look", "sum")), agent: approveAlways, asked: true, then: itself, people: decides(approved, rejected)},
	{row: rowApproved, event: events.TypeHumanApproved, from: events.WaitingForHuman, script: script(calls("pay")), agent: approveAlways,
		asked: true, then: itself, people: decides(approved)},
	{row: rowApproved, event: events.TypeHumanModified, from: events.WaitingForHuman, script: script(calls("pay")), agent: approveAlways,
		asked: true, then: itself, people: decides(modified)},
	{row: rowApproved, name: "one pool", event: events.TypeHumanApprovedParallel, from: events.WaitingForHuman, script: script(calls("look", "mail")),
		agent: approveAlways, then: itself, people: decides(approved, modified)},
	{row: rowApproved, name: "several pools", event: events.TypeHumanApprovedParallel, from: events.WaitingForHuman, script: script(calls("look", "sum")),
		agent: approveAlways, then: itself, people: decides(approved, modified)},
	{row: rowRefused, event: events.TypeHumanRejected, from: events.WaitingForHuman, script: script(calls("pay")), agent: approveAlways,
		asked: true, then: itself, people: decides(rejected)},
	{row: rowRefused, name: "of a batch", event: events.TypeHumanRejected, from: events.WaitingForHuman, script: script(calls("look", "sum")),
		agent: approveAlways, then: itself, people: decides(rejected, rejected)},

	{row: "Paused", event: events.TypePaused, from: events.Planning, asked: true, then: "Start",
		people: then(inFlight, act(actPause))},
	{row: "Paused", name: "while nothing is in flight", event: events.TypePaused, from: events.WaitingForUser, agent: chat, asked: true, then: people,
		people: when(events.WaitingForUser, then(act(actPause), act(actResume), closes))},
	{row: "Admitted", event: events.TypeAdmitted, from: events.Planning, then: itself, change: func(s *scenario) { s.Queues = true }, points: []string{simtest.BeforeAppend, simtest.AfterAppend}},
	{row: "Resumed", event: events.TypeResumed, from: events.Planning, script: script(calls("slow")), asked: true, then: itself,
		people: then(when(events.Acting, act(actPause)), when(events.Planning, act(actResume)))},
	{row: "Resumed", name: "in Acting", event: events.TypeResumed, from: events.Acting, agent: approveAlways, script: script(calls("look")),
		asked: true, then: itself,
		people: when(events.WaitingForHuman, then(act(actPause), decides(approved), func(ctx context.Context, _ *person) { sleep(ctx, time.Minute) }, act(actResume)))},

	{row: rowMemory, event: events.TypeBudgetRaised, from: events.WaitingForUser, agent: chat, asked: true, then: people,
		people: when(events.WaitingForUser, then(act(actBudget), closes))},
	{row: rowMemory, event: events.TypeCustomMemorySet, from: events.WaitingForUser, agent: chat, asked: true, then: people,
		people: when(events.WaitingForUser, then(act(actKeep), closes))},
	{row: rowMemory, event: events.TypeContextWindowExpanded, from: events.Planning, asked: true, then: itself, people: then(inFlight, act(actExpand))},
	{row: rowMemory, event: events.TypeToolCallsAddedToContext, from: events.Planning, script: script(calls("look")), asked: true, then: itself,
		people: then(awaits(4), adds("call_1_1"))},

	{row: "a poisoned record", name: "for a poisoned record", event: events.TypeFatalError, from: events.Planning, then: nobody,
		people: then(inFlight, act(actPoison))},
	{row: "a poisoned record", name: "for a poisoned record in Acting", event: events.TypeFatalError, from: events.Acting, script: script(calls("slow")), then: nobody,
		people: when(events.Acting, then(inFlight, act(actPoison)))},
}

func reflecting(a *events.Agent) { a.Config.ReflectEveryNSteps = 1 }
