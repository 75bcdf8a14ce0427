package reducer

import (
	"errors"

	"github.com/moorebus/moorebus/pkg/events"
)

// checkHandOff says whether a call may have the run go over to another agent: it is
// the last one of its reply, so that no agent's call goes out under another one.
func (mem *Memory) checkHandOff(p *events.HandedOff) error {
	if err := mem.checkOpen(p.CallID, only[p.Type()]...); err != nil {
		return err
	}
	switch call := mem.Call(p.CallID); {
	case mem.Control.Batch || len(mem.Control.Queued) > 0:
		return errors.New("is asked for beside other calls")
	case !call.Delegated():
		return errors.New("is asked for by a call of another pool")
	case call.HandedOff:
		return errors.New("stands there twice")
	case p.Agent.Name == "" || p.AgentHash == "":
		return errors.New("names no agent")
	}
	return nil
}

// checkPlace holds an event to the pool of its subject where that says who may have
// published it: all actors own Acting, and only that of the agents may change whose
// rules a run goes by.
func checkPlace(s events.Subject, e *events.Event) error {
	if e.Type() == events.TypeHandedOff && (s.Pool != events.AgentsPool || s.To != events.Nobody) {
		return errors.New("HandedOff comes from the actor of agents alone")
	}
	return nil
}

// handOff makes another agent's definition that of the run. The conversation, all
// counts, the mode, the budget and how deep agents may call agents stay the run's.
func (mem *Memory) handOff(p *events.HandedOff) {
	budget, depth, window := mem.Budget, mem.Config.MaxDepth, mem.Config.ContextWindowSize
	mem.pin(p.Agent, p.AgentHash, p.Tools)
	mem.Budget, mem.Config.MaxDepth = budget, depth
	if r := mem.ReactContext; r != nil && mem.Config.ContextWindowSize != window {
		r.ContextWindowSize = mem.Config.ContextWindowSize
	}
	mem.Call(p.CallID).HandedOff = true
}
