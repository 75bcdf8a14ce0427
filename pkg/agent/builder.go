package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Builder makes an [Agent] of Go values. Of settings that are given twice the
// last one holds; lists grow. It is not safe for concurrent use.
type Builder struct {
	def         events.Agent
	task        string
	taskType    string
	caller      llm.Caller
	provider    string
	providers   map[string]llm.Caller
	tools       []tool.Tool
	remoteTools []string
	sources     []opener
	callees     []callee
	graph       *Graph
	prices      llm.Prices
	estimators  tokens.Set
	onOutput    func(Output)
	place       place
	elsewhere   bool
	logger      *slog.Logger
}

// New begins an agent for a task.
func New(task string) *Builder {
	b := &Builder{def: events.DefaultAgent(), task: task, providers: map[string]llm.Caller{}}
	b.def.Name = "agent"
	return b
}

// Name sets the agent's name. Default "agent". Agents on one server have names of
// their own, and so have different agents on one bus, see [Serve].
func (b *Builder) Name(name string) *Builder { b.def.Name = name; return b }

// TaskType sets the type of the task, which chooses the model.
func (b *Builder) TaskType(taskType string) *Builder { b.taskType = taskType; return b }

// SystemPrompt sets what the model is told first, verbatim.
func (b *Builder) SystemPrompt(prompt string) *Builder { b.def.SystemPrompt = prompt; return b }

// Chat makes it an agent for conversations: it answers the task and waits for the
// next message, see [Run.Send].
func (b *Builder) Chat() *Builder { b.def.Mode = events.ModeChat; return b }

// LLM sets the model caller. There is no agent without one.
func (b *Builder) LLM(caller llm.Caller) *Builder { b.caller, b.provider = caller, ""; return b }

// Provider offers a model caller to the runs of this process under a name, beside
// that of [Builder.LLM]. See [Builder.Use].
func (b *Builder) Provider(name string, caller llm.Caller) *Builder {
	b.providers[name] = caller
	return b
}

// Use makes the agent ask the provider of that name: one of [Builder.Provider], or
// one that a planner elsewhere has. It takes the place of [Builder.LLM].
func (b *Builder) Use(provider string) *Builder { b.caller, b.provider = nil, provider; return b }

// Model sets the model that is asked by default.
func (b *Builder) Model(name string) *Builder { return b.ModelFor("default", name) }

// ModelFor sets the model for a type of task.
func (b *Builder) ModelFor(taskType, name string) *Builder {
	if b.def.Models == nil {
		b.def.Models = map[string]string{}
	}
	b.def.Models[taskType] = name
	return b
}

// Sampling sets temperature and the like, all of them at once; nil and zero leave a
// setting to the provider.
func (b *Builder) Sampling(s llm.Sampling) *Builder {
	l := &b.def.LLM
	l.Temperature, l.TopP, l.Seed, l.MaxTokens, l.Stop, l.ThinkingTokens = s.Temperature, s.TopP, s.Seed, s.MaxTokens, s.Stop, s.ThinkingTokens
	return b
}

// ThinkingTokens lets the model think before it answers, for at most n tokens: at
// least 1024, or 0 for not at all. Models that cannot do that
// ignore it.
func (b *Builder) ThinkingTokens(n int) *Builder { b.def.LLM.ThinkingTokens = n; return b }

// Tool gives the agent tools, see [Func].
func (b *Builder) Tool(tools ...tool.Tool) *Builder { b.tools = append(b.tools, tools...); return b }

// RemoteTools gives the agent tools that actors elsewhere run, by name, or as "pool/name"
// where several pools have a tool of the name. The model calls both by the name alone.
func (b *Builder) RemoteTools(names ...string) *Builder {
	b.remoteTools = append(b.remoteTools, names...)
	return b
}

// Blacklist names tools of the agent that the model may not call, without their pools.
func (b *Builder) Blacklist(names ...string) *Builder {
	b.def.Blacklist = append(b.def.Blacklist, names...)
	return b
}

// Text puts the text protocol over the model, for one that has no tool calls.
func (b *Builder) Text() *Builder { b.def.LLM.Text = true; return b }

// StatePrompt sets what a model that speaks the text protocol is told in a state:
// thinking, executing, or base for both.
func (b *Builder) StatePrompt(state, prompt string) *Builder {
	prompts := maps.Clone(b.def.LLM.StatePrompts)
	if prompts == nil {
		prompts = map[string]string{}
	}
	prompts[state] = prompt
	b.def.LLM.StatePrompts = prompts
	return b
}

// Prices says what the models cost, for a budget in money. Default: a table of the
// models of openai and anthropic.
func (b *Builder) Prices(p llm.Prices) *Builder { b.prices = p; return b }

// Estimator registers a token estimator under a name, for the setting token_estimator
// of the definition. It says how many tokens a text has, 0 for an empty one, is safe
// for concurrent use and does not block. There are "bytes/4" and "o200k" already.
func (b *Builder) Estimator(name string, estimate func(text string) int) *Builder {
	b.estimators = b.estimators.With(tokens.Set{name: estimate})
	return b
}

// Configure changes the agent's limits.
func (b *Builder) Configure(change func(*events.Config)) *Builder {
	change(&b.def.Config)
	return b
}

// Budget bounds what a run may use.
func (b *Builder) Budget(budget events.Budget) *Builder { b.def.Budget = &budget; return b }

// Approval sets which calls wait for a human, see [Run.Approvals]. The tools of a
// policy are the agent's, and named without their pools.
func (b *Builder) Approval(policy events.Approval) *Builder { b.def.Approval = &policy; return b }

// OutputSchema sets the JSON Schema that the answer has to satisfy.
func (b *Builder) OutputSchema(schema json.RawMessage) *Builder {
	b.def.OutputSchema = schema
	return b
}

// Graph makes the agent go by a graph of one's own.
func (b *Builder) Graph(g *Graph) *Builder { b.graph = g; return b }

// OnOutput has fn told what each run does, as it does it.
//
// Each run has one goroutine that calls fn, with one output at a time, in the order
// of [Output]; runs at the same time call it at the same time. It may block:
// the run goes on without waiting for it. [Run.Wait] and [Agent.Run] return after
// fn has seen the last output. While fn is far behind, tokens are left out. If it
// panics, that is logged and the run's further outputs are dropped. A run that is
// resumed tells its outputs from its beginning.
func (b *Builder) OnOutput(fn func(Output)) *Builder { b.onOutput = fn; return b }

// Bus runs the agent on a bus that is there. Default: an embedded server.
func (b *Builder) Bus(bus journal.Bus) *Builder { b.place = place{bus: bus}; return b }

// Conn runs the agent on the bus of a connection, which stays the caller's. A bus
// that is not set up is set up.
func (b *Builder) Conn(conn *nats.Conn) *Builder { b.place = place{conn: conn}; return b }

// NATS runs the agent on the bus at a URL, with the credentials of the environment
// (NATS_CREDS and its like). A bus that is not set up is set up.
func (b *Builder) NATS(url string) *Builder { b.place = place{url: url}; return b }

// Data runs the agent on an embedded server that keeps its data in a directory, so
// that its runs can be resumed and looked at later. Default: a temporary one that is
// removed after the run.
func (b *Builder) Data(dir string) *Builder { b.place = place{dir: dir}; return b }

// Elsewhere says that other processes run the roles of the bus: the agent only
// starts runs and watches them. Its provider and its tools are those that are
// announced there, see [Builder.Use] and [Builder.RemoteTools].
func (b *Builder) Elsewhere() *Builder { b.elsewhere = true; return b }

// Logger sets where the roles log. Default: nowhere.
func (b *Builder) Logger(logger *slog.Logger) *Builder { b.logger = logger; return b }

// Build checks the settings. The error is a *[BuildError]. The builder may be
// changed and built again afterwards: agents that were built stay as they are.
func (b *Builder) Build() (*Agent, error) {
	a, err := b.build()
	if err != nil {
		return nil, &BuildError{err}
	}
	return a, nil
}

func (b *Builder) build() (*Agent, error) {
	a := &Agent{task: b.task, taskType: b.taskType, def: b.def, onOutput: b.onOutput, prices: b.prices, estimators: b.estimators, elsewhere: b.elsewhere, logger: b.logger, place: b.place}
	if a.logger == nil {
		a.logger = slog.New(slog.DiscardHandler)
	}
	if err := b.buildModel(a); err != nil {
		return nil, err
	}
	if err := broken(b.tools); err != nil {
		return nil, err
	}
	a.tools, a.sources = slices.Clone(b.tools), slices.Clone(b.sources)
	registry, err := newRegistry(a.tools, a.sources)
	if err != nil {
		return nil, err
	}
	if err := host.CheckSchemas(registry, b.def.OutputSchema); err != nil {
		return nil, err
	}
	a.def.Tools = nil
	for _, d := range registry.Definitions() {
		a.def.Tools = append(a.def.Tools, d.Name)
	}
	a.def.Tools = append(a.def.Tools, b.remoteTools...)
	if err := b.buildCallees(a); err != nil {
		return nil, err
	}
	a.def.Blacklist, a.def.Models = slices.Clone(b.def.Blacklist), maps.Clone(b.def.Models)
	if a.def, err = a.def.Resolve(); err != nil {
		return nil, err
	}
	if err := checkNames(&a.def); err != nil {
		return nil, err
	}
	a.drawn, a.graph = b.graph, b.graph.built()
	if a.machine, err = a.graph.Machine(); err != nil {
		return nil, err
	}
	if a.elsewhere && a.place.embedded() {
		return nil, errors.New("the roles run elsewhere, but no bus is named: use NATS, Conn or Bus")
	}
	a.serving, err = together([]*Agent{a})
	return a, err
}

// buildModel settles which provider the agent asks, and which ones it brings.
func (b *Builder) buildModel(a *Agent) error {
	a.providers = maps.Clone(b.providers)
	switch {
	case b.caller != nil:
		if _, twice := a.providers[b.def.Name]; twice {
			return fmt.Errorf("the provider %q has the name of the agent, under which its own model caller goes: call one of them otherwise", b.def.Name)
		}
		a.providers[b.def.Name], a.def.LLM.Provider = b.caller, b.def.Name
	case b.provider == "":
		return errors.New("there is no model caller: set one with LLM")
	case a.providers[b.provider] == nil && !b.elsewhere:
		return fmt.Errorf("there is no model caller %q: offer one with Provider", b.provider)
	default:
		a.def.LLM.Provider = b.provider
	}
	for name, caller := range a.providers {
		if caller == nil {
			return fmt.Errorf("the model caller %q is nil", name)
		}
	}
	return nil
}

// Memory is what is known of a run, see [reducer.Memory].
type Memory = reducer.Memory
