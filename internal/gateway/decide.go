package gateway

import (
	"context"

	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// inbox is what wakes the gateway: the last decision on a batch of calls.
var inbox = journal.Inbox{States: []events.State{events.WaitingForHuman}, Pool: events.DefaultPool}

// planDecide ends a batch whose calls are all decided: it goes on unless every
// one of its calls was rejected.
func planDecide(_ events.Run, mem *reducer.Memory, _ reducer.Effect) worker.Work {
	var outcome events.Payload = &events.HumanRejected{}
	if callsLeft(mem) {
		outcome = &events.HumanApprovedParallel{}
	}
	return func(context.Context) worker.Result { return worker.Done(outcome) }
}

// callsLeft reports whether a call of the batch is left to run: one that was
// accepted, or one that nobody had to decide on.
func callsLeft(mem *reducer.Memory) bool {
	left := len(mem.Control.Calls)
	if a := mem.PendingApproval; a != nil {
		for _, d := range a.Decisions {
			if d.Decision == events.DecisionRejected {
				left--
			}
		}
	}
	return left > 0
}
