package console

import (
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// Summary says what an event's data is about, on one line of about 100
// characters, and nothing where the type says it all.
func Summary(p events.Payload) string { return Cut(summary(p), dataWidth) }

func summary(p events.Payload) string {
	switch p := p.(type) {
	case *events.Start:
		return p.Agent.Name + ": " + p.Task
	case *events.Forked:
		return fmt.Sprintf("from event %d of %s", p.At, p.Run)
	case *events.UserMessage:
		return p.Content
	case *events.LLMToolCall:
		return calls(p.ToolCallReply)
	case *events.LLMParallelToolCalls:
		return calls(p.ToolCallReply)
	case *events.LLMFinalAnswer:
		return p.Content
	case *events.LLMMessageComplete:
		return p.Content
	case *events.LLMThought:
		return thought(p)
	case *events.LowConfidence:
		return fmt.Sprintf("confidence %.2f", p.Confidence)
	case *events.AnswerTooShort:
		return p.Content
	case *events.ToolBlacklisted:
		return answers(p.RefusedReply)
	case *events.ReplyInvalid:
		return answers(p.RefusedReply)
	case *events.ReflectDone:
		return p.Summary + p.Failed
	}
	return outcomeSummary(p)
}

// outcomeSummary goes on with what tools and failures come to.
func outcomeSummary(p events.Payload) string {
	switch p := p.(type) {
	case *events.ToolSuccess:
		return outcome(p.Outcome)
	case *events.ToolFailure:
		return outcome(p.Outcome)
	case *events.ToolCallResult:
		return p.CallID + ": " + outcome(&p.ToolOutcome)
	case *events.ToolCallStarted:
		return p.CallID
	case *events.ToolCallDispatched:
		return p.CallID
	case *events.LLMAttemptFailed:
		return p.Kind + ": " + p.Message
	case *events.FatalError:
		return reasonOf(p.Outcome) + poison(p.Poison)
	case *events.MaxSteps:
		return reasonOf(p.Outcome)
	case *events.BudgetExceeded:
		return reasonOf(p.Outcome)
	}
	return outsideSummary(p)
}

// outsideSummary goes on with what people and memory do.
func outsideSummary(p events.Payload) string {
	switch p := p.(type) {
	case *events.CancelledRun:
		return by(p.By)
	case *events.Closed:
		return by(p.By)
	case *events.Paused:
		return by(p.By)
	case *events.Resumed:
		return by(p.By)
	case *events.HandedOff:
		return "to " + p.Agent.Name
	case *events.BudgetRaised:
		return by(p.By)
	case *events.HumanApprovalRequired:
		return requests(p.Requests)
	case *events.HumanDecision:
		return decision(p.Decision)
	case *events.HumanApproved:
		return decision(p.Decision)
	case *events.HumanModified:
		return decision(p.Decision)
	case *events.HumanRejected:
		return decision(p.Decision)
	case *events.PageDone:
		return fmt.Sprintf("%d entries to storage, %d dropped", len(p.Paged), len(p.Dropped))
	case *events.ContextWindowExpanded:
		return ownCalls(p.ContextReply, fmt.Sprintf("by %d messages", p.Increment))
	case *events.ToolCallsAddedToContext:
		return ownCalls(p.ContextReply, strings.Join(p.CallIDs, ", "))
	case *events.WorkingMemoryAdded:
		return entry(p.Entry)
	case *events.WorkingMemoryRemoved:
		return strings.Join(p.Tags, ", ")
	case *events.StorageSaved:
		return entry(p.Entry)
	case *events.StorageLoaded:
		return fmt.Sprintf("%s: %d entries", strings.Join(p.Tags, ", "), len(p.Entries))
	case *events.Custom:
		return string(p.Data)
	}
	return "" // Continue and its like have no data
}

// ownCalls is an edit of the context with the model's calls that asked for it.
func ownCalls(r *events.ContextReply, edit string) string {
	if r == nil {
		return edit
	}
	return calls(events.ToolCallReply{Calls: r.Calls})
}

func calls(r events.ToolCallReply) string {
	parts := make([]string, 0, len(r.Calls)+len(r.Refused))
	for _, c := range r.Calls {
		parts = append(parts, c.Name+"("+Cut(c.Arguments, dataWidth)+")")
	}
	for _, c := range r.Refused {
		parts = append(parts, c.Name+" refused: "+c.Code)
	}
	return strings.Join(parts, ", ")
}

func answers(r events.RefusedReply) string {
	parts := make([]string, len(r.Results))
	for i, a := range r.Results {
		parts[i] = a.Code + ": " + Cut(a.Observation, dataWidth)
	}
	return strings.Join(parts, ", ")
}

func outcome(o *events.ToolOutcome) string {
	switch {
	case o == nil:
		return ""
	case o.Success || o.Code == "":
		return o.Observation
	}
	return o.Code + ": " + o.Observation
}

func reasonOf(o events.Outcome) string { return o.Code + ": " + o.Message }

func poison(p events.Poison) string {
	if p.N == 0 {
		return ""
	}
	return fmt.Sprintf(" (event %d: %s)", p.N, p.Reason)
}

func by(b events.By) string {
	switch {
	case b.By == "":
		return b.Reason
	case b.Reason == "":
		return "by " + b.By
	}
	return b.Reason + " (by " + b.By + ")"
}

func requests(list []events.Request) string {
	parts := make([]string, len(list))
	for i, r := range list {
		parts[i] = r.Tool + "(" + Cut(r.Arguments, dataWidth) + ")"
	}
	return strings.Join(parts, ", ")
}

func decision(d events.Decision) string {
	if d.Decision == "" {
		return ""
	}
	what := d.Decision
	if d.Arguments != "" {
		what += " to " + Cut(d.Arguments, dataWidth)
	}
	return strings.TrimSpace(d.CallID + " " + what + " " + by(events.By{Reason: d.Reason, By: d.By}))
}

func entry(e events.Entry) string { return strings.Join(e.Tags, ", ") + ": " + e.Value }
