// Package subruns cancels runs together with their sub-runs.
//
// A sub-run is found by its id, see package runid. It must also name the call as its parent,
// because any client can start a run under such an id.
package subruns

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Subruns cancels runs. It is safe for concurrent use.
type Subruns struct{ a *runs.Editor }

// New returns Subruns for the runs of a.
func New(a *runs.Editor) *Subruns { return &Subruns{a} }

// Cancel cancels a run, its model calls, its tools and its sub-runs. If cancelling a sub-run
// fails, the run itself has ended. A repeated Cancel then cancels the remaining sub-runs and
// returns CodeRunEnded.
func (s *Subruns) Cancel(ctx context.Context, ns, id string, by events.By) (runs.Result, error) {
	at, err := s.a.Place(ns, id)
	if err != nil {
		return runs.Result{}, err
	}
	// The run is read twice. Without this Acquire the store would forget it in between.
	defer s.a.Store.Release(s.a.Store.Acquire(at))
	result, err := s.a.Change(ctx, ns, id, func(*reducer.Memory) ([]runlog.Draft, error) {
		return runs.One(events.Control, &events.CancelledRun{By: by})
	})
	if err == nil || refusal.Is(err, refusal.CodeRunEnded) {
		if childErr := s.CancelChildren(ctx, ns, id, by); childErr != nil {
			return runs.Result{}, childErr
		}
	}
	return result, err
}

// CancelChildren cancels the sub-runs of a run that was cancelled or ended in error: those whose
// calls had no result then, with their own sub-runs. It may be repeated at any time. It does
// nothing for any other run.
func (s *Subruns) CancelChildren(ctx context.Context, ns, id string, by events.By) error {
	var calls []string
	all := s.a.View(ctx, ns, id, func(run *runlog.Run) error {
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
	for _, call := range calls {
		all = errors.Join(all, s.cancelChild(ctx, ns, events.Parent{Run: id, CallID: call}, by, "has ended"))
	}
	return all
}

// cancelChild cancels the sub-run of a call, if there is one. why completes a sentence about the
// parent.
func (s *Subruns) cancelChild(ctx context.Context, ns string, parent events.Parent, by events.By, why string) error {
	id, answers := runid.Child(parent.Run, parent.CallID), false
	err := s.a.View(ctx, ns, id, func(run *runlog.Run) error {
		answers = run.Memory().Control.Parent.Answers(parent.Run, parent.CallID)
		return nil
	})
	if err == nil && answers {
		_, err = s.Cancel(ctx, ns, id, events.By{By: by.By, Reason: "run " + parent.Run + ", which called it, " + why})
	}
	if runs.IsMissing(err) || refusal.Is(err, refusal.CodeRunEnded) {
		return nil
	}
	return err
}

// CancelAbandoned cancels a sub-run if its parent has ended or has a result for the call. It does
// nothing if the parent is not in the log.
func (s *Subruns) CancelAbandoned(ctx context.Context, child events.Run, parent events.Parent) error {
	if child.ID != runid.Child(parent.Run, parent.CallID) {
		return nil
	}
	over := false
	err := s.a.View(ctx, child.Namespace, parent.Run, func(run *runlog.Run) error {
		record := run.Memory().ToolCalls[parent.CallID]
		over = run.Terminal() || record != nil && record.Result != nil
		return nil
	})
	if runs.IsMissing(err) {
		return nil
	}
	if err != nil || !over {
		return err
	}
	return s.cancelChild(ctx, child.Namespace, parent, events.By{By: s.a.Source}, "no longer waits for it")
}

// Recall cancels the sub-run of a call, if there is one, and returns its id and the usage of it
// and its own sub-runs. The caller answers the call instead and reports that usage.
func (s *Subruns) Recall(ctx context.Context, parent events.Run, call string) (id string, used reducer.TotalUsage, err error) {
	p := events.Parent{Run: parent.ID, CallID: call}
	if err := s.cancelChild(ctx, parent.Namespace, p, events.By{By: s.a.Source}, "no longer waits for it"); err != nil {
		return "", used, err
	}
	found, err := s.addUsage(ctx, parent.Namespace, p, &used)
	if found {
		id = runid.Child(p.Run, p.CallID)
	}
	return id, used, err
}

// addUsage adds the usage of a call's sub-run, and of those of its sub-runs that were still open
// when it ended: the sub-run's usage does not include theirs. It reports whether there is a sub-run.
func (s *Subruns) addUsage(ctx context.Context, ns string, p events.Parent, sum *reducer.TotalUsage) (found bool, err error) {
	id, open := runid.Child(p.Run, p.CallID), []string(nil)
	err = s.a.View(ctx, ns, id, func(run *runlog.Run) error {
		mem := run.Memory()
		if !mem.Control.Parent.Answers(p.Run, p.CallID) {
			return nil
		}
		found, open = true, mem.Delegated()
		u := mem.TotalUsage
		sum.Input, sum.Output, sum.Cached, sum.Total, sum.Cost = sum.Input+u.Input, sum.Output+u.Output, sum.Cached+u.Cached, sum.Total+u.Total, sum.Cost+u.Cost
		return nil
	})
	if runs.IsMissing(err) {
		return false, nil
	}
	for _, call := range open {
		if err == nil {
			_, err = s.addUsage(ctx, ns, events.Parent{Run: id, CallID: call}, sum)
		}
	}
	return found, err
}
