package effects

import (
	"cmp"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Model returns the model that is asked for the run's task type after the failures that the
// log holds, and whether another one follows that is asked when this one refuses or stays
// overloaded. It names its provider. A model without a name is the provider's own.
func Model(mem *reducer.Memory, before reducer.Attempt) (ref events.ModelRef, more bool) {
	list := listed(mem)
	at := max(min(before.Passed, len(list)-1), 0)
	if len(list) > 0 {
		ref = list[at]
	}
	ref.Provider = cmp.Or(ref.Provider, mem.Control.Agent.LLM.Provider)
	return ref, at < len(list)-1
}

// listed returns the models for the run's task type as the agent writes them.
func listed(mem *reducer.Memory) events.Models {
	agent := &mem.Control.Agent
	if list, ok := agent.Models[mem.TaskType]; ok {
		return list
	}
	return agent.Models["default"]
}

// awaitsClient reports whether the reply that the effect wants is the client's to give.
func awaitsClient(mem *reducer.Memory, e *Effect) bool {
	if e.Exhausted != "" || len(mem.Control.Queued) > 0 {
		return false
	}
	before := e.Failed
	if e.Kind == KindReflect {
		before = reducer.Attempt{} // the first model summarizes
	}
	ref, _ := Model(mem, before)
	return ref.Provider == events.ClientProvider
}
