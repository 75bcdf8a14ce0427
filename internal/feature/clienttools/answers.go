package clienttools

import (
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/pools"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/feature/clienttools/row"
	"github.com/moorebus/moorebus/internal/jsondiff"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// answers checks the inputs of one request in order, as if each were in the log before the next
// one. ended says that the run accepts nothing more.
type answers struct {
	mem   *reducer.Memory
	now   time.Time
	ended bool
	// given are the results of this request, begun its calls that the client began with.
	given map[string]*control.ToolCallResult
	begun map[string]bool
}

// started returns the event which says that the client began with a call; nil if it stands in
// the log, or if the call is over. name and arguments are compared with the call's where they
// are given. See result for the refusals; also Unprocessable, call_differs.
func (a *answers) started(id, name, arguments string) (events.Payload, error) {
	id = callname.Find(a.mem, id)
	record, err := a.find(id)
	if err != nil {
		return nil, err
	}
	if name != "" && name != record.Name || arguments != "" && jsondiff.Canonical(arguments) != jsondiff.Canonical(record.Parameters) {
		return nil, a.refuse(refusal.Unprocessable, id, row.CodeCallDiffers, "call %q is of %s with the parameters %s; the input names others", id, record.Name, record.Parameters)
	}
	call := a.mem.Call(id)
	switch {
	case record.Result != nil, a.given[id] != nil, a.begun[id], call != nil && call.Started > 0:
		return nil, nil
	case a.ended:
		return nil, a.over()
	case call == nil || !call.WaitsForClient():
		return nil, a.undelivered(id)
	}
	a.begun[id] = true
	return &events.ToolCallStarted{CallID: id}, nil
}

// result returns the event that answers a call; nil if the log has the same result. Refusals
// are NotFound, unknown_call; Conflict: not_yours for a call of another tool, not_delivered
// while the call waits for an approval or for others, already_answered with the first result
// in the field result, and run_ended.
func (a *answers) result(r control.ToolCallResult) (events.Payload, error) {
	r.CallID = callname.Find(a.mem, r.CallID)
	record, err := a.find(r.CallID)
	if err != nil {
		return nil, err
	}
	call := a.mem.Call(r.CallID)
	switch first := a.given[r.CallID]; {
	case first != nil && first.Success == r.Success && first.Text == r.Text, record.Result != nil && repeats(&r, record):
		return nil, nil
	case first != nil:
		return nil, a.answered(r.CallID, first.Success, first.Kept)
	case record.Result != nil:
		return nil, a.answered(r.CallID, record.Result.Success != nil, textOf(record.Result))
	case a.ended:
		return nil, a.over()
	case call == nil || !call.WaitsForClient():
		return nil, a.undelivered(r.CallID)
	}
	a.given[r.CallID] = &r
	o := events.ToolOutcome{
		CallID: r.CallID, Success: r.Success, Code: codes.OK, Observation: codes.SuccessPrefix + r.Kept, Ref: r.Ref,
		LatencyMS: latency(a.mem, call, a.now),
	}
	if !r.Success {
		o.Code, o.Observation = tool.CodeFailed, codes.ErrorPrefix+r.Kept
	}
	return toolcall.Outcome(o, a.mem.Control.Batch), nil
}

// find returns a client's call.
func (a *answers) find(id string) (*reducer.ToolCallRecord, error) {
	record := a.mem.ToolCalls[id]
	switch {
	case record == nil && !slices.Contains(a.mem.Control.CallOrder, id):
		return nil, a.refuse(refusal.NotFound, id, refusal.CodeUnknownCall, "the run has no tool call %.100q", id)
	case record == nil || !record.Client:
		return nil, a.refuse(refusal.Conflict, id, refusal.CodeNotYours, "call %q is not of one of the agent's client_tools; its actor answers it", id)
	}
	return record, nil
}

// refusedAtOnce reports whether an event refuses the call as soon as the model made it. Such a call
// went to nobody, and a client does not know it.
func refusedAtOnce(p events.Payload, id string) bool {
	var refused []events.Refusal
	switch p := p.(type) {
	case *events.LLMToolCall:
		refused = p.Refused
	case *events.LLMParallelToolCalls:
		refused = p.Refused
	case *events.HumanApprovalRequired:
		refused = p.ToolCallReply.Refused
	case *events.ToolBlacklisted:
		return hasCall(p.Calls, id)
	case *events.ReplyInvalid:
		return hasCall(p.Calls, id)
	}
	return slices.ContainsFunc(refused, func(r events.Refusal) bool { return r.Call.ID == id })
}

func hasCall(calls []events.Call, id string) bool {
	return slices.ContainsFunc(calls, func(c events.Call) bool { return c.ID == id })
}

func (a *answers) answered(id string, success bool, text string) error {
	e := a.refuse(refusal.Conflict, id, row.CodeAlreadyAnswered, "call %q has another result already, the field result; the first one counts", id)
	e.Fields["result"] = shown(success, text)
	return e
}

func shown(success bool, text string) map[string]any {
	if success {
		return map[string]any{"isSuccess": true, "content": text}
	}
	return map[string]any{"isSuccess": false, "error": text}
}

func (a *answers) undelivered(id string) error {
	return a.refuse(refusal.Conflict, id, row.CodeNotDelivered, "call %q has not gone out: it waits for a human's approval, or for other calls of its reply", id)
}

func (a *answers) over() error {
	return refusal.New(refusal.Conflict, refusal.CodeRunEnded, "the run has ended in state %s and accepts nothing more", a.mem.State).
		With(map[string]any{"run": a.mem.RunID, "state": a.mem.State, "n": a.mem.N})
}

func (a *answers) refuse(kind refusal.Kind, id, code, format string, args ...any) *refusal.Error {
	return refusal.New(kind, code, format, args...).
		With(map[string]any{"run": a.mem.RunID, "call_id": id, "state": a.mem.State, "n": a.mem.N})
}

// repeats reports whether the log has this result: by its digest if it is not all in the log.
func repeats(r *control.ToolCallResult, record *reducer.ToolCallRecord) bool {
	switch success := record.Result.Success != nil; {
	case success != r.Success:
		return false
	case record.Ref != nil:
		return record.Ref.SHA256 == events.Hash([]byte(r.Text))
	}
	return textOf(record.Result) == r.Kept
}

// textOf returns the client's own words.
func textOf(r *reducer.CallResult) string {
	if r.Failed != nil {
		return strings.TrimPrefix(r.Failed.Error, codes.ErrorPrefix)
	}
	return r.Text()
}

// latency is how long ago the call went out, in milliseconds.
func latency(mem *reducer.Memory, call *reducer.CallState, now time.Time) int64 {
	at, known := call.Expires()
	if !known {
		return 0
	}
	return max(0, now.Sub(at.Add(-time.Duration(mem.Tools[call.Name].Timeout))).Milliseconds())
}

// deadline returns when the first of the calls that wait for the client is over; false if
// none waits.
func deadline(mem *reducer.Memory) (first time.Time, waits bool) {
	for _, call := range mem.ClientCalls() {
		if at, known := call.Expires(); known && (!waits || at.Before(first)) {
			first, waits = at, true
		}
	}
	return first, waits
}

// overdue reports whether a call waits for the client, and its time is over.
func overdue(call *reducer.CallState, now time.Time) bool {
	at, known := call.Expires()
	return call.WaitsForClient() && known && !now.Before(at)
}

// unanswered is what the log has as the result of an overdue call.
func unanswered(call *reducer.CallState) string {
	return "the client did not answer " + call.Name + " in time, that is until " + call.Deadline
}

// expire returns the events that end the calls whose time is over.
func expire(mem *reducer.Memory, now time.Time) (drafts []runlog.Draft) {
	for _, call := range mem.ClientCalls() {
		if overdue(&call, now) {
			o := events.ToolOutcome{CallID: call.ID, Code: tool.CodeTimeout, LatencyMS: latency(mem, &call, now), Observation: codes.ErrorPrefix + unanswered(&call)}
			drafts = append(drafts, runlog.Draft{Origin: events.Control, Payload: toolcall.Outcome(o, mem.Control.Batch)})
		}
	}
	return drafts
}

// join handles [effects.KindJoin] in the clients' pool. A batch without a client's call is of an actor of an
// older build, which had the pool's name.
func join(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	if !slices.ContainsFunc(mem.Control.Calls, func(c reducer.CallState) bool { return c.Client }) {
		return pools.EndBatch(run, mem, e)
	}
	return toolcall.Join(run, mem, e)
}
