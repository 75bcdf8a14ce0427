package subagent

import (
	"context"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// giveUp plans the end of a call that failed too often. A run that is there to answer it
// is not left alone: it answers the call when it ends, or, if it has ended, what it has
// used stands in the call's result. So nothing is given up that has only to be waited
// for, and the parent pays for it either way.
func (s *Subagents) giveUp(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	state, plain := mem.Call(e.CallID), effects.GiveUp(mem, e)
	if state == nil || hopeless(e) {
		return func(context.Context) worker.Result { return worker.Done(plain) }
	}
	c := s.inWork(run, mem, state)
	return func(ctx context.Context) worker.Result {
		if c.handedOff {
			return handedOver(c.ID)
		}
		return s.patiently(ctx, c, func(ctx context.Context, c call) (worker.Result, error) {
			found, err := s.find(ctx, c)
			switch {
			case isOutage(err):
				return worker.Result{}, err
			case err != nil || !found.there || found.foreign:
				return worker.Done(plain), nil
			case found.ended == nil:
				return worker.HandOn(&events.ToolCallStarted{CallID: c.ID}), nil
			}
			return worker.Done(withUsage(plain, c, found.ended)), nil
		})
	}
}

// hopeless reports whether even giving up has failed as often as the call did.
func hopeless(e effects.Effect) bool {
	return e.Failed.Handler > 2*effects.MaxHandlerFailures || e.Failed.Lost > 2*reducer.MaxWorkersLost
}

// withUsage is the result of a call that was given up, with what its run has used.
func withUsage(given events.Payload, c call, e *ending) events.Payload {
	var o events.ToolOutcome
	switch p := given.(type) {
	case *events.ToolCallResult:
		o = p.ToolOutcome
	case *events.ToolFailure:
		o = *p.Outcome
	default:
		return given
	}
	o.Run, o.Usage = c.child.ID, toolcall.Usage(e.usage)
	return toolcall.Outcome(o, c.batch)
}
