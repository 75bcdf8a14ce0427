package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/pkg/tool"
)

// callee is another agent as a tool.
type callee struct {
	agent *Agent
	tool  subagent.Tool
}

// Callee says how another agent is a tool. What is empty has its default.
type Callee struct {
	// Name is the tool's name. Default: the agent's, for a hand-off transfer_to_NAME.
	Name string
	// Description tells the model what the agent is for. Default: a sentence with the
	// agent's name.
	Description string
	// Risk is that of a call, for approval policies. Default low.
	Risk tool.Risk
	// Timeout bounds a run that answers a call; 0: the budgets of both agents do.
	Timeout time.Duration
}

// Subagent makes another agent a tool with the argument task: a call is answered by
// a run of that agent, with a log of its own and a part of what is left of the
// caller's budget. Options change the [Callee].
//
// What counts of the other agent is its definition, with its model callers, tools
// and sources; its task, its place, its logger and what it was to do with outputs do
// not. When the roles start, the definition is stored under the agent's name in the
// default namespace, in the place of one that is there.
func (b *Builder) Subagent(a *Agent, options ...func(*Callee)) *Builder {
	return b.callee(a, options, func(t *subagent.Tool, name string) { t.Agent = name })
}

// Handoff gives the agent a tool that hands the conversation over to another one,
// which goes on in its place in the same run. Options are as for
// [Builder.Subagent]; the default name is transfer_to_NAME.
func (b *Builder) Handoff(a *Agent, options ...func(*Callee)) *Builder {
	return b.callee(a, options, func(t *subagent.Tool, name string) { t.Handoff = name })
}

func (b *Builder) callee(a *Agent, options []func(*Callee), name func(*subagent.Tool, string)) *Builder {
	var as Callee
	for _, option := range options {
		option(&as)
	}
	c := callee{agent: a, tool: subagent.Tool{Name: as.Name, Description: as.Description, Risk: as.Risk, Timeout: as.Timeout}}
	if a != nil { // else Build says so
		name(&c.tool, a.def.Name)
	}
	b.callees = append(b.callees, c)
	return b
}

// buildCallees takes in the agents that the agent calls, and names them among its
// tools.
func (b *Builder) buildCallees(a *Agent) error {
	a.callees = slices.Clone(b.callees)
	for _, c := range a.callees {
		switch {
		case c.agent == nil:
			return errors.New("an agent to call is nil")
		case a.elsewhere:
			return fmt.Errorf("the roles run elsewhere, and so do those of agent %s: name its tool by RemoteTools", c.agent.def.Name)
		case c.agent.elsewhere:
			return fmt.Errorf("agent %s is to be called, but its roles run elsewhere: name its tool by RemoteTools", c.agent.def.Name)
		}
		def := c.tool.Definition()
		if err := def.Validate(); err != nil {
			return err
		}
		a.def.Tools = append(a.def.Tools, def.Name)
	}
	return nil
}

// called are the agents that the given ones call, directly and not, each once and
// none of the given ones. No agent calls itself: it was built after those it calls.
func called(agents []*Agent) []*Agent {
	all := slices.Clone(agents)
	for i := 0; i < len(all); i++ {
		for _, c := range all[i].callees {
			if !slices.Contains(all, c.agent) {
				all = append(all, c.agent)
			}
		}
	}
	return all[len(agents):]
}

// addCallees takes in the tools that an agent's callees are, and their definitions.
func (o *serving) addCallees(a *Agent) error {
	for _, c := range a.callees {
		name := c.tool.Definition().Name
		i := slices.IndexFunc(o.subagents, func(t subagent.Tool) bool { return t.Definition().Name == name })
		switch {
		case i < 0:
			o.subagents = append(o.subagents, c.tool)
		case o.subagents[i] != c.tool:
			return fmt.Errorf("two tools are called %s: give the agents the same one, or other names", name)
		}
		if !slices.Contains(o.stored, c.agent) {
			o.stored = append(o.stored, c.agent)
		}
	}
	return nil
}

// distinct reports a tool with the name of an agent's.
func (o *serving) distinct() error {
	for _, t := range o.subagents {
		if name := t.Definition().Name; toolOf(o.tools, name) != nil {
			return fmt.Errorf("two tools are called %s, and one is an agent: rename one", name)
		}
	}
	return nil
}

// store keeps the definitions of the agents that are called.
func (s *service) store(ctx context.Context, agents []*Agent) error {
	for _, a := range agents {
		if _, err := s.host.Gateway().PutAgent(ctx, "", a.def.Name, agentfile.Marshal(a.def), agentfile.JSON); err != nil {
			return fmt.Errorf("agent %s: %w", a.def.Name, err)
		}
	}
	return nil
}
