package agent

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Approval is a call that waits for a human.
type Approval struct {
	events.Request
	// Run is the id of the run whose call it is: the run that was asked, or a sub-run.
	Run string
	// of is that run. asked is the number of the event that asked.
	of    *Run
	asked uint64
	// err says why there is no call.
	err error
}

// Decide is [Run.Decide] for this call. The decision needs no CallID.
func (a Approval) Decide(ctx context.Context, d events.Decision) error {
	if a.err != nil {
		return a.err
	}
	d.CallID = a.CallID
	return a.of.decide(ctx, d)
}

// Approve approves the call, see [Approval.Decide].
func (a Approval) Approve(ctx context.Context) error {
	return a.Decide(ctx, events.Decision{Decision: events.DecisionApproved})
}

// Reject rejects the call. The model sees the reason.
func (a Approval) Reject(ctx context.Context, reason string) error {
	return a.Decide(ctx, events.Decision{Decision: events.DecisionRejected, Reason: reason})
}

// Approvals yields the calls of the run and its sub-runs that wait for a human, as they come.
// Each is yielded once, and no call that was decided meanwhile, by anybody. The calls end
// when no call can wait: the run has ended, or a chat waits for its user. So this loop
// decides everything, in chat mode between [Run.Post] and [Run.Answer]:
//
//	for call := range run.Approvals(ctx) {
//		if err := call.Approve(ctx); err != nil {
//			return err
//		}
//	}
//
// An error, such as the end of ctx, is the last value. Its Approval has no CallID, and a decision
// about that returns the error.
func (r *Run) Approvals(ctx context.Context) iter.Seq2[Approval, error] {
	return pending(ctx, r, (*Run).undecided,
		func(a Approval) pendingCall { return pendingCall{a.Run, a.CallID, a.asked} },
		func(err error) Approval { return Approval{err: err} })
}

// pendingCall is a call that waits, and the number of the event since when it does.
type pendingCall struct {
	run, call string
	since     uint64
}

// pending yields the calls of the run and its sub-runs that wait, each once. of returns those
// of one run, and failed what is yielded with an error.
func pending[T any](ctx context.Context, r *Run, of func(*Run, *reducer.Memory) []T, key func(T) pendingCall, failed func(error) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		seen := map[pendingCall]bool{}
		for {
			var calls []T
			var unread error
			err := r.await(ctx, func(mem *reducer.Memory) bool {
				calls, unread = collect(r, mem, of)
				calls = slices.DeleteFunc(calls, func(c T) bool { return seen[key(c)] })
				return len(calls) > 0 || unread != nil || mem.State == events.WaitingForUser
			})
			if err = cmp.Or(ctx.Err(), err, unread); err != nil {
				yield(failed(err), err)
				return
			}
			if len(calls) == 0 {
				return
			}
			seen[key(calls[0])] = true
			if !yield(calls[0], nil) {
				return
			}
		}
	}
}

// Interrupted is the error of a wait for a run that cannot continue without its user, see
// [UntilInterrupt]. The run is not affected.
type Interrupted struct {
	// State is the state of the run: waiting_for_user in a chat whose turn has ended.
	State events.State
	// Approvals are the calls that wait for a human, Calls those that wait for the program
	// as the run's client, those of sub-runs included.
	Approvals []Approval
	Calls     []ClientCall
}

// Error says what the run waits for.
func (i *Interrupted) Error() string {
	if len(i.Approvals)+len(i.Calls) == 0 {
		return fmt.Sprintf("the run is in state %s and waits for its user", i.State)
	}
	return fmt.Sprintf("the run is in state %s; %d calls wait for a human, and %d for the run's client", i.State, len(i.Approvals), len(i.Calls))
}

// interruption returns what the run waits for, or nil. The lock is held.
func (r *Run) interruption(mem *reducer.Memory) (*Interrupted, error) {
	waiting, err := collect(r, mem, (*Run).undecided)
	calls, unread := collect(r, mem, (*Run).clientCalls)
	if err = cmp.Or(err, unread); err != nil || len(waiting)+len(calls) == 0 && mem.State != events.WaitingForUser {
		return nil, err
	}
	return &Interrupted{State: mem.State, Approvals: waiting, Calls: calls}, nil
}

// Decide records a decision about a call that waits for a human. By names who decided; default
// "program". When Decide returns, the run has the decision, so [Run.Approvals] does not
// yield the call again. The error is a *[Refused] if the decision is not valid. The call
// may be that of a sub-run. If several runs have a waiting call with that id, use
// [Approval.Decide].
func (r *Run) Decide(ctx context.Context, d events.Decision) error {
	r.mu.Lock()
	waiting, err := collect(r, r.fold.Memory(), (*Run).undecided)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	of := r // it says what is wrong with a call that does not wait
	for i, a := range slices.DeleteFunc(waiting, func(a Approval) bool { return a.CallID != d.CallID }) {
		if i > 0 {
			return fmt.Errorf("the call %s waits in run %s and in run %s: decide one with Approval.Decide", d.CallID, of.ID(), a.Run)
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

// undecided returns the run's own calls that wait for a human now. The lock is held.
func (r *Run) undecided(mem *reducer.Memory) []Approval {
	var all []Approval
	for _, id := range decisions.Undecided(mem.PendingApproval) {
		i := slices.IndexFunc(mem.PendingApproval.Requests, func(q events.Request) bool { return q.CallID == id })
		all = append(all, Approval{Request: mem.PendingApproval.Requests[i], Run: r.at.ID, of: r, asked: mem.Control.Armed})
	}
	return all
}

// collect returns what of returns for the run and for its sub-runs that are open. It begins
// to follow those. The lock is held.
func collect[T any](r *Run, mem *reducer.Memory, of func(*Run, *reducer.Memory) []T) ([]T, error) {
	all := of(r, mem)
	for i := range mem.Control.Calls {
		call := &mem.Control.Calls[i]
		if !call.Waits() {
			continue
		}
		theirs, err := collectBelow(r, call.ID, of)
		if err != nil {
			return nil, fmt.Errorf("the run that answers call %s: %w", call.ID, err)
		}
		all = append(all, theirs...)
	}
	return all, nil
}

// collectBelow is [collect] for the sub-run of a call. The lock is held.
func collectBelow[T any](r *Run, callID string, of func(*Run, *reducer.Memory) []T) ([]T, error) {
	child, err := r.child(runid.Child(r.at.ID, callID))
	if err != nil {
		return nil, err
	}
	child.mu.Lock()
	defer child.mu.Unlock()
	mem := child.fold.Memory()
	if child.failed != nil || child.terminal() || !mem.Control.Parent.Answers(r.at.ID, callID) {
		return nil, child.failed // anybody may start a run with that id
	}
	return collect(child, mem, of)
}

// child returns a sub-run and begins to follow it. The lock is held.
func (r *Run) child(id string) (*Run, error) {
	if child := r.children[id]; child != nil {
		return child, nil
	}
	if r.released {
		return nil, errReleased
	}
	child := watch(r.service, r.service.host.Store().Place(r.at.Namespace, id), r, func() error { return nil })
	r.children[id] = child
	return child, nil
}
