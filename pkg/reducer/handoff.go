package reducer

import (
	"errors"

	"github.com/moorebus/moorebus/pkg/events"
)

// checkHandOff says whether a call may have the run go over to another agent: it is
// the last one of its reply, so that no agent's call goes out under another one.
func (mem *Memory) checkHandOff(p *events.HandedOff) error {
	if err := mem.checkOpen(p.CallID, only[events.TypeOf(p)]...); err != nil {
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

// handOff makes another agent's definition that of the run. The conversation, the
// memory and its storage, the counts, the mode, the budget and how deep agents may
// call agents stay the run's. The safety cap is the new agent's and counts from
// here, so that it never ends the run before the new agent's max_steps do: steps go
// on, and each hand-off takes one.
func (mem *Memory) handOff(p *events.HandedOff) {
	budget, depth := mem.Budget, mem.Config.MaxDepth
	mem.pinAnother(p.Agent, p.AgentHash, p.Tools)
	mem.Budget, mem.Config.MaxDepth = budget, depth
	mem.Control.SinceUser.Changes = 0
	mem.Call(p.CallID).HandedOff = true
}

// pinAnother is pin in the middle of a loop, whose context is made what it would be
// under the new definition: its window, and which calls belong to it.
func (mem *Memory) pinAnother(a events.Agent, hash string, tools []events.ToolSpec) {
	window, text := mem.Config.ContextWindowSize, mem.SpeaksText()
	mem.pin(a, hash, tools)
	r := mem.ReactContext
	if r == nil {
		return
	}
	if mem.Config.ContextWindowSize != window {
		r.ContextWindowSize = mem.Config.ContextWindowSize
		r.changeEdits(func(e *Edit) { e.Widened = 0 })
	}
	switch {
	case mem.SpeaksText() && !text:
		// The window alone decides; what was said of shown calls goes with them.
		r.ContextWindowSize, r.ToolCallIDs, r.Edits = mem.Config.ContextWindowSize, []string{}, nil
		mem.forgetInternal(nil)
	case text && !mem.SpeaksText():
		mem.addCallsToContext(mem.loopCalls())
	}
}

// loopCalls are the calls that the model made in the current loop, as far as no
// summary stands for them.
func (mem *Memory) loopCalls() []string {
	var ids []string
	for _, t := range mem.Control.Turns {
		for _, id := range t.Calls {
			if record := mem.ToolCalls[id]; record != nil && !record.Timestamp.Before(mem.ReactContext.StartedAt) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
