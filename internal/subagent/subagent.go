// Package subagent is the role that makes an agent a tool of others. It owns the states
// Acting and ParallelActing of the reserved pool `agents`, and starts runs.
//
// A call of such a tool is answered by its own run, the sub-run. Its id follows from
// the parent's and the call's, so there is one sub-run however often the delivery comes.
// Once its Start is in the log, the parent gets a ToolCallStarted and the delivery is
// acknowledged: a parent that waits holds no delivery. The end of the sub-run comes to
// pool `agents`, and the worker that gets it answers the parent. So nothing that waits is
// in a process's memory, and every process may die at any moment.
package subagent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

const role = "subagent"

// firstCheck is how soon a gateway first checks a sub-run.
const firstCheck = time.Minute

// Config configures a [Subagents].
type Config struct {
	worker.Base
	// KV has the announced agents and their definitions, and Timers takes the timers of runs. Both
	// are required.
	KV     kv.Store
	Timers journal.Timers
	// Tombstones say which runs were purged. Nil: none are.
	Tombstones kv.Store
	// Tools are the agents that can be called. Without tools, calls are answered with
	// not_found, and the ends of sub-runs still go to their parents.
	Tools []Tool
	// Blobs takes answers that are too large; nil cuts them. Results bounds them.
	Blobs   journal.Blobs
	Results toolcall.Results
	// Approval evaluates approval policies. Default: those of package approval.
	Approval toolcall.Approval
	// Validator, CheckScript and CheckApproval check stored definitions, as for runs that
	// people start. Nil: they are not checked.
	Validator     tool.Validator
	CheckScript   func(script json.RawMessage) error
	CheckApproval func(*events.Approval) error
	// CheckEstimator is the gateway's. Nil: every name is accepted.
	CheckEstimator func(name string) error
}

// On returns the configuration with all that a bus gives the role, but for tombstones.
func (c Config) On(bus journal.Bus) Config {
	c.Queue, c.Feed, c.KV, c.Timers, c.Blobs = bus, bus, bus, bus, bus
	return c
}

// Subagents is the role. Make it with [New], use it once.
type Subagents struct {
	cfg    Config
	table  *reducer.Table
	source string
	tools  map[string]Tool
	specs  []events.ToolSpec
	guard  *toolcall.Guard
	// elsewhere is for calls of agents that other actors of the pool have.
	elsewhere *toolcall.Elsewhere
	launcher  *runstart.Launcher
	worker    *worker.Worker
}

// New checks the configuration.
func New(cfg Config) (*Subagents, error) {
	var err error
	if cfg.Base, err = cfg.WithDefaults(role); err != nil {
		return nil, err
	}
	s := &Subagents{
		table: cfg.Store.Machine().Table(), source: worker.Source(role, cfg.Instance), tools: map[string]Tool{}, specs: []events.ToolSpec{},
	}
	if cfg.Results, err = cfg.Results.Prepare(cfg.Store.MaxBody); err != nil {
		return nil, fmt.Errorf("subagent: %w", err)
	}
	s.cfg = cfg
	if err := s.addTools(); err != nil {
		return nil, err
	}
	if s.guard, err = toolcall.NewGuard(cfg.Store, cfg.Approval, s.definition); err != nil {
		return nil, err
	}
	s.launcher, err = runstart.New(runstart.Config{
		Store: cfg.Store, Source: s.source, KV: cfg.KV, Timers: cfg.Timers, Tombstones: cfg.Tombstones,
		Validator: cfg.Validator, CheckScript: cfg.CheckScript, CheckApproval: cfg.CheckApproval, CheckEstimator: cfg.CheckEstimator, FirstCheck: firstCheck, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	s.elsewhere = toolcall.NewElsewhere(s.launcher.Directory(), cfg.Logger)
	s.worker, err = worker.New(worker.Config{
		Role: role, Base: cfg.Base, Inboxes: Inboxes(s.table),
		Handlers: map[effects.Kind]worker.Handler{
			effects.KindTool: worker.HandlerFunc(s.prepare),
			effects.KindJoin: worker.HandlerFunc(toolcall.Join),
		},
		GiveUp: map[effects.Kind]worker.Handler{effects.KindTool: worker.HandlerFunc(s.giveUp)},
		Peers:  toolcall.PeersOf(cfg.Queue), Lends: s.lends, Arrived: s.arrived,
	})
	return s, err
}

// Inboxes returns what the role consumes: calls of agents, and the ends of the runs that
// answer them.
func Inboxes(t *reducer.Table) []journal.Inbox {
	ends := journal.Inbox{Pool: events.AgentsPool}
	for _, state := range t.States() {
		if t.Terminal(state) {
			ends.States = append(ends.States, state)
		}
	}
	return []journal.Inbox{{States: []events.State{events.Acting, events.ParallelActing}, Pool: events.AgentsPool}, ends}
}

// Announce announces once which agents can be called. Run repeats it.
func (s *Subagents) Announce(ctx context.Context) error {
	if err := s.worker.Offer(events.AgentsPool, toolcall.Names(s.specs)); err != nil {
		return err
	}
	return s.launcher.Directory().Announce(ctx, events.AgentsPool, s.cfg.Instance, s.specs)
}

// Withdraw withdraws the announcement. The error is the bus's; then it expires.
func (s *Subagents) Withdraw(ctx context.Context) error {
	return s.launcher.Directory().Withdraw(ctx, events.AgentsPool, s.cfg.Instance)
}

// Run announces the agents and works until ctx ends. Then it withdraws the announcement.
func (s *Subagents) Run(ctx context.Context) error {
	return announce.During(ctx, s.cfg.Logger, s.Announce, s.Withdraw, s.worker.Run)
}

// Step works on one delivery.
func (s *Subagents) Step(ctx context.Context) error { return s.worker.Step(ctx) }

// Ready returns nil if the bus has the consumers that the role needs.
func (s *Subagents) Ready(ctx context.Context) error { return s.worker.Ready(ctx) }

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
	// Approval is the policy of the tool's own file.
	Approval *tool.Approval
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
		Effect: tool.Idempotent, Pool: events.AgentsPool, Risk: t.Risk, Timeout: t.Timeout, Approval: t.Approval,
	}
	if def.Description == "" {
		def.Description = fmt.Sprintf("Hands a task to the agent %s and returns its answer. The agent knows nothing but the task.", t.Agent)
	}
	return def.WithDefaults()
}

func (t Tool) check() error {
	if (t.Agent == "") == (t.Handoff == "") {
		return fmt.Errorf("tool %q: give exactly one of agent and handoff", t.Name)
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
			Effect: string(def.Effect), Pool: def.Pool, Risk: string(def.Risk), Approval: toolcall.OwnApproval(def),
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

// CodeHandOffAlone is the code of a hand-off that is not the only call of its reply.
const CodeHandOffAlone = "handoff_alone"

// handoffSchema is the schema of a hand-off: an optional reason.
var handoffSchema = json.RawMessage(`{"type":"object","properties":{"reason":{"type":"string","description":"why the other agent is to go on"}},"additionalProperties":false}`)

// handoff is the definition of a tool that hands the conversation over.
func (t Tool) handoff() tool.Definition {
	def := tool.Definition{
		Name: cmp.Or(t.Name, agentfile.HandoffPrefix+t.Handoff), Description: t.Description, Schema: handoffSchema,
		Effect: tool.Idempotent, Pool: events.AgentsPool, Risk: t.Risk, Approval: t.Approval,
	}
	if def.Description == "" {
		def.Description = fmt.Sprintf("Hands this conversation over to the agent %s, who knows all of it and goes on in your place.", t.Handoff)
	}
	return def.WithDefaults()
}

// handOver continues the run under another agent and answers the call. If the worker dies
// in between, the next one answers. The error is a store's.
func (s *Subagents) handOver(ctx context.Context, c call, t Tool) (worker.Result, error) {
	if c.batch || c.queued {
		return c.failed(CodeHandOffAlone, fmt.Sprintf("%s was not called: a hand-off has to be the only call of a reply", c.Name)), nil
	}
	p, err := s.pinHandOff(ctx, c, t)
	var failure *tool.Failure
	switch {
	case errors.As(err, &failure):
		return c.failed(failure.Code, failure.Message), nil
	case err != nil:
		return worker.Result{}, err
	}
	return worker.Then(p, func(context.Context) worker.Result { return handedOver(c.ID) }), nil
}

// handedOver answers a call that has handed the conversation over.
func handedOver(call string) worker.Result {
	return worker.Done(toolcall.Outcome(events.ToolOutcome{
		CallID: call, Success: true, Code: codes.OK, Observation: codes.SuccessPrefix + "the conversation was handed over",
	}, false))
}

// pinHandOff pins the other agent as it is stored now.
func (s *Subagents) pinHandOff(ctx context.Context, c call, t Tool) (*events.HandedOff, error) {
	var arguments struct {
		Reason string `json:"reason"`
	}
	if text := strings.TrimSpace(c.Arguments); text != "" && json.Unmarshal([]byte(text), &arguments) != nil {
		return nil, tool.Failf(tool.CodeInvalidArguments, "%s takes {\"reason\": \"why\"}", c.Name)
	}
	a, hash, err := s.launcher.Definition(ctx, c.run.Namespace, t.Handoff)
	if err != nil {
		return nil, failureOf(err)
	}
	start, err := s.pinWhenThere(ctx, a, runstart.Task{Mode: c.mode, Pools: c.pools, AgentHash: hash})
	if err != nil {
		return nil, failureOf(err)
	}
	return &events.HandedOff{
		Agent: start.Agent, AgentHash: start.AgentHash, Tools: start.Tools, CallID: c.ID,
		Reason: strings.ToValidUTF8(arguments.Reason, "\uFFFD"),
	}, nil
}
