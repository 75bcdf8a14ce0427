package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Approval is a call that waits for a human.
type Approval struct {
	events.Request
	// Run is the id of the run whose call it is: the run that was asked, or a sub-run.
	Run string
	// of is that run.
	of *Run
}

// Decide is [Run.Decide] for this call. The decision needs no CallID.
func (a Approval) Decide(ctx context.Context, d events.Decision) error {
	d.CallID = a.CallID
	return a.of.decide(ctx, d)
}

// Approvals waits until calls wait for a human, and returns those without a decision: calls
// of the run and of its sub-runs. It returns none when no call can wait: the run has ended,
// or a chat waits for its user. So a loop that decides on all calls ends when Approvals
// returns none:
//
//	for {
//		waiting, err := r.Approvals(ctx)
//		if err != nil || len(waiting) == 0 {
//			return err
//		}
//		for _, a := range waiting {
//			if err := a.Decide(ctx, decide(a)); err != nil {
//				return err
//			}
//		}
//	}
//
// In chat mode the loop stands between [Run.Post] and [Run.Answer].
func (r *Run) Approvals(ctx context.Context) ([]Approval, error) {
	var waiting []Approval
	var failed error
	err := r.await(ctx, func(mem *reducer.Memory) bool {
		waiting, failed = r.waiting(mem)
		return len(waiting) > 0 || failed != nil || mem.State == events.WaitingForUser
	})
	return waiting, cmp.Or(err, failed)
}

// Decide decides on a call that waits for a human. By names who decided; default
// "program". When Decide returns, the run has the decision, so [Run.Approvals] does not
// return the call again. The error is a *[Refused] if the decision is not valid. The call
// may be that of a sub-run. If several runs have a waiting call with that id, use
// [Approval.Decide].
func (r *Run) Decide(ctx context.Context, d events.Decision) error {
	r.mu.Lock()
	waiting, err := r.waiting(r.fold.Memory())
	r.mu.Unlock()
	if err != nil {
		return err
	}
	of := r // it says what is wrong with a call that does not wait
	for i, a := range slices.DeleteFunc(waiting, func(a Approval) bool { return a.CallID != d.CallID }) {
		if i > 0 {
			return fmt.Errorf("the call %s waits in run %s and in run %s: decide on one by Approval.Decide", d.CallID, of.ID(), a.Run)
		}
		of = a.of
	}
	return of.decide(ctx, d)
}

func (r *Run) decide(ctx context.Context, d events.Decision) error {
	d.By = cmp.Or(d.By, "program")
	decided, err := r.service.host.Gateway().Decide(ctx, r.at.Namespace, r.at.ID, d)
	if err != nil {
		return refused(err)
	}
	return r.reach(ctx, decided.N)
}

// waiting returns the calls of the run and of its sub-runs that wait for a human now. It
// begins to follow those sub-runs. The lock is held.
func (r *Run) waiting(mem *reducer.Memory) ([]Approval, error) {
	var all []Approval
	for _, id := range decisions.Undecided(mem.PendingApproval) {
		i := slices.IndexFunc(mem.PendingApproval.Requests, func(q events.Request) bool { return q.CallID == id })
		all = append(all, Approval{Request: mem.PendingApproval.Requests[i], Run: r.at.ID, of: r})
	}
	for i := range mem.Control.Calls {
		call := &mem.Control.Calls[i]
		if !call.Waits() {
			continue
		}
		theirs, err := r.waitingBelow(call.ID)
		if err != nil {
			return nil, fmt.Errorf("the run that answers call %s: %w", call.ID, err)
		}
		all = append(all, theirs...)
	}
	return all, nil
}

// waitingBelow returns the waiting calls of the sub-run of a call, and of the runs below it.
// The lock is held.
func (r *Run) waitingBelow(callID string) ([]Approval, error) {
	child, err := r.child(events.ChildID(r.at.ID, callID))
	if err != nil {
		return nil, err
	}
	child.mu.Lock()
	defer child.mu.Unlock()
	mem := child.fold.Memory()
	if child.failed != nil || child.terminal() || !mem.Control.Parent.Answers(r.at.ID, callID) {
		return nil, child.failed // anybody may start a run with that id
	}
	return child.waiting(mem)
}

// child returns a sub-run and begins to follow it. The lock is held.
func (r *Run) child(id string) (*Run, error) {
	if child := r.children[id]; child != nil {
		return child, nil
	}
	if r.released {
		return nil, errReleased
	}
	at := r.service.host.Store().Place(r.at.Namespace, id)
	child, err := watch(r.service, at, r, nil, slog.New(slog.DiscardHandler), func() error { return nil })
	if err == nil {
		r.children[id] = child
	}
	return child, err
}
