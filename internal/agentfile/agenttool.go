package agentfile

import (
	"fmt"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/events"
)

// HandoffPrefix begins the usual name of a tool that hands a conversation over.
const HandoffPrefix = "transfer_to_"

// OfAgent reports whether the entry makes an agent a tool. Such a tool has nothing to
// run of its own, and belongs to the pool of agents.
func (t *ToolEntry) OfAgent() bool { return t.Agent != "" || t.Handoff != "" }

// usualName is the name of an entry that gives none.
func (t *ToolEntry) usualName() string {
	switch {
	case t.Agent != "":
		return t.Agent
	case t.Handoff != "":
		return HandoffPrefix + t.Handoff
	}
	return t.Builtin
}

// agentProblems is what is wrong with an entry that makes an agent a tool.
func (t *ToolEntry) agentProblems() []error {
	var errs []error
	for key, name := range map[string]string{"agent": t.Agent, "handoff": t.Handoff} {
		if name != "" && !events.ValidToken(name) {
			errs = append(errs, fmt.Errorf(".%s: %q is not an agent's name; use [a-z0-9][a-z0-9_-]{0,62}", key, name))
		}
	}
	if t.Pool != "" && t.Pool != events.AgentsPool {
		errs = append(errs, fmt.Errorf(".pool: agents are called in the pool %q alone; leave this key out", events.AgentsPool))
	}
	for key, set := range map[string]bool{
		"schema": len(t.Schema) > 0, "effect": t.Effect != "", "retries": t.Retries != 0, "breaker": t.Breaker != nil,
		"timeout": t.Handoff != "" && t.Timeout != 0,
	} {
		if set {
			errs = append(errs, fmt.Errorf(".%s: does not belong to this kind of tool; leave it out", key))
		}
	}
	return errs
}

// checkZeroTimeout refuses a timeout of 0 for the i-th tool of a file, an agent:
// a call of it could not end in time.
func (t *ToolEntry) checkZeroTimeout(file *strict.Node, i int) error {
	if !t.OfAgent() || t.Timeout != 0 {
		return nil
	}
	tools := file.Get("tools")
	if tools == nil || i >= len(tools.Items) {
		return nil
	}
	if n := tools.Items[i].Get("timeout"); n != nil && isZero(n) {
		return n.Errorf(fmt.Sprintf("tools[%d].timeout", i), "is 0, which no call could meet; leave it out for no limit but the run's own")
	}
	return nil
}
