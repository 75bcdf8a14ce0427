package runlog

import (
	"context"
	"log/slog"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// appended reports an event that this process appended to [Options.Appended] and to the log of the
// process.
func (r *Run) appended(e *events.Event) {
	r.store.appended(r.mem, e)
	if !r.store.logger.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	level, message, more := decision(r.mem, e)
	if ends := e.From != e.To && r.store.machine.Table().Terminal(e.To); ends && message == "" {
		message = "a run ended"
	}
	if message == "" {
		return
	}
	fields := []any{"run", r.ID.ID, "namespace", r.ID.Namespace, "n", e.N, "type", e.Type(), "state", e.To}
	r.store.logger.Log(context.Background(), level, message, append(fields, more...)...)
}

// decision says what an operator would look for. An empty message says that the event is work
// as usual, unless it ends the run.
func decision(mem *reducer.Memory, e *events.Event) (level slog.Level, message string, more []any) {
	switch p := e.Data.(type) {
	case *events.Start:
		more = []any{"agent", p.Agent.Name, "queued", p.Queued}
		if p.Parent != nil {
			more = append(more, "parent", p.Parent.Run, "call", p.Parent.CallID)
		}
		return level, "a run started", more
	case *events.Forked:
		return level, "a run was forked", []any{"parent", p.Run, "parent_n", p.At}
	case *events.HandedOff:
		return level, "a run was handed off", []any{"agent", p.Agent.Name, "call", p.CallID}
	case *events.Admitted:
		return level, "a queued run was admitted", nil
	case *events.HumanApprovalRequired:
		return level, "calls wait for a decision", []any{"calls", len(p.Requests), "deadline", p.Deadline}
	case *events.HumanDecision:
		return decided(mem, p.Decision)
	case *events.HumanApproved:
		return decided(mem, p.Decision)
	case *events.HumanModified:
		return decided(mem, p.Decision)
	case *events.HumanRejected:
		return decided(mem, p.Decision)
	case *events.ApprovalExpired:
		return level, "nobody decided in time, so the calls are refused", nil
	case *events.Paused:
		return level, "a run was paused", by(p.By)
	case *events.Resumed:
		if p.Redrive {
			return slog.LevelWarn, "a stalled run's work is delivered again", nil
		}
		return level, "a run was resumed", by(p.By)
	case *events.BudgetRaised:
		return level, "a run got another budget", by(p.By)
	case *events.CancelledRun:
		return level, "a run was cancelled", by(p.By)
	case *events.Closed:
		return level, "a conversation was closed", by(p.By)
	case *events.MaxSteps:
		return level, "", []any{"code", p.Code, "reason", p.Message}
	case *events.BudgetExceeded:
		return level, "", []any{"code", p.Code, "reason", p.Message}
	case *events.FatalError:
		if p.Poison != (events.Poison{}) || p.Code == codes.Stalled {
			level = slog.LevelError
		}
		return level, "", []any{"code", p.Code, "reason", p.Message}
	}
	return level, "", nil
}

// decided is [decision] for what a human said about one call; in a batch that is refused
// entirely, each call had its own.
func decided(mem *reducer.Memory, d events.Decision) (slog.Level, string, []any) {
	if d.CallID == "" {
		return slog.LevelInfo, "", nil
	}
	tool := ""
	if call := mem.Call(d.CallID); call != nil {
		tool = call.Name
	}
	return slog.LevelInfo, "a call was decided", append([]any{"call", d.CallID, "tool", tool, "decision", d.Decision}, by(events.By{Reason: d.Reason, By: d.By})...)
}

func by(b events.By) []any { return []any{"by", b.By, "reason", b.Reason} }
