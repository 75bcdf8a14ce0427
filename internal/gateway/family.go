package gateway

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// waiting are the calls of a run that runs of their own are to answer, with nothing
// of its own to be done; none while it is paused.
func waiting(mem *reducer.Memory) []string {
	if mem.Control.Paused {
		return nil
	}
	var ids []string
	for i := range mem.Control.Calls {
		if call := &mem.Control.Calls[i]; call.Waits() {
			ids = append(ids, call.ID)
		}
	}
	return ids
}

// inspectChildren looks at what a run waits for that has nothing to do itself. It
// does not stand still as long as a child goes on. A child that has ended, or is not
// in the log any more, is work: that of answering the call.
func (g *Gateway) inspectChildren(ctx context.Context, run events.Run, mem *reducer.Memory, seen watch) watch {
	now, over, queued := g.store.Now(), false, false
	for _, call := range waiting(mem) {
		ended, queues, err := g.childEnded(ctx, run, call)
		if err != nil {
			g.cfg.Logger.Warn("cannot tell whether a run still waits for another one", "run", run.ID, "call", call, "reason", err)
			return watch{unsure: true}
		}
		over, queued = over || ended, queued || queues
	}
	switch {
	case !over:
		return watch{}
	case seen.N == mem.N && !seen.Queued && !queued:
		seen.stuck = now.Sub(seen.Since) >= g.cfg.StallAfter
		return seen
	}
	return watch{N: mem.N, Since: now, Queued: queued}
}

// childEnded reports whether the run that answers a call has ended or is gone, and
// whether its end waits to be delivered. Its last record is believed: what follows
// from it looks at the run itself.
func (g *Gateway) childEnded(ctx context.Context, parent events.Run, call string) (ended, queued bool, err error) {
	child := g.store.Place(parent.Namespace, events.ChildID(parent.ID, call))
	head, err := g.log.Head(ctx, child)
	if errors.Is(err, journal.ErrNotFound) {
		return true, false, nil
	}
	if err != nil {
		return false, false, err
	}
	s, err := events.ParseSubject(head.Subject)
	if err != nil || !g.table.Terminal(s.To) {
		return false, false, nil
	}
	queued, err = g.undelivered(ctx, child.Shard, head)
	return true, queued, err
}

// restless reports whether a run has to be looked at though nothing was appended to
// it: what it waits for, or who waits for it, may have ended.
func restless(mem *reducer.Memory, w watch) bool {
	return mem.Control.Parent != nil || w.N == 0 && len(waiting(mem)) > 0
}

// forsake cancels a run that answers a call which nobody waits for any more. A parent
// that is not in the log says nothing.
func (g *Gateway) forsake(ctx context.Context, child events.Run, parent events.Parent) error {
	if child.ID != events.ChildID(parent.Run, parent.CallID) {
		return nil
	}
	over := false
	err := g.look(ctx, child.Namespace, parent.Run, func(run *runlog.Run) error {
		record := run.Memory().ToolCalls[parent.CallID]
		over = run.Terminal() || record != nil && record.Result != nil
		return nil
	})
	var refused *Error
	if errors.As(err, &refused) && (refused.Code == CodeRunNotFound || refused.Code == CodeRunPurged) {
		return nil
	}
	if err != nil || !over {
		return err
	}
	return g.cancelChild(ctx, child.Namespace, parent, events.By{By: g.source}, "waits for it no more")
}

// recall cancels the run that answers a call, if there is one, and returns its id and
// what it and the runs below it have used: whoever answers the call without it has to
// say so, or nobody does.
func (g *Gateway) recall(ctx context.Context, parent events.Run, call string) (id string, used reducer.TotalUsage, err error) {
	p := events.Parent{Run: parent.ID, CallID: call}
	if err := g.cancelChild(ctx, parent.Namespace, p, events.By{By: g.source}, "waits for it no more"); err != nil {
		return "", used, err
	}
	there, err := g.used(ctx, parent.Namespace, p, &used)
	if there {
		id = events.ChildID(p.Run, p.CallID)
	}
	return id, used, err
}

// used adds what the run that answers a call has used, and those that it left when it
// ended, whose usage is not in its own. It reports whether there is such a run.
func (g *Gateway) used(ctx context.Context, ns string, p events.Parent, sum *reducer.TotalUsage) (there bool, err error) {
	id, open := events.ChildID(p.Run, p.CallID), []string(nil)
	err = g.look(ctx, ns, id, func(run *runlog.Run) error {
		mem := run.Memory()
		if !mem.Control.Parent.Answers(p.Run, p.CallID) {
			return nil
		}
		there, open = true, mem.Delegated()
		u := mem.TotalUsage
		sum.Input, sum.Output, sum.Cached, sum.Total, sum.Cost = sum.Input+u.Input, sum.Output+u.Output, sum.Cached+u.Cached, sum.Total+u.Total, sum.Cost+u.Cost
		return nil
	})
	var refused *Error
	if errors.As(err, &refused) && (refused.Code == CodeRunNotFound || refused.Code == CodeRunPurged) {
		return false, nil
	}
	for _, call := range open {
		if err == nil {
			_, err = g.used(ctx, ns, events.Parent{Run: id, CallID: call}, sum)
		}
	}
	return there, err
}
