package subagent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Tool is an agent as a tool.
type Tool struct {
	// Name is the tool's name. Default: the agent's.
	Name string
	// Agent names the stored definition that answers a call, in the caller's namespace.
	Agent string
	// Handoff, instead of Agent, names the stored definition that takes over the caller's
	// conversation.
	Handoff string
	// Description tells the model what the agent is for. Default: a sentence with
	// the agent's name.
	Description string
	// Risk is that of a call. Default low.
	Risk tool.Risk
	// Timeout bounds the wall time of a run that answers a call. 0: only the budgets of
	// the agent and the caller do.
	Timeout time.Duration
}

// schema is the schema of a call's one argument.
var schema = json.RawMessage(`{"type":"object","properties":{"task":{"type":"string","minLength":1,"description":"what is to be done, with all that is needed to do it"}},"required":["task"],"additionalProperties":false}`)

// Definition returns the tool as it is announced, defaults applied.
func (t Tool) Definition() tool.Definition {
	if t.Handoff != "" {
		return t.handoff()
	}
	def := tool.Definition{
		Name: cmp.Or(t.Name, t.Agent), Description: t.Description, Schema: schema,
		Effect: tool.Idempotent, Pool: events.AgentsPool, Risk: t.Risk, Timeout: t.Timeout,
	}
	if def.Description == "" {
		def.Description = fmt.Sprintf("Hands a task to the agent %s and returns its answer. The agent knows nothing but the task.", t.Agent)
	}
	return def.WithDefaults()
}

func (t Tool) check() error {
	if (t.Agent == "") == (t.Handoff == "") {
		return fmt.Errorf("tool %q: is exactly one of agent and handoff", t.Name)
	}
	if name := cmp.Or(t.Agent, t.Handoff); !events.ValidToken(name) {
		return fmt.Errorf("tool %q: agent %q is not an agent's name; use [a-z0-9][a-z0-9_-]{0,62}", t.Name, name)
	}
	return t.Definition().Validate()
}

// addTools checks the tools and stores them by name.
func (s *Subagents) addTools() error {
	var errs []error
	for _, t := range s.cfg.Tools {
		def := t.Definition()
		if err := t.check(); err != nil {
			errs = append(errs, fmt.Errorf("subagent: %w", err))
			continue
		}
		if _, twice := s.tools[def.Name]; twice {
			errs = append(errs, fmt.Errorf("subagent: tool %q: two agents have this name; rename or remove one", def.Name))
			continue
		}
		s.tools[def.Name] = t
		s.specs = append(s.specs, events.ToolSpec{
			Name: def.Name, Description: def.Description, Schema: def.Schema,
			Effect: string(def.Effect), Pool: def.Pool, Risk: string(def.Risk),
		})
	}
	slices.SortFunc(s.specs, func(a, b events.ToolSpec) int { return strings.Compare(a.Name, b.Name) })
	return errors.Join(errs...)
}

// definition is the [toolcall.Lookup] of the role's own tools.
func (s *Subagents) definition(name string) (tool.Definition, bool) {
	t, ok := s.tools[name]
	if !ok {
		return tool.Definition{}, false
	}
	return t.Definition(), true
}
