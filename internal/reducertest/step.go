package reducertest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/pkg/events"
)

// step draws what the worker of the run's state may append.
func (g gen) step() events.Payload {
	switch g.mem.State {
	case events.Planning:
		return g.planning()
	case events.Acting:
		return g.acting()
	case events.ParallelActing:
		return g.parallel()
	case events.WaitingForHuman:
		return g.human()
	case events.WaitingForUser:
		if g.chance(5) {
			return &events.Closed{By: g.by()}
		}
		return &events.UserMessage{MessageID: g.messageID(), Content: g.text()}
	case events.Observing:
		return rapid.SampledFrom([]events.Payload{
			&events.Continue{}, &events.Continue{}, &events.NeedsReflection{}, &events.NeedsPaging{},
		}).Draw(g.T, "observing")
	case events.Reflecting:
		return g.reflecting()
	}
	done := &events.PageDone{Paged: []events.Entry{g.entry()}}
	if wm := g.mem.WorkingMemory; len(wm) > 0 {
		done.Dropped = []events.Entry{{Tags: wm[0].Tags, Value: wm[0].Value}}
	}
	return done
}

func (g gen) reflecting() events.Payload {
	done := &events.ReflectDone{Summary: g.text()}
	if g.chance(2) {
		u := g.usage()
		done.Usage = &u
	}
	return done
}

func (g gen) planning() events.Payload {
	if queued := g.mem.Control.Queued; len(queued) > 0 {
		reply := events.ToolCallReply{Calls: queued[:1], Confidence: 0.5}
		if g.chance(3) {
			return g.approval(reply)
		}
		return &events.LLMToolCall{ToolCallReply: reply}
	}
	reply := events.Reply{Content: g.text(), Model: "m", Usage: g.usage()}
	if g.chance(8) {
		return g.contextEdit()
	}
	switch rapid.IntRange(0, 25).Draw(g.T, "planning") {
	case 25:
		if g.mem.Control.Compacted == "" && g.run.Machine.Table().Writes(g.mem, events.TypeNeedsReflection) {
			return &events.NeedsReflection{}
		}
		return &events.LLMThought{Reply: reply}
	case 0:
		if g.mem.Mode == events.ModeTask {
			return &events.LLMFinalAnswer{MessageID: g.run.NewID(), Reply: reply}
		}
		return &events.LLMMessageComplete{MessageID: g.run.NewID(), Reply: reply}
	case 1:
		if g.mem.Mode == events.ModeChat {
			return &events.LLMMessageComplete{Reply: reply}
		}
		return &events.LLMThought{Reply: reply}
	case 2:
		return &events.LLMThought{Reply: reply}
	case 3:
		return &events.LowConfidence{Confidence: 0.1, Usage: g.usage()}
	case 4:
		return &events.AnswerTooShort{Content: g.text(), Usage: g.usage()}
	case 5:
		return &events.ToolBlacklisted{RefusedReply: g.refusedReply()}
	case 6:
		return &events.ReplyInvalid{RefusedReply: g.refusedReply()}
	case 7, 8, 9:
		return g.approval(g.reply(1, 1))
	case 10, 11, 12:
		return g.approval(g.reply(2, 3))
	case 13, 14, 15, 16:
		r := g.reply(1, 1)
		if !g.mem.Config.ParallelTools {
			calls := g.calls(1, 4)
			r.Calls, r.Queued, r.Refused = calls[:1], calls[1:], nil
		}
		return &events.LLMToolCall{ToolCallReply: r}
	case 17:
		return &events.MaxSteps{Outcome: events.Outcome{Code: "max_steps", Message: "max steps 5 exceeded"}}
	}
	return &events.LLMParallelToolCalls{ToolCallReply: g.reply(2, 4)}
}

func (g gen) refusedReply() events.RefusedReply {
	r := events.RefusedReply{Content: g.text(), Calls: g.calls(0, 2), Usage: g.usage()}
	for _, call := range r.Calls {
		r.Results = append(r.Results, events.Answer{ID: call.ID, Observation: "ERROR: refused", Code: "blacklisted"})
	}
	if len(r.Calls) == 0 {
		r.Results = []events.Answer{{Observation: "ERROR: what?", Code: "empty_reply"}}
	}
	return r
}

func (g gen) approval(r events.ToolCallReply) events.Payload {
	p := &events.HumanApprovalRequired{ToolCallReply: r}
	for i, call := range r.Calls {
		if i == 0 || g.chance(2) {
			p.Requests = append(p.Requests, events.Request{CallID: call.ID, Tool: call.Name, Arguments: call.Arguments, Risk: "high"})
		}
	}
	return p
}

func (g gen) outcome(id string) events.ToolOutcome {
	if g.chance(3) {
		return events.ToolOutcome{CallID: id, Observation: "ERROR: " + g.text(), Code: "failed", LatencyMS: 3}
	}
	o := events.ToolOutcome{CallID: id, Success: true, Observation: "SUCCESS: " + g.text(), Code: "ok"}
	if g.chance(3) {
		o.Ref = &events.Ref{Bucket: "b", Key: "k", Size: 9, SHA256: "s"}
	}
	return o
}

func (g gen) acting() events.Payload {
	call := g.mem.CurrentToolCall
	switch {
	case g.chance(4):
		return &events.ToolCallStarted{CallID: call.ID}
	case g.mem.Call(call.ID).Started > 0 && g.chance(3):
		return &events.HumanApprovalRequired{Requests: []events.Request{{CallID: call.ID, Tool: call.Name, Reason: "outcome unknown"}}}
	}
	o := g.outcome(call.ID)
	if o.Success {
		return &events.ToolSuccess{Outcome: &o}
	}
	return &events.ToolFailure{Outcome: &o}
}

func (g gen) parallel() events.Payload {
	id, open := g.open()
	succeeded := false
	for _, result := range g.mem.ParallelResults {
		succeeded = succeeded || result.Success
	}
	switch {
	case !open && succeeded:
		return &events.ToolSuccess{}
	case !open:
		return &events.ToolFailure{}
	}
	if g.chance(4) {
		return &events.ToolCallStarted{CallID: id}
	}
	return &events.ToolCallResult{ToolOutcome: g.outcome(id)}
}

func (g gen) human() events.Payload {
	if g.chance(6) {
		return &events.ApprovalExpired{}
	}
	a, batch := g.mem.PendingApproval, g.mem.Control.Batch
	if !batch {
		d := g.decision(a.Requests[0].CallID)
		switch d.Decision {
		case events.DecisionApproved:
			return &events.HumanApproved{Decision: d}
		case events.DecisionModified:
			return &events.HumanModified{Decision: d}
		}
		return &events.HumanRejected{Decision: d}
	}
	rejected := 0
	for _, r := range a.Requests {
		at := slices.IndexFunc(a.Decisions, func(d events.Decision) bool { return d.CallID == r.CallID })
		if at < 0 {
			return &events.HumanDecision{Decision: g.decision(r.CallID)}
		}
		if a.Decisions[at].Decision == events.DecisionRejected {
			rejected++
		}
	}
	if rejected == len(g.mem.Control.Calls) {
		return &events.HumanRejected{}
	}
	return &events.HumanApprovedParallel{}
}

func (g gen) decision(id string) events.Decision {
	d := events.Decision{CallID: id, By: "ann", Reason: g.text()}
	d.Decision = rapid.SampledFrom([]string{events.DecisionApproved, events.DecisionRejected, events.DecisionModified}).Draw(g.T, "decision")
	if d.Decision == events.DecisionModified {
		d.Arguments = `{"changed":true}`
	}
	return d
}

// contextEdit draws a reply by which the model edits its own context, or a part of
// one.
func (g gen) contextEdit() events.Payload {
	calls := g.calls(1, 2)
	reply := &events.ContextReply{Calls: calls, Confidence: 1, Model: "m", Part: g.chance(3)}
	if !reply.Part {
		reply.Content, reply.Usage = g.text(), g.usage()
	}
	for i := range calls {
		calls[i].Name = rapid.SampledFrom([]string{"moorebus_load_messages", "moorebus_load_tool_result"}).Draw(g.T, "edit")
		reply.Results = append(reply.Results, events.Answer{ID: calls[i].ID, Observation: "shown", Code: "ok"})
	}
	if g.chance(2) {
		return &events.ContextWindowExpanded{Increment: rapid.IntRange(0, 3).Draw(g.T, "increment"), ContextReply: reply}
	}
	known := slices.DeleteFunc(slices.Clone(g.mem.Control.CallOrder), func(id string) bool { return g.mem.ToolCalls[id] == nil || g.chance(2) })
	return &events.ToolCallsAddedToContext{CallIDs: known, ContextReply: reply}
}
