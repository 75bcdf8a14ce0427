package reducer

import (
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// describeReply goes on with the replies that lead on, and with what a run does
// with its own memory.
func describeReply(p events.Payload) string {
	switch p := p.(type) {
	case *events.LLMThought:
		return cut(strings.TrimSpace(p.Content+" "+p.Note), traceTextLimit)
	case *events.LowConfidence:
		return fmt.Sprintf("confidence %.2f", p.Confidence)
	case *events.AnswerTooShort:
		return cut(p.Content, traceTextLimit)
	case *events.ToolBlacklisted:
		return describeAnswers(p.Results)
	case *events.ReplyInvalid:
		return describeAnswers(p.Results)
	case *events.ContextWindowExpanded:
		return fmt.Sprintf("by %d messages", p.Increment)
	case *events.ToolCallsAddedToContext:
		return cut(strings.Join(p.CallIDs, ", "), traceTextLimit)
	case *events.WorkingMemoryAdded:
		return describeEntry(p.Entry)
	case *events.WorkingMemoryRemoved:
		return cut(strings.Join(p.Tags, ", "), traceTextLimit)
	case *events.StorageSaved:
		return describeEntry(p.Entry)
	case *events.StorageLoaded:
		return cut(fmt.Sprintf("%s: %d entries", strings.Join(p.Tags, ", "), len(p.Entries)), traceTextLimit)
	case *events.ReflectDone:
		return cut(p.Summary+p.Failed, traceTextLimit)
	case *events.PageDone:
		return fmt.Sprintf("%d entries to storage, %d dropped", len(p.Paged), len(p.Dropped))
	case *events.HandedOff:
		return cut("to "+p.Agent.Name+" "+p.Reason, traceTextLimit)
	}
	return describeOutside(p)
}

// describeOutside goes on with what people and workers do, and with what has no
// data.
func describeOutside(p events.Payload) string {
	switch p := p.(type) {
	case *events.ToolCallDispatched:
		return p.CallID
	case *events.ToolCallStarted:
		return p.CallID
	case *events.Closed:
		return describeBy(p.By)
	case *events.Paused:
		return describeBy(p.By)
	case *events.Resumed:
		return describeBy(p.By)
	case *events.BudgetRaised:
		return describeBy(p.By)
	case *events.HumanDecision:
		return describeDecision(p.Decision)
	case *events.HumanApproved:
		return describeDecision(p.Decision)
	case *events.HumanModified:
		return describeDecision(p.Decision)
	case *events.HumanRejected:
		return describeDecision(p.Decision)
	case *events.HumanApprovedParallel:
		return "every call of the batch is decided on"
	case *events.ApprovalExpired:
		return "nobody decided in time"
	case *events.Continue:
		return "the next step"
	case *events.NeedsReflection:
		return "a reflection is due"
	case *events.NeedsPaging:
		return "working memory is too large"
	}
	return ""
}

func describeBy(b events.By) string {
	text := b.Reason
	if b.By != "" {
		text = strings.TrimSpace(text + " (by " + b.By + ")")
	}
	if text == "" {
		text = "no reason given"
	}
	return cut(text, traceTextLimit)
}

func describeDecision(d events.Decision) string {
	text := strings.TrimSpace(d.CallID + " " + d.Decision + " " + d.Arguments)
	if d.Reason != "" || d.By != "" {
		text = strings.TrimSpace(text + " " + describeBy(events.By{Reason: d.Reason, By: d.By}))
	}
	if text == "" {
		text = "decided"
	}
	return cut(text, traceTextLimit)
}

func describeAnswers(results []events.Answer) string {
	parts := make([]string, len(results))
	for i, a := range results {
		parts[i] = a.Code + ": " + a.Observation
	}
	return cut(strings.Join(parts, ", "), traceTextLimit)
}

func describeEntry(e events.Entry) string {
	return cut(strings.Join(e.Tags, ", ")+": "+e.Value, traceTextLimit)
}
