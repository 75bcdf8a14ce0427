package gateway

import (
	"context"
	"errors"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// one is the decision for a single event.
func one(origin events.State, p events.Payload) ([]runlog.Draft, error) {
	return []runlog.Draft{{Origin: origin, Payload: p}}, nil
}

// Pause keeps new model calls and tools of a run from starting. A paused run
// stays as it is.
func (g *Gateway) Pause(ctx context.Context, ns, id string, by events.By) (Result, error) {
	return g.change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if mem.Control.Paused {
			return nil, nil
		}
		return one(events.Control, &events.Paused{By: by})
	})
}

// Resume lets a paused run's work start again. What was in flight when the run was
// paused goes on. Model calls and calls of `once` tools that are still in flight are not
// begun again, whichever process has them. A call of a pure or idempotent tool may run
// again, under the same key, if another actor than the one that has it in flight gets
// the resumed run; the first outcome counts. A run that is not paused is a conflict,
// not_paused.
func (g *Gateway) Resume(ctx context.Context, ns, id string, by events.By) (Result, error) {
	return g.change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if !mem.Control.Paused {
			e := conflict(CodeNotPaused, "the run is in state %s and not paused, so there is nothing to resume", mem.State)
			e.Fields = map[string]any{"run": mem.RunID, "state": mem.State, "n": mem.N}
			return nil, e
		}
		return one(events.Control, &events.Resumed{By: by})
	})
}

// Close ends a conversation that waits for its user; a run in any other state is
// a conflict.
func (g *Gateway) Close(ctx context.Context, ns, id string, by events.By) (Result, error) {
	result, err := g.change(ctx, ns, id, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if mem.State != events.WaitingForUser {
			e := conflict(CodeNotWaiting, "the run is in state %s and not waiting for its user; cancel it to end it now", mem.State)
			e.Fields = map[string]any{"run": mem.RunID, "state": mem.State, "n": mem.N}
			return nil, e
		}
		return one(events.WaitingForUser, &events.Closed{By: by})
	})
	var ended *Error
	if errors.As(err, &ended) && ended.Code == CodeRunEnded {
		ended.Code = CodeNotWaiting // a run that has ended waits for nobody
	}
	return result, err
}

// RaiseBudget replaces the limits that budget names (those that are not 0).
func (g *Gateway) RaiseBudget(ctx context.Context, ns, id string, budget events.Budget, by events.By) (Result, error) {
	if budget == (events.Budget{}) {
		return Result{}, badRequest(CodeBadRequest, "names no limit; give at least one of max_input_tokens, max_output_tokens, max_total_tokens, max_cost_usd, max_wall_time")
	}
	if err := budget.Check(); err != nil {
		return Result{}, badRequest(CodeBadRequest, "%s", err.Error())
	}
	result, err := g.change(ctx, ns, id, func(*reducer.Memory) ([]runlog.Draft, error) {
		return one(events.Control, &events.BudgetRaised{Budget: budget, By: by})
	})
	if err != nil || budget.MaxWallTime == 0 {
		return result, err
	}
	// The run may have less time now than its timer knows of.
	return result, g.look(ctx, ns, id, func(run *runlog.Run) error { return g.rearm(ctx, run, timerRun, watch{}) })
}
