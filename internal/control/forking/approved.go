package forking

import (
	"context"
	"fmt"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// checkApprovals refuses a fork between the approval of a call that must not run twice and the
// call's result: parent and fork would both run it, and a human approved it once.
func (f *Forker) checkApprovals(ctx context.Context, at events.Run, ancestors []events.Run, mem *reducer.Memory) error {
	if pending := mem.PendingApproval; pending != nil {
		for _, r := range pending.Requests {
			for _, d := range pending.Decisions {
				if d.CallID == r.CallID && d.Decision != events.DecisionRejected && !repeatable(mem.Tools[r.Tool].Effect) {
					return approvalOpen(mem, r.CallID)
				}
			}
		}
	}
	open := map[string]bool{}
	for _, c := range mem.Control.Calls {
		if !c.Answered && !repeatable(c.Effect) {
			open[c.ID] = true
		}
	}
	if len(open) == 0 {
		return nil
	}
	for _, run := range append([]events.Run{at}, ancestors...) {
		approved, err := f.approved(ctx, run, mem.N, open)
		if err != nil {
			return err
		}
		if approved != "" {
			return approvalOpen(mem, approved)
		}
	}
	return nil
}

func repeatable(effect string) bool { return tool.Effect(effect).Repeatable() }

func approvalOpen(mem *reducer.Memory, call string) error {
	return runs.Conflict(mem, refusal.CodeApprovalOpen,
		"the call %s, which must not run twice, was approved and has no result at event %d; fork the run before the approval or after the result", call, mem.N)
}

// approved returns the first of the calls that a human approved by event n of the run, empty if
// none was.
func (f *Forker) approved(ctx context.Context, run events.Run, n uint64, calls map[string]bool) (string, error) {
	filter := journal.Filter{Namespace: run.Namespace, From: events.WaitingForHuman, Run: run.ID}
	for rec, err := range f.a.Log.Scan(ctx, run.Shard, filter, 0) {
		if err != nil {
			return "", fmt.Errorf("reading the approvals of run %s: %w", run.ID, err)
		}
		e := f.a.Decode(rec)
		if e == nil || e.N > n {
			continue
		}
		var d events.Decision
		switch p := e.Data.(type) {
		case *events.HumanDecision:
			d = p.Decision
		case *events.HumanApproved:
			d = p.Decision
		case *events.HumanModified:
			d = p.Decision
		}
		if calls[d.CallID] && d.Decision != events.DecisionRejected {
			return d.CallID, nil
		}
	}
	return "", nil
}
