package agent

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// ClientTool gives the agent tools that the client of a run carries out: the program that started
// the run, or one that attaches to it. A call waits for [Run.Return] until the tool's
// timeout, and holds nothing meanwhile. The client may restart.
func (b *Builder) ClientTool(tools ...events.ClientTool) *Builder {
	b.def.ClientTools = append(b.def.ClientTools, tools...)
	return b
}

// ClientCall is a call of a tool of [Builder.ClientTool] that waits for its result.
type ClientCall struct {
	// Run is the id of the run whose call it is: the run that was asked, or a sub-run.
	Run string
	// CallID names the call in the run, as in an [Approval]. Arguments is JSON.
	CallID, Tool, Arguments string
	// Deadline is until when the result is taken.
	Deadline time.Time
	// of is that run. asked is the number of the event that asked, err says why there is no
	// call.
	of    *Run
	asked uint64
	err   error
}

// Return is [Run.Return] for this call.
func (c ClientCall) Return(ctx context.Context, content string, failure error) error {
	if c.err != nil {
		return c.err
	}
	return c.of.giveBack(ctx, c.CallID, content, failure)
}

// ClientCalls yields the calls of the run and its sub-runs that wait for their client, as
// they come, each once. It ends as [Run.Approvals] does, and its last value may be an error.
//
//	for call := range run.ClientCalls(ctx) {
//		content, failure := carryOut(call.Tool, call.Arguments)
//		if err := call.Return(ctx, content, failure); err != nil {
//			return err
//		}
//	}
func (r *Run) ClientCalls(ctx context.Context) iter.Seq2[ClientCall, error] {
	return pending(ctx, r, (*Run).clientCalls,
		func(c ClientCall) pendingCall { return pendingCall{c.Run, c.CallID, c.asked} },
		func(err error) ClientCall { return ClientCall{err: err} })
}

// clientCalls returns the run's own calls that wait for their client now. The lock is held.
func (r *Run) clientCalls(mem *reducer.Memory) []ClientCall {
	var all []ClientCall
	for _, call := range mem.ClientCalls() {
		deadline, _ := call.Expires()
		all = append(all, ClientCall{
			Run: r.at.ID, CallID: call.ID, Tool: call.Name, Arguments: call.Arguments, Deadline: deadline, of: r, asked: mem.Control.Armed,
		})
	}
	return all
}

// Return gives the result of a call of a client tool: its content, or its failure if that is
// not nil. The model sees either. The same result again changes nothing. The error is a
// *[Refused] if the call does not wait, with the code already_answered after another result
// and after the deadline. The call may be that of a sub-run. If calls of several runs with
// that id wait, use [ClientCall.Return].
func (r *Run) Return(ctx context.Context, callID, content string, failure error) error {
	r.mu.Lock()
	calls, err := collect(r, r.fold.Memory(), (*Run).clientCalls)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	of := r // it says what is wrong with a call that does not wait
	for i, c := range slices.DeleteFunc(calls, func(c ClientCall) bool { return c.CallID != callID }) {
		if i > 0 {
			return fmt.Errorf("the call %s waits in run %s and in run %s: answer one by ClientCall.Return", callID, of.ID(), c.Run)
		}
		of = c.of
	}
	return of.giveBack(ctx, callID, content, failure)
}

func (r *Run) giveBack(ctx context.Context, callID, content string, failure error) error {
	result := control.ToolCallResult{CallID: callID, Success: failure == nil, Text: content}
	if failure != nil {
		result.Text = failure.Error()
	}
	return r.input(ctx, result)
}
