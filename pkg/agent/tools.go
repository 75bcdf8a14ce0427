package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

// Func makes a tool of a function whose input is a struct, or a map with string keys, see
// package typed. The model sees a string result as it is, and any other result as JSON. An
// error becomes an observation for the model. The function is called from several
// goroutines and must return soon after ctx ends.
//
// By default the tool is never run again when it is unknown whether it ran, see [Pure] and
// [Idempotent]. [Builder.Build] returns the errors of the definition.
func Func[In, Out any](name, description string, fn func(ctx context.Context, in In) (Out, error), options ...func(*tool.Definition)) tool.Tool {
	def := tool.Definition{Name: name, Description: description}
	for _, option := range options {
		option(&def)
	}
	t, err := typed.New(def, fn)
	if err != nil {
		return &brokenTool{def: def, err: err}
	}
	return t
}

// Pure says that a tool of [Func] changes nothing, so it may run any number of times.
func Pure(d *tool.Definition) { d.Effect = tool.Pure }

// Idempotent says that running a tool of [Func] twice for one call has the same effect as
// running it once.
func Idempotent(d *tool.Definition) { d.Effect = tool.Idempotent }

// Risk sets the risk of a tool of [Func], for approval policies.
func Risk(risk tool.Risk) func(*tool.Definition) {
	return func(d *tool.Definition) { d.Risk = risk }
}

// Attach keeps an image or another file with the result of the tool call that ctx belongs
// to, and returns words for the text of the result that name it and say where it is, or why
// it could not be kept. Models that take images and PDFs are shown them.
func Attach(ctx context.Context, mediaType string, data []byte) string {
	what := events.PartFile
	if strings.HasPrefix(mediaType, "image/") {
		what = events.PartImage
	}
	return callctx.Stored(ctx, what, mediaType, data)
}

// brokenTool replaces a tool that could not be made.
type brokenTool struct {
	def tool.Definition
	err error
}

func (t *brokenTool) Definition() tool.Definition { return t.def }

func (t *brokenTool) Run(context.Context, tool.Call) (string, error) { return "", t.err }

// broken returns the errors of tools that could not be made.
func broken(tools []tool.Tool) error {
	var errs []error
	for _, t := range tools {
		switch t := t.(type) {
		case nil:
			errs = append(errs, errors.New("a tool is nil"))
		case *brokenTool:
			errs = append(errs, t.err)
		}
	}
	return errors.Join(errs...)
}

// callee is another agent as a tool.
type callee struct {
	agent *Agent
	tool  subagent.Tool
}

// Callee says how another agent appears as a tool. Empty fields have defaults.
type Callee struct {
	// Name is the tool's name. Default: the agent's name, or transfer_to_NAME for a
	// hand-off.
	Name string
	// Description tells the model what the agent is for. Default: a sentence with the
	// agent's name.
	Description string
	// Risk is the risk of a call, for approval policies. Default low.
	Risk tool.Risk
	// Timeout bounds a sub-run. Default: only the budgets of both agents do.
	Timeout time.Duration
}

// Subagent makes another agent a tool with the argument task. A call starts a run of that
// agent, with its own log and a part of the caller's remaining budget. Options
// change the [Callee].
//
// Only the other agent's definition, model callers, tools and sources are used, not its
// namespace, place and logger. When the roles start, the definition is stored under the
// agent's name in the namespace of the caller and replaces one of that name.
func (b *Builder) Subagent(a *Agent, options ...func(*Callee)) *Builder {
	return b.callee(a, options, func(t *subagent.Tool, name string) { t.Agent = name })
}

// Handoff gives the agent a tool that hands the conversation over to another agent, which
// continues the same run. Options are as for [Builder.Subagent]; the default name is
// transfer_to_NAME.
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

// buildCallees adds the agents that the agent calls to its tools.
func (b *Builder) buildCallees(a *Agent) error {
	a.callees = slices.Clone(b.callees)
	for _, c := range a.callees {
		switch {
		case c.agent == nil:
			return errors.New("an agent to call is nil")
		case a.elsewhere:
			return fmt.Errorf("the roles run in other processes, and so do those of agent %s: name its tool by RemoteTools", c.agent.def.Name)
		case c.agent.elsewhere:
			return fmt.Errorf("agent %s is to be called, but its roles run in other processes: name its tool by RemoteTools", c.agent.def.Name)
		}
		def := c.tool.Definition()
		if err := def.Validate(); err != nil {
			return err
		}
		a.def.Tools = append(a.def.Tools, def.Name)
	}
	return nil
}

// called returns the agents that the given agents call, directly and indirectly, without
// duplicates and without the given ones. No agent calls itself, since it was built after
// its callees.
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

// addCallees adds an agent's callees as tools, and their definitions.
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
	}
	return nil
}

// distinct reports a tool that has the name of a callee.
func (o *serving) distinct() error {
	for _, t := range o.subagents {
		if name := t.Definition().Name; toolOf(o.tools, name) != nil {
			return fmt.Errorf("two tools are called %s, and one is an agent: rename one", name)
		}
	}
	return nil
}

// store stores the definitions of the agents that these call, in their namespaces.
func (s *service) store(ctx context.Context, callers []*Agent) error {
	for _, caller := range callers {
		for _, a := range called([]*Agent{caller}) {
			if _, err := s.host.Gateway().PutAgent(ctx, caller.namespace, a.def.Name, agentfile.Marshal(a.def), agentfile.JSON); err != nil {
				return fmt.Errorf("agent %s: %w", a.def.Name, err)
			}
		}
	}
	return nil
}
