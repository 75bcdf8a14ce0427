package gateway

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// CancelChildren cancels the runs that were started to answer a run's calls and
// that nobody waits for any more: those of the calls that had no result when the
// run was cancelled or ended in error, and their children in turn. It may be
// repeated at any time. A run that goes on, or that is done, keeps its children.
//
// Children are found by their ids, see [events.ChildID], and have to name the call
// as their parent: anybody may have started a run under such an id.
func (g *Gateway) CancelChildren(ctx context.Context, ns, id string, by events.By) error {
	calls, err := g.orphaned(ctx, ns, id)
	var all error
	for _, call := range calls {
		all = errors.Join(all, g.cancelChild(ctx, ns, events.Parent{Run: id, CallID: call}, by, "has ended"))
	}
	return errors.Join(err, all)
}

// orphaned returns the calls that an ended run has left without a result.
func (g *Gateway) orphaned(ctx context.Context, ns, id string) ([]string, error) {
	var calls []string
	err := g.look(ctx, ns, id, func(run *runlog.Run) error {
		mem := run.Memory()
		if mem.State != events.Cancelled && mem.State != events.Errored {
			return nil
		}
		for i := range mem.Control.Calls {
			if call := &mem.Control.Calls[i]; !call.Answered {
				calls = append(calls, call.ID)
			}
		}
		return nil
	})
	return calls, err
}

// cancelChild cancels the run that answers a call, if there is one; since says what the
// run that called it did.
func (g *Gateway) cancelChild(ctx context.Context, ns string, parent events.Parent, by events.By, since string) error {
	id, own := events.ChildID(parent.Run, parent.CallID), false
	err := g.look(ctx, ns, id, func(run *runlog.Run) error {
		p := run.Memory().Control.Parent
		own = p.Answers(parent.Run, parent.CallID)
		return nil
	})
	if err == nil && own {
		_, err = g.Cancel(ctx, ns, id, events.By{By: by.By, Reason: "run " + parent.Run + ", which called it, " + since})
	}
	var refused *Error
	if errors.As(err, &refused) && (refused.Code == CodeRunNotFound || refused.Code == CodeRunPurged || refused.Code == CodeRunEnded) {
		return nil // nothing goes on there
	}
	return err
}

// Cancel ends a run from outside. What runs for it is cancelled, the runs that
// answer its calls included; where that fails the run itself has ended, and the
// cancel may be repeated: it is run_ended then, and the rest is done.
func (g *Gateway) Cancel(ctx context.Context, ns, id string, by events.By) (Result, error) {
	at, err := g.place(ns, id)
	if err != nil {
		return Result{}, err
	}
	// A run that has ended is forgotten when nobody holds it, and is read twice
	// here.
	defer g.store.Release(g.store.Acquire(at))
	result, err := g.change(ctx, ns, id, func(*reducer.Memory) ([]runlog.Draft, error) {
		return one(events.Control, &events.CancelledRun{By: by})
	})
	var refused *Error
	if err == nil || errors.As(err, &refused) && refused.Code == CodeRunEnded {
		if childErr := g.CancelChildren(ctx, ns, id, by); childErr != nil {
			return Result{}, childErr
		}
	}
	return result, err
}
