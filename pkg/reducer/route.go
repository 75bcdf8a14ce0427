package reducer

import (
	"github.com/moorebus/moorebus/pkg/events"
)

// Route returns where an event goes that is about to be appended to the run:
// the `<to>` and the `<pool>` of its subject. It is a function of the memory
// before the event and the payload; the event must be legal there.
func Route(t *Table, mem *Memory, p events.Payload) (to events.State, pool string) {
	switch p := p.(type) {
	case *events.ToolCallDispatched:
		return events.ParallelActing, mem.poolOf(p.CallID)
	case *events.ToolCallResult:
		if mem.openCalls() == 1 {
			return events.ParallelActing, mem.joinPool(&p.ToolOutcome)
		}
		return events.Nobody, events.DefaultPool
	case *events.HandedOff:
		return events.Nobody, events.AgentsPool
	case *events.HumanDecision:
		if a := mem.PendingApproval; a != nil && len(a.Decisions)+1 >= len(a.Requests) {
			return events.WaitingForHuman, events.DefaultPool
		}
		return events.Nobody, events.DefaultPool
	case *events.Resumed:
		return mem.redrive()
	case *events.Forked:
		return mem.forkRoute(p)
	case *events.ContextWindowExpanded, *events.ToolCallsAddedToContext:
		// What follows a part of a reply is appended with it, so nobody has to be
		// woken by it.
		if r := events.ReplyOf(p); mem.State == events.Planning && (r == nil || !r.Part) {
			return events.Planning, events.DefaultPool
		}
		return events.Nobody, events.DefaultPool
	case *events.LLMParallelToolCalls:
		return mem.batchRoute(p.Calls)
	case *events.LLMToolCall:
		return events.Acting, mem.toolPool(p.Calls[0].Name)
	case *events.HumanApproved, *events.HumanModified:
		return events.Acting, mem.Control.Calls[0].Pool
	case *events.HumanApprovedParallel:
		return mem.approvedRoute()
	}
	if !t.Transition(mem.State, events.TypeOf(p)) {
		return events.Nobody, events.DefaultPool
	}
	next, _ := t.Next(mem.State, events.TypeOf(p))
	if t.Terminal(next) && mem.Control.Parent != nil {
		return next, events.AgentsPool
	}
	return next, events.DefaultPool
}

func (mem *Memory) toolPool(name string) string {
	if pool := mem.Tools[name].Pool; pool != "" {
		return pool
	}
	return events.DefaultPool
}

func (mem *Memory) poolOf(callID string) string {
	if call := mem.Call(callID); call != nil {
		return call.Pool
	}
	return events.DefaultPool
}

// batchRoute sends a new batch to its pool, or to nobody when it has several:
// then each call is dispatched by an event of its own.
func (mem *Memory) batchRoute(calls []events.Call) (events.State, string) {
	pool := mem.toolPool(calls[0].Name)
	for _, call := range calls[1:] {
		if mem.toolPool(call.Name) != pool {
			return events.Nobody, events.DefaultPool
		}
	}
	return events.ParallelActing, pool
}

func (mem *Memory) approvedRoute() (events.State, string) {
	if pool, one := mem.singlePool(); one {
		return events.ParallelActing, pool
	}
	return events.Planning, events.DefaultPool
}

// singlePool returns the pool that all calls of the batch share.
func (mem *Memory) singlePool() (string, bool) {
	calls := mem.Control.Calls
	if len(calls) == 0 {
		return "", false
	}
	for _, call := range calls[1:] {
		if call.Pool != calls[0].Pool {
			return "", false
		}
	}
	return calls[0].Pool, true
}

// redrive is where the current state's work is driven once more.
func (mem *Memory) redrive() (events.State, string) {
	switch mem.State {
	case events.Acting:
		if len(mem.Control.Calls) > 0 {
			return events.Acting, mem.Control.Calls[0].Pool
		}
	case events.ParallelActing:
		if mem.openCalls() == 0 {
			return events.ParallelActing, mem.Control.LastResult
		}
		return mem.approvedRoute()
	}
	return mem.State, events.DefaultPool
}
