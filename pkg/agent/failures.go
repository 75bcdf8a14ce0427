package agent

import (
	"context"
	"log/slog"

	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/pkg/events"
)

// shownFailures is how many failed calls an error names.
const shownFailures = 3

// shownObservation bounds the observation of a failed call, in bytes.
const shownObservation = 1000

// warnings hands on warnings and errors.
type warnings struct{ slog.Handler }

func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}

func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }

// note keeps and logs the calls that the event says have failed. The lock is held.
func (r *Run) note(e *events.Event) {
	failed, succeeded := r.failedCalls(e.Data)
	if succeeded {
		r.failures = nil
	}
	for _, call := range failed {
		call.Observation = contextedit.Clip(shownObservation, call.Observation)
		r.service.logger.Warn("a call failed", "run", r.at.ID, "n", e.N, "tool", call.Tool, "code", call.Code, "reason", call.Observation)
		r.failures = append(r.failures, call)
	}
	if over := len(r.failures) - shownFailures; over > 0 {
		r.failures = append([]FailedCall(nil), r.failures[over:]...)
	}
}

// failedCalls returns the calls that failed or were refused, and whether one succeeded.
func (r *Run) failedCalls(p events.Payload) (failed []FailedCall, succeeded bool) {
	result := func(o *events.ToolOutcome) ([]FailedCall, bool) {
		switch {
		case o == nil || o.CallID == "": // the end of a batch, whose results were separate events
			return nil, false
		case o.Success:
			return nil, true
		}
		name := ""
		if call := r.fold.Memory().ToolCalls[o.CallID]; call != nil {
			name = call.Name
		}
		return []FailedCall{{name, o.Code, o.Observation}}, false
	}
	switch p := p.(type) {
	case *events.ToolSuccess:
		return result(p.Outcome)
	case *events.ToolFailure:
		return result(p.Outcome)
	case *events.ToolCallResult:
		return result(&p.ToolOutcome)
	case *events.LLMToolCall:
		return refusals(p.Refused), false
	case *events.LLMParallelToolCalls:
		return refusals(p.Refused), false
	case *events.ToolBlacklisted:
		return answers(p.RefusedReply), false
	case *events.ReplyInvalid:
		return answers(p.RefusedReply), false
	case *events.LLMFinalAnswer:
		return nil, true
	}
	return nil, false
}

func refusals(refused []events.Refusal) (failed []FailedCall) {
	for _, call := range refused {
		failed = append(failed, FailedCall{call.Name, call.Code, call.Observation})
	}
	return failed
}

func answers(reply events.RefusedReply) (failed []FailedCall) {
	for i, answer := range reply.Results {
		name := ""
		if i < len(reply.Calls) {
			name = reply.Calls[i].Name
		}
		failed = append(failed, FailedCall{name, answer.Code, answer.Observation})
	}
	return failed
}
