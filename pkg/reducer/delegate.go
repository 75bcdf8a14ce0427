package reducer

import (
	"github.com/moorebus/moorebus/pkg/events"
)

// Delegated reports whether the call is answered by a run of its own. Once that
// run is in the log, a ToolCallStarted says so and no delivery is responsible for
// the call any more: the other run's end brings the answer.
func (c *CallState) Delegated() bool { return c.Pool == events.AgentsPool }

// Waits reports whether the call was handed to a run of its own and has no answer
// yet.
func (c *CallState) Waits() bool {
	return c.Delegated() && !c.Answered && c.Started > 0 && c.Started >= c.Wake
}

// Delegated returns the ids of the calls that runs of their own are to answer and
// have not.
func (mem *Memory) Delegated() []string {
	var ids []string
	for i := range mem.Control.Calls {
		if call := &mem.Control.Calls[i]; call.Delegated() && !call.Answered {
			ids = append(ids, call.ID)
		}
	}
	return ids
}

// delegatedEffect adds the work on a call that a run of its own answers: to start
// that run, which may be done over and over. It is due until a ToolCallStarted
// follows what woke it, so that Resumed and Forked drive it once more. Nobody
// concludes that its outcome is unknown.
func (mem *Memory) delegatedEffect(effects []Effect, call *CallState) []Effect {
	if call.Started >= call.Wake {
		return effects
	}
	return append(effects, mem.held(mem.judged(Effect{
		Key:  callKey(KindTool, mem.Control.Armed, call.ID),
		Kind: KindTool, State: mem.State, CallID: call.ID, Wake: call.Wake,
	})))
}

// settle adds what the run that answered a call has used to what this one has.
// Nothing becomes less by it, whoever says so.
func (mem *Memory) settle(o *events.ToolOutcome) {
	call, u := mem.Call(o.CallID), o.Usage
	if u == nil || call == nil || !call.Delegated() {
		return
	}
	used := events.Usage{Input: max(0, u.Input), Output: max(0, u.Output), Cached: max(0, u.Cached), Total: max(0, u.Total)}
	if u.CostUSD != nil {
		cost := max(0, *u.CostUSD)
		used.CostUSD = &cost
	}
	mem.addUsage(used)
}
