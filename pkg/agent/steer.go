package agent

import (
	"context"
	"iter"
	"slices"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/pkg/events"
)

// Pause keeps the run from starting model calls and tools. Work in flight finishes. It
// changes nothing in a paused run.
func (r *Run) Pause(ctx context.Context, reason string) error {
	return r.reached(ctx)(r.service.host.Gateway().Pause(ctx, r.at.Namespace, r.at.ID, events.By{Reason: reason}))
}

// Resume lets the work of a paused run start again. For a run that is not paused the error
// is a *[Refused] with the code not_paused.
func (r *Run) Resume(ctx context.Context) error {
	return r.reached(ctx)(r.service.host.Gateway().Resume(ctx, r.at.Namespace, r.at.ID, events.By{}))
}

// RaiseBudget replaces the limits of the run's budget that are not 0.
func (r *Run) RaiseBudget(ctx context.Context, budget events.Budget) error {
	return r.reached(ctx)(r.service.host.Gateway().RaiseBudget(ctx, r.at.Namespace, r.at.ID, budget, events.By{}))
}

// ExpandContext lets the model see so many more messages; 0: as many as
// [Builder.ContextWindowStep] says. In a chat that waits for its user it applies to the next
// turn.
func (r *Run) ExpandContext(ctx context.Context, messages int) error {
	return r.input(ctx, control.ExpandContextWindow{Increment: messages})
}

// ShowCalls shows older calls to the model again, by their ids.
func (r *Run) ShowCalls(ctx context.Context, ids ...string) error {
	return r.input(ctx, control.AddToolCallsToContext{CallIDs: ids})
}

// input gives the run inputs, and waits until it has them.
func (r *Run) input(ctx context.Context, inputs ...control.Input) error {
	accepted, err := r.service.host.Gateway().Inputs(ctx, r.at.Namespace, r.at.ID, inputs)
	if err != nil {
		return refused(err)
	}
	return r.reach(ctx, accepted.N)
}

// reached returns a function that waits until the run has the result of a command.
func (r *Run) reached(ctx context.Context) func(runs.Result, error) error {
	return func(result runs.Result, err error) error {
		if err != nil {
			return refused(err)
		}
		return r.reach(ctx, result.N)
	}
}

// RunInfo is a run in a list: its id, state, number of events N, task and times.
type RunInfo = list.Run

// Runs yields the runs of the agent that are in its place and namespace, newest first. With
// states it yields only runs that are in one of them. An error is the last value.
func (a *Agent) Runs(ctx context.Context, states ...events.State) iter.Seq2[RunInfo, error] {
	return func(yield func(RunInfo, error) bool) {
		service, release, err := a.acquire(ctx)
		if err != nil {
			yield(RunInfo{}, err)
			return
		}
		defer func() { _ = release() }() // the list is complete, or its error is returned
		query := list.Query{Filters: list.Filters{"agent": a.def.Name}, Limit: list.MaxLimit}
		for {
			page, err := service.host.Gateway().Runs(ctx, a.namespace, query)
			if err != nil {
				yield(RunInfo{}, refused(err))
				return
			}
			for _, run := range page.Runs {
				if len(states) > 0 && !slices.Contains(states, run.State) {
					continue
				}
				if !yield(run, nil) {
					return
				}
			}
			if query.Cursor = page.Next; query.Cursor == "" {
				return
			}
		}
	}
}
