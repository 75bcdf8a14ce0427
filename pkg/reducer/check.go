package reducer

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

// check says whether e is a legal next event of the run: its place, its chain,
// the edge, the subject that it came on, and its data.
func (m *Machine) check(mem *Memory, s events.Subject, e *events.Event) error {
	c := &mem.Control
	switch {
	case e.Run != mem.RunID || s.Run.ID != mem.RunID:
		return fmt.Errorf("belongs to run %s (subject: %s), not to %s", e.Run, s.Run.ID, mem.RunID)
	case e.N != mem.N+1:
		return fmt.Errorf("n is %d, the run's next is %d", e.N, mem.N+1)
	case e.Prev != c.Head:
		return fmt.Errorf("prev does not match the hash of event %d", mem.N)
	case mem.N == 0 && e.Cause != "", c.LastID != "" && e.Cause == "":
		// After a first record that cannot be read there may be no cause to name.
		return fmt.Errorf("cause is absent in the first event and only there")
	case e.From != mem.State:
		return fmt.Errorf("from is %s, the run is in %s", e.From, mem.State)
	}
	if p, ok := e.Data.(*events.Forked); ok {
		if err := m.checkFork(mem, p); err != nil {
			return err
		}
	}
	typ := e.Type()
	to, ok := m.next(mem, typ)
	if !ok {
		return &TransitionError{From: mem.State, Event: typ}
	}
	if e.To != to {
		return fmt.Errorf("to is %s, the table leads from %s by %s to %s", e.To, mem.State, typ, to)
	}
	if c.Poison != nil && typ != events.TypeFatalError && typ != events.TypeCancelled {
		return fmt.Errorf("the run is poisoned at event %d: only FatalError or Cancelled may follow", c.Poison.N)
	}
	if err := m.checkOrigin(mem, s.From, e.Data); err != nil {
		return err
	}
	return mem.checkData(e)
}

// TransitionError says that the table has no row for an event in a state.
type TransitionError struct {
	From  events.State
	Event events.Type
}

// Error names state and event.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("invalid transition: %s in state %s is not in the transition table", e.Event, e.From)
}

// checkOrigin holds the event to the `<from>` of its subject, which is what
// the publisher's permissions are on.
func (m *Machine) checkOrigin(mem *Memory, from events.State, p events.Payload) error {
	if from == mem.State && ownState(p) || slices.Contains(Origins(m.table, mem, p), from) {
		return nil
	}
	return fmt.Errorf("%s in state %s may not come from %s", events.TypeOf(p), mem.State, from)
}

// ownState reports whether the run's own state is among the [Origins] of an event,
// whatever that state is.
func ownState(p events.Payload) bool {
	switch p := p.(type) {
	case *events.LLMAttemptFailed:
		return !p.Interrupted()
	case *events.CancelledRun, *events.Paused, *events.Resumed, *events.BudgetRaised, *events.UserMessage, *events.FatalError,
		*events.ContextWindowExpanded, *events.ToolCallsAddedToContext, *events.ToolCallDispatched:
		return false
	}
	return true
}

// Origins returns the subjects' `<from>` that an event may have in the run's
// current state.
func Origins(t *Table, mem *Memory, p events.Payload) []events.State {
	switch p := p.(type) {
	case *events.CancelledRun, *events.Paused, *events.Resumed, *events.BudgetRaised:
		return []events.State{events.Control}
	case *events.UserMessage:
		if mem.State == events.WaitingForUser {
			return []events.State{events.WaitingForUser, events.Control}
		}
		return []events.State{events.Control}
	case *events.FatalError:
		if mem.Control.Poison != nil || mem.overCap() {
			return append(t.States(), events.Control)
		}
		return append(mem.workers(), events.Control)
	case *events.LLMAttemptFailed:
		if p.Interrupted() {
			return []events.State{events.Planning} // wherever the run has gone since
		}
		return mem.workers()
	case *events.BudgetExceeded:
		return []events.State{mem.State, events.Control}
	case *events.ContextWindowExpanded, *events.ToolCallsAddedToContext:
		return contextOrigins(mem, p)
	case *events.ToolCallDispatched:
		return []events.State{events.Planning}
	case *events.ToolCallResult:
		return withControl(mem.State, p.Code == CodeNoActor && !p.Success)
	case *events.ToolFailure:
		return withControl(mem.State, p.Outcome != nil && p.Outcome.Code == CodeNoActor)
	}
	return []events.State{mem.State}
}

// workers are the states whose workers have work in the run's state: its own,
// and Planning where the calls of a batch have to be dispatched.
func (mem *Memory) workers() []events.State {
	if _, one := mem.singlePool(); mem.State == events.ParallelActing && !one {
		return []events.State{mem.State, events.Planning}
	}
	return []events.State{mem.State}
}

func withControl(s events.State, also bool) []events.State {
	if also {
		return []events.State{s, events.Control}
	}
	return []events.State{s}
}

// checkData checks what an event says against what the run knows.
func (mem *Memory) checkData(e *events.Event) error {
	if mem.skipsQueue(e.Data) {
		return fmt.Errorf("is a reply, but %d calls of the last reply have not gone out yet", len(mem.Control.Queued))
	}
	switch p := e.Data.(type) {
	case *events.LLMToolCall:
		if len(p.Calls) != 1 {
			return fmt.Errorf("has %d calls, want 1", len(p.Calls))
		}
		if mem.isQueuedPass(p.Calls) {
			return nil
		}
		return mem.checkNewCalls(p.Calls, p.Queued, refusedCalls(p.Refused))
	case *events.LLMParallelToolCalls:
		if len(p.Calls) < 2 {
			return fmt.Errorf("has %d calls, want at least 2", len(p.Calls))
		}
		return mem.checkNewCalls(p.Calls, refusedCalls(p.Refused))
	case *events.HumanApprovalRequired:
		return mem.checkApproval(p)
	case *events.ToolBlacklisted:
		return mem.checkNewCalls(p.Calls)
	case *events.ReplyInvalid:
		return mem.checkNewCalls(p.Calls)
	case *events.ToolSuccess:
		return mem.checkOutcome(p.Outcome, true)
	case *events.ToolFailure:
		return mem.checkOutcome(p.Outcome, false)
	case *events.ToolCallResult:
		return mem.checkOpen(p.CallID, only[events.TypeOf(p)]...)
	case *events.ToolCallDispatched:
		return mem.checkOpen(p.CallID, only[events.TypeOf(p)]...)
	case *events.HandedOff:
		return mem.checkHandOff(p)
	case *events.ToolCallStarted:
		return mem.checkOpen(p.CallID, only[events.TypeOf(p)]...)
	case *events.HumanDecision:
		return mem.checkDecision(&p.Decision, true, events.DecisionApproved, events.DecisionModified, events.DecisionRejected)
	case *events.HumanApproved:
		return mem.checkDecision(&p.Decision, false, events.DecisionApproved)
	case *events.HumanModified:
		return mem.checkDecision(&p.Decision, false, events.DecisionModified)
	case *events.HumanRejected:
		if mem.Control.Batch && p.CallID == "" {
			return mem.checkDecided(false)
		}
		return mem.checkDecision(&p.Decision, false, events.DecisionRejected)
	case *events.HumanApprovedParallel:
		return mem.checkDecided(true)
	case *events.LLMAttemptFailed:
		if p.Interrupted() && p.MessageID == "" {
			return fmt.Errorf("has no message_id")
		}
	case *events.UserMessage:
		if p.MessageID == "" {
			return fmt.Errorf("has no message_id")
		}
	case *events.ContextWindowExpanded:
		return mem.checkContextReply(p.ContextReply)
	case *events.ToolCallsAddedToContext:
		for _, id := range p.CallIDs {
			if mem.ToolCalls[id] == nil {
				return fmt.Errorf("names the unknown call %q", id)
			}
		}
		return mem.checkContextReply(p.ContextReply)
	case *events.Start:
		if p.Mode != events.ModeTask && p.Mode != events.ModeChat {
			return fmt.Errorf("mode %q is neither task nor chat", p.Mode)
		}
	}
	return nil
}

func refusedCalls(refused []events.Refusal) []events.Call {
	if len(refused) == 0 {
		return nil
	}
	calls := make([]events.Call, len(refused))
	for i, r := range refused {
		calls[i] = r.Call
	}
	return calls
}

// checkNewCalls refuses ids that the run has seen.
func (mem *Memory) checkNewCalls(groups ...[]events.Call) error {
	var room [8]string
	seen := room[:0]
	for _, calls := range groups {
		for _, call := range calls {
			if call.ID == "" || mem.internal(call.ID) != nil || mem.ToolCalls[call.ID] != nil || slices.Contains(seen, call.ID) {
				return fmt.Errorf("call id %q is empty or not new in the run", call.ID)
			}
			seen = append(seen, call.ID)
		}
	}
	return nil
}

// isQueuedPass reports whether the calls are the next one of an earlier reply,
// as it was asked for.
func (mem *Memory) isQueuedPass(calls []events.Call) bool {
	q := mem.Control.Queued
	return len(q) > 0 && len(calls) == 1 && calls[0] == q[0]
}

// skipsQueue reports whether the event is a new reply of the model while calls
// of the last one still have to go out: they would never be answered.
func (mem *Memory) skipsQueue(p events.Payload) bool {
	if len(mem.Control.Queued) == 0 || mem.State != events.Planning {
		return false
	}
	return mem.steps(p) > 0
}

// checkStarted refuses to ask what became of a call that was not begun.
func (mem *Memory) checkStarted(id string) error {
	if err := mem.checkOpen(id, mem.State); err != nil {
		return err
	}
	if mem.Call(id).Started == 0 {
		return fmt.Errorf("asks about call %q, which was not started", id)
	}
	return nil
}

func (mem *Memory) checkApproval(p *events.HumanApprovalRequired) error {
	if len(p.Requests) == 0 {
		return fmt.Errorf("has no requests")
	}
	if mem.State != events.Planning {
		if len(p.Requests) != 1 {
			return fmt.Errorf("has %d requests, want 1 for the call that was started", len(p.Requests))
		}
		return mem.checkStarted(p.Requests[0].CallID)
	}
	if len(p.Calls) == 0 {
		return fmt.Errorf("has no calls")
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

// checkOutcome checks the end of Acting (one call, with its outcome) or of
// ParallelActing (no outcome, every call answered).
func (mem *Memory) checkOutcome(o *events.ToolOutcome, success bool) error {
	if mem.State == events.Acting {
		if o == nil || o.Success != success {
			return fmt.Errorf("has no outcome of its own kind")
		}
		return mem.checkOpen(o.CallID, events.Acting)
	}
	abandoned := o != nil && reflect.DeepEqual(o, AbandonedBatch().Outcome)
	if o != nil && (success || !abandoned) {
		return fmt.Errorf("has an outcome, but ends a batch")
	}
	if open := mem.openCalls(); open > 0 {
		return fmt.Errorf("ends a batch of which %d calls have no result", open)
	}
	if !abandoned && mem.batchSucceeded() != success {
		return fmt.Errorf("does not match the batch's results")
	}
	return nil
}

func (mem *Memory) batchSucceeded() bool {
	return slices.ContainsFunc(mem.ParallelResults, func(r ToolResult) bool { return r.Success })
}

func (mem *Memory) openCalls() int {
	open := 0
	for i := range mem.Control.Calls {
		if !mem.Control.Calls[i].Answered {
			open++
		}
	}
	return open
}

// Call returns the state of a call of the current reply, nil if it is none.
func (mem *Memory) Call(id string) *CallState {
	for i := range mem.Control.Calls {
		if mem.Control.Calls[i].ID == id {
			return &mem.Control.Calls[i]
		}
	}
	return nil
}

func (mem *Memory) checkOpen(id string, states ...events.State) error {
	call := mem.Call(id)
	switch {
	case !slices.Contains(states, mem.State):
		return fmt.Errorf("has no place in state %s", mem.State)
	case call == nil:
		return fmt.Errorf("names call %q, which is not of this reply", id)
	case call.Answered:
		return fmt.Errorf("call %q has its result already", id)
	}
	return nil
}

// checkDecision checks a decision, which has to be one of those allowed: what
// is not understood must never count as an approval.
func (mem *Memory) checkDecision(d *events.Decision, batch bool, allowed ...string) error {
	a := mem.PendingApproval
	switch {
	case mem.State != events.WaitingForHuman || a == nil:
		return fmt.Errorf("nothing waits for a decision")
	case batch != mem.Control.Batch:
		return fmt.Errorf("a batch is decided call by call, a single call at once")
	case !slices.ContainsFunc(a.Requests, func(r events.Request) bool { return r.CallID == d.CallID }):
		return fmt.Errorf("call %q does not wait for a decision", d.CallID)
	case slices.ContainsFunc(a.Decisions, func(o events.Decision) bool { return o.CallID == d.CallID }):
		return fmt.Errorf("call %q is decided already", d.CallID)
	case !slices.Contains(allowed, d.Decision):
		return fmt.Errorf("decision is %q, want %s", d.Decision, strings.Join(allowed, " or "))
	case d.Decision == events.DecisionModified && d.Arguments == "":
		return fmt.Errorf("has no arguments, but modifies them")
	}
	return nil
}

// checkDecided checks the end of a batch's decisions.
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
// was accepted, or one that nobody had to decide on.
func (mem *Memory) batchAccepted() bool {
	rejected := 0
	for _, d := range mem.PendingApproval.Decisions {
		if d.Decision == events.DecisionRejected {
			rejected++
		}
	}
	return rejected < len(mem.Control.Calls)
}
