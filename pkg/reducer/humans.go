package reducer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

var humansRules = []rule{
	{
		typ:   events.TypeHumanApprovalRequired,
		moves: []move{{events.Planning, events.WaitingForHuman}, {events.Acting, events.WaitingForHuman}},
		from:  own, check: checkApproval, legality: 1, fold: foldApprovalRequired,
		steps: func(mem *Memory, p events.Payload) int {
			if mem.State != events.Planning || mem.isQueuedPass(p.(*events.HumanApprovalRequired).Calls) {
				return 0
			}
			return 1
		},
		trace: traced(func(p *events.HumanApprovalRequired) string { return traceCalls(p.Calls) }),
	},
	{
		typ: events.TypeHumanDecision, stays: true, from: own,
		ways: func(_ *Table, state events.State) []Edge {
			if state != events.WaitingForHuman {
				return nil
			}
			return []Edge{plain(state), nobody}
		},
		route: func(mem *Memory, _ events.Payload) (events.State, string) {
			if a := mem.PendingApproval; a != nil && len(a.Decisions)+1 >= len(a.Requests) {
				return events.WaitingForHuman, events.DefaultPool
			}
			return events.Nobody, events.DefaultPool
		},
		check:    checkDecision(true, events.DecisionApproved, events.DecisionModified, events.DecisionRejected),
		legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			a := mem.PendingApproval
			a.Decisions = append(a.Decisions, e.Data.(*events.HumanDecision).Decision)
		},
		trace: traceDecision,
	},
	{
		typ: events.TypeHumanApproved, moves: []move{{events.WaitingForHuman, events.Acting}}, from: own,
		ways: only(tools(events.Acting)), route: currentCallRoute,
		check: checkDecision(false, events.DecisionApproved), legality: 1,
		fold: func(mem *Memory, _ *events.Event) { mem.restart() }, trace: traceDecision,
	},
	{
		typ: events.TypeHumanModified, moves: []move{{events.WaitingForHuman, events.Acting}}, from: own,
		ways: only(tools(events.Acting)), route: currentCallRoute,
		check: checkDecision(false, events.DecisionModified), legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			p := e.Data.(*events.HumanModified)
			mem.restart()
			mem.modify(p.CallID, p.Arguments)
		},
		trace: traceDecision,
	},
	{
		typ: events.TypeHumanApprovedParallel, moves: []move{{events.WaitingForHuman, events.ParallelActing}}, from: own,
		ways:  func(*Table, events.State) []Edge { return redrives(events.ParallelActing) },
		route: func(mem *Memory, _ events.Payload) (events.State, string) { return mem.approvedRoute() },
		check: func(mem *Memory, _ *events.Event) error { return mem.checkDecided(true) }, legality: 1,
		fold: foldApprovedParallel, trace: says("every call of the batch is decided on"),
	},
	{
		typ: events.TypeHumanRejected, moves: []move{{events.WaitingForHuman, events.Observing}}, from: own,
		check: func(mem *Memory, e *events.Event) error {
			if p := e.Data.(*events.HumanRejected); mem.Control.Batch && p.CallID == "" {
				return mem.checkDecided(false)
			}
			return checkDecision(false, events.DecisionRejected)(mem, e)
		},
		legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			p := e.Data.(*events.HumanRejected)
			mem.rejectAll(func(id string) string { return mem.rejection(id, p.Reason) })
		},
		trace: traceDecision,
	},
	{
		typ: events.TypeApprovalExpired, moves: []move{{events.WaitingForHuman, events.Observing}}, from: own,
		check: always, legality: 1,
		fold: func(mem *Memory, _ *events.Event) {
			mem.rejectAll(func(string) string { return rejectedPrefix + "expired" })
		},
		trace: says("nobody decided in time"),
	},
	{
		typ: events.TypeUserMessage, stays: true, from: control, ownIn: []events.State{events.WaitingForUser},
		moves: []move{{events.Planning, events.Planning}, {events.WaitingForUser, events.Planning}},
		check: checkUserMessage, legality: 1, fold: foldUserMessage,
		trace: traced(func(p *events.UserMessage) string { return events.Shown(p.Content, p.Parts) }),
	},
	{
		typ: events.TypeClosed, moves: []move{{events.WaitingForUser, events.Done}}, from: own,
		check: always, legality: 1, fold: foldEnd,
		trace: traced(func(p *events.Closed) string { return traceBy(p.By) }),
	},
}

// checkStarted refuses to ask about the outcome of a call that was not started.
func (mem *Memory) checkStarted(id string) error {
	call, err := mem.openCall(id)
	if err == nil && call.Started == 0 {
		err = fmt.Errorf("asks about call %q, which was not started", id)
	}
	return err
}

func checkApproval(mem *Memory, e *events.Event) error {
	p := e.Data.(*events.HumanApprovalRequired)
	if len(p.Requests) == 0 {
		return errors.New("has no requests")
	}
	if mem.State != events.Planning {
		if len(p.Requests) != 1 {
			return fmt.Errorf("has %d requests, want 1 for the call that was started", len(p.Requests))
		}
		return mem.checkStarted(p.Requests[0].CallID)
	}
	if len(p.Calls) == 0 {
		return errors.New("has no calls")
	}
	for i, r := range p.Requests {
		if slices.ContainsFunc(p.Requests[:i], func(o events.Request) bool { return o.CallID == r.CallID }) {
			return fmt.Errorf("asks for call %q twice", r.CallID)
		}
		if !slices.ContainsFunc(p.Calls, func(c events.Call) bool { return c.ID == r.CallID }) {
			return fmt.Errorf("asks for call %q, which it does not have", r.CallID)
		}
	}
	if mem.isQueuedPass(p.Calls) {
		return nil
	}
	return mem.checkNewCalls(p.Calls, p.Queued, refusedCalls(p.Refused))
}

func foldApprovalRequired(mem *Memory, e *events.Event) {
	p := e.Data.(*events.HumanApprovalRequired)
	switch {
	case e.From != events.Planning: // about a call that was started
	case mem.isQueuedPass(p.Calls):
		mem.nextQueued(p.Calls[0])
	default:
		mem.acceptReply(e, &p.ToolCallReply)
		if len(p.Calls) > 1 {
			mem.setBatch(e, p.Calls)
		} else {
			mem.setCurrent(p.Calls[0])
		}
	}
	mem.PendingApproval = &PendingApproval{Requests: p.Requests, Decisions: []events.Decision{}, Deadline: p.Deadline}
}

// decisionOf is a human's decision about one call; nil for every other event.
func decisionOf(p events.Payload) *events.Decision {
	switch p := p.(type) {
	case *events.HumanDecision:
		return &p.Decision
	case *events.HumanApproved:
		return &p.Decision
	case *events.HumanModified:
		return &p.Decision
	case *events.HumanRejected:
		return &p.Decision
	}
	return nil
}

// checkDecision checks a decision, which has to be one of those allowed: an unknown decision
// must never count as an approval.
func checkDecision(batch bool, allowed ...string) func(*Memory, *events.Event) error {
	return func(mem *Memory, e *events.Event) error {
		a, d := mem.PendingApproval, decisionOf(e.Data)
		switch {
		case mem.State != events.WaitingForHuman || a == nil:
			return errors.New("nothing waits for a decision")
		case batch != mem.Control.Batch:
			return errors.New("a batch is decided call by call, a single call at once")
		case !slices.ContainsFunc(a.Requests, func(r events.Request) bool { return r.CallID == d.CallID }):
			return fmt.Errorf("call %q does not wait for a decision", d.CallID)
		case slices.ContainsFunc(a.Decisions, func(o events.Decision) bool { return o.CallID == d.CallID }):
			return fmt.Errorf("call %q is decided already", d.CallID)
		case !slices.Contains(allowed, d.Decision):
			return fmt.Errorf("decision is %q, want %s", d.Decision, strings.Join(allowed, " or "))
		case d.Decision == events.DecisionModified && d.Arguments == "":
			return errors.New("has no arguments, but modifies them")
		}
		return nil
	}
}

// checkDecided checks that the decisions on a batch are complete and lead here.
func (mem *Memory) checkDecided(accepted bool) error {
	a := mem.PendingApproval
	if a == nil || !mem.Control.Batch || len(a.Decisions) < len(a.Requests) {
		return fmt.Errorf("not every call of the batch is decided")
	}
	if mem.batchAccepted() != accepted {
		return fmt.Errorf("does not match the decisions")
	}
	return nil
}

// batchAccepted reports whether a call of the batch is left to run: one that
// was accepted, or one that needed no decision.
func (mem *Memory) batchAccepted() bool {
	rejected := 0
	for _, d := range mem.PendingApproval.Decisions {
		if d.Decision == events.DecisionRejected {
			rejected++
		}
	}
	return rejected < len(mem.Control.Calls)
}

func currentCallRoute(mem *Memory, _ events.Payload) (events.State, string) {
	return events.Acting, mem.Control.Calls[0].Pool
}

func (mem *Memory) approvedRoute() (events.State, string) {
	if pool, one := mem.singlePool(); one {
		return events.ParallelActing, pool
	}
	return events.Planning, events.DefaultPool
}

// restart lets the current call run (again), as if it had not been started.
func (mem *Memory) restart() {
	mem.PendingApproval = nil
	for i := range mem.Control.Calls {
		mem.Control.Calls[i].Started = 0
	}
}

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

func foldApprovedParallel(mem *Memory, e *events.Event) {
	for _, d := range mem.PendingApproval.Decisions {
		switch d.Decision {
		case events.DecisionModified:
			mem.modify(d.CallID, d.Arguments)
		case events.DecisionRejected:
			mem.reject(d.CallID, rejectedPrefix+d.Reason)
		}
	}
	mem.restart()
	mem.Control.DispatchAfter = e.N
}

// reject answers an open call that a human refused.
func (mem *Memory) reject(id, observation string) {
	o := events.ToolOutcome{CallID: id, Observation: observation, Code: codeRejected}
	e := &events.Event{Data: &events.ToolFailure{Outcome: &o}}
	if mem.Control.Batch {
		e.Data = &events.ToolCallResult{ToolOutcome: o}
	}
	foldOutcome(mem, e)
}

// rejection is the observation of a rejected call: its own decision's reason,
// else the one given.
func (mem *Memory) rejection(id, reason string) string {
	for _, d := range mem.PendingApproval.Decisions {
		if d.CallID == id {
			reason = d.Reason
		}
	}
	return rejectedPrefix + reason
}

// rejectAll answers every call of the reply that has no result.
func (mem *Memory) rejectAll(observation func(id string) string) {
	c := &mem.Control
	for i := range c.Calls {
		if call := &c.Calls[i]; !call.Answered {
			mem.reject(call.ID, observation(call.ID))
		}
	}
	mem.PendingApproval = nil
}

var errNoMessageID = errors.New("has no message_id")

func checkUserMessage(_ *Memory, e *events.Event) error {
	if e.Data.(*events.UserMessage).MessageID == "" {
		return errNoMessageID
	}
	return nil
}

func foldUserMessage(mem *Memory, e *events.Event) {
	p := e.Data.(*events.UserMessage)
	if e.From == events.WaitingForUser || mem.ReactContext == nil {
		mem.openContext(e)
		defer mem.applyNextTurn() // the message is one of those that the window may show
	}
	if mem.Knows(p.MessageID) {
		return
	}
	if e.From == events.WaitingForUser {
		mem.Control.Opened = len(mem.Messages)
	}
	mem.addUser(e, p.MessageID, p.Content, p.Parts)
	if e.From == events.Planning {
		mem.Control.Compacted = "" // the request is another one
	}
	if mem.Mode == events.ModeChat {
		mem.Control.SinceUser = Counts{}
		mem.RetryCount = 0
		mem.FinalAnswer, mem.Control.Incomplete = nil, false
	}
}

// addUser adds what the user said to the conversation.
func (mem *Memory) addUser(e *events.Event, id, content string, parts []events.Part) {
	mem.addMessage(e, id, "user", content)
	mem.Messages[len(mem.Messages)-1].Parts = parts
	mem.addTurn(Turn{Kind: turnUser, Content: content, Parts: parts})
	c := &mem.Control
	c.Stored = c.Stored || len(events.RefsOf(e.Data)) > 0
}

func (mem *Memory) addMessage(e *events.Event, id, role, content string) {
	if id == "" {
		id = e.ID
	}
	mem.Messages = append(mem.Messages, Message{ID: id, Role: role, Content: content, Timestamp: e.Time})
	if mem.messageIDs != nil {
		mem.messageIDs[id] = struct{}{}
	}
}

func (mem *Memory) addTurn(t Turn) {
	c := &mem.Control
	if mem.joinParts(&t) {
		return
	}
	c.Turns = append(c.Turns, t)
	if t.Kind == turnUser {
		c.Asked = len(c.Turns) - 1
	}
}

// Knows reports whether a message with this id is in the conversation.
func (mem *Memory) Knows(messageID string) bool {
	if mem.messageIDs == nil {
		mem.messageIDs = make(map[string]struct{}, len(mem.Messages))
		for i := range mem.Messages {
			mem.messageIDs[mem.Messages[i].ID] = struct{}{}
		}
	}
	_, known := mem.messageIDs[messageID]
	return known
}

func traceDecision(p events.Payload) string {
	d := decisionOf(p)
	text := strings.TrimSpace(d.CallID + " " + d.Decision + " " + d.Arguments)
	if d.Reason != "" || d.By != "" {
		text = strings.TrimSpace(text + " " + traceBy(events.By{Reason: d.Reason, By: d.By}))
	}
	if text == "" {
		text = "decided"
	}
	return cut(text, traceTextLimit)
}
