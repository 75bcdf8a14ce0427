package reducer

import (
	"github.com/moorebus/moorebus/pkg/events"
)

func (mem *Memory) foldApprovalRequired(e *events.Event, p *events.HumanApprovalRequired) {
	if e.From == events.Planning {
		mem.foldHeldReply(e, &p.ToolCallReply)
	}
	mem.PendingApproval = &PendingApproval{Requests: p.Requests, Decisions: []events.Decision{}, Deadline: p.Deadline}
}

// foldHeldReply takes a reply whose calls wait for a human.
func (mem *Memory) foldHeldReply(e *events.Event, p *events.ToolCallReply) {
	if mem.isQueuedPass(p.Calls) {
		mem.takeQueued(p.Calls[0])
		return
	}
	mem.acceptReply(e, p)
	if len(p.Calls) > 1 {
		mem.setBatch(e, p.Calls)
	} else {
		mem.setCurrent(p.Calls[0])
	}
}

func (mem *Memory) foldHuman(e *events.Event) {
	switch p := e.Data.(type) {
	case *events.HumanDecision:
		mem.PendingApproval.Decisions = append(mem.PendingApproval.Decisions, p.Decision)
	case *events.HumanApproved:
		mem.restart()
	case *events.HumanModified:
		mem.restart()
		mem.modify(p.CallID, p.Arguments)
	case *events.HumanApprovedParallel:
		mem.approveBatch(e)
	case *events.HumanRejected:
		mem.rejectAll(func(id string) string { return mem.rejection(id, p.Reason) })
	case *events.ApprovalExpired:
		mem.rejectAll(func(string) string { return RejectedPrefix + "expired" })
	}
}

// restart lets the current call run (again), as if it had not been started.
func (mem *Memory) restart() {
	mem.PendingApproval = nil
	for i := range mem.Control.Calls {
		mem.Control.Calls[i].Started = 0
	}
}

// modify replaces a call's arguments by a human's.
func (mem *Memory) modify(id, arguments string) {
	call := mem.Call(id)
	if call == nil {
		return
	}
	call.Arguments = arguments
	if c := mem.CurrentToolCall; c != nil && c.ID == id {
		mem.CurrentToolCall = &ToolCall{ID: id, Name: c.Name, Arguments: arguments}
	}
	for i := range mem.PendingToolCalls {
		if mem.PendingToolCalls[i].ID == id {
			mem.PendingToolCalls[i].Arguments = arguments
		}
	}
	if record := mem.ToolCalls[id]; record != nil {
		record.Parameters = arguments
	}
}

func (mem *Memory) approveBatch(e *events.Event) {
	for _, d := range mem.PendingApproval.Decisions {
		switch d.Decision {
		case events.DecisionModified:
			mem.modify(d.CallID, d.Arguments)
		case events.DecisionRejected:
			mem.answerBatchCall(rejected(d.CallID, RejectedPrefix+d.Reason))
		}
	}
	mem.restart()
	mem.Control.DispatchAfter = e.N
}

func rejected(id, observation string) *events.ToolOutcome {
	return &events.ToolOutcome{CallID: id, Observation: observation, Code: CodeRejected}
}

// rejection is the observation of a rejected call: its own decision's reason,
// else the one given.
func (mem *Memory) rejection(id, reason string) string {
	for _, d := range mem.PendingApproval.Decisions {
		if d.CallID == id {
			reason = d.Reason
		}
	}
	return RejectedPrefix + reason
}

// rejectAll answers every call of the reply that has no result.
func (mem *Memory) rejectAll(observation func(id string) string) {
	c := &mem.Control
	for i := range c.Calls {
		call := &c.Calls[i]
		if call.Answered {
			continue
		}
		o := rejected(call.ID, observation(call.ID))
		if c.Batch {
			mem.answerBatchCall(o)
		} else {
			mem.answerSingleCall(o)
		}
	}
	mem.PendingApproval = nil
}
