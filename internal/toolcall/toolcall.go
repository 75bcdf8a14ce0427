// Package toolcall is what the actors of all pools have in common: the guard that stops
// calls without their approval, loans of calls, the form of results in the log, and the
// end of a batch.
package toolcall

import (
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Outcome returns the event of a call's outcome.
func Outcome(o events.ToolOutcome, batch bool) events.Payload {
	switch {
	case batch:
		return &events.ToolCallResult{ToolOutcome: o}
	case o.Success:
		return &events.ToolSuccess{Outcome: &o}
	}
	return &events.ToolFailure{Outcome: &o}
}

// Usage returns the usage of the run that answered a call, for the call's outcome.
func Usage(t reducer.TotalUsage) *events.Usage {
	u := &events.Usage{Input: t.Input, Output: t.Output, Cached: t.Cached, Total: t.Total}
	if t.Cost > 0 {
		cost := t.Cost
		u.CostUSD = &cost
	}
	return u
}

// Join is the [worker.HandlerFunc] that ends a batch when all its results are in the log.
func Join(_ events.Run, mem *reducer.Memory, _ effects.Effect) worker.Work {
	var p events.Payload = &events.ToolFailure{}
	if slices.ContainsFunc(mem.ParallelResults, func(r reducer.ToolResult) bool { return r.Success }) {
		p = &events.ToolSuccess{}
	}
	return func(context.Context) worker.Result { return worker.Done(p) }
}

// NoCurrentCall is work that ends a run which has no call to run.
func NoCurrentCall(context.Context) worker.Result {
	return worker.Done(&events.FatalError{Outcome: events.Outcome{Code: reducer.CodeNoCurrentCall, Message: "there is no tool call to run"}})
}

// Names are the names of tools.
func Names(tools []events.ToolSpec) []string {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
	}
	return names
}
