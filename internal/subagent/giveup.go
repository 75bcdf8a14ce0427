package subagent

import (
	"context"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// giveUp plans the end of a call that failed too often. If its sub-run is in the log, the
// call is not given up: the sub-run answers it when it ends. If the sub-run has ended, the
// result says what it has used. So no call is given up that only has to wait, and the
// parent pays for the sub-run either way.
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
		return s.outlast(ctx, c, func(ctx context.Context, c call) (worker.Result, error) {
			found, err := s.findSubrun(ctx, c)
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

// hopeless reports whether giving up has failed as often as the call did.
func hopeless(e effects.Effect) bool {
	return e.Failed.Handler > 2*effects.MaxHandlerFailures || e.Failed.Lost > 2*reducer.MaxWorkersLost
}

// withUsage returns the result of a call that was given up, with the usage of its sub-run.
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
	o.Run, o.Usage = c.subrun.ID, toolcall.Usage(e.usage)
	return toolcall.Outcome(o, c.batch)
}
