package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Builder makes an [Agent] of Go values. A setting replaces an earlier one; lists grow. It
// is not safe for concurrent use.
type Builder struct {
	def         events.Agent
	namespace   string
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
	place       place
	elsewhere   bool
	logger      *slog.Logger
}

// New returns a Builder of an agent with that name. Names are [a-z0-9][a-z0-9_-]{0,62}. They
// are unique on a server, and among different agents on a bus, see [Serve].
func New(name string) *Builder {
	b := &Builder{def: events.DefaultAgent(), namespace: events.DefaultNamespace, providers: map[string]llm.Caller{}}
	b.def.Name = name
	return b
}

// Namespace sets the namespace of the agent's runs, [a-z0-9][a-z0-9_-]{0,62}. Default
// "default".
func (b *Builder) Namespace(ns string) *Builder { b.namespace = ns; return b }

// SystemPrompt sets the system prompt, which is sent verbatim.
func (b *Builder) SystemPrompt(prompt string) *Builder { b.def.SystemPrompt = prompt; return b }

// Chat makes the agent conversational: it answers the task and waits for the next message,
// see [Run.Send].
func (b *Builder) Chat() *Builder { b.def.Mode = events.ModeChat; return b }

// LLM sets the model caller. An agent needs one, or [Builder.Use].
func (b *Builder) LLM(caller llm.Caller) *Builder { b.caller, b.provider = caller, ""; return b }

// Provider offers a further model caller to the runs of this process, by name. See
// [Builder.Use].
func (b *Builder) Provider(name string, caller llm.Caller) *Builder {
	b.providers[name] = caller
	return b
}

// Use makes the agent ask the provider of that name: one of [Builder.Provider], or one of
// another process's planner. It replaces [Builder.LLM].
func (b *Builder) Use(provider string) *Builder { b.caller, b.provider = nil, provider; return b }

// Model sets the default model. next are asked in turn when one refuses or stays
// overloaded, each a PROVIDER/MODEL (see [Builder.Provider]) or a model of the agent's own
// caller.
func (b *Builder) Model(name string, next ...string) *Builder {
	return b.ModelFor("default", name, next...)
}

// ModelFor sets the model for a type of task, and those that follow as in [Builder.Model].
func (b *Builder) ModelFor(taskType, name string, next ...string) *Builder {
	if b.def.Models == nil {
		b.def.Models = map[string]events.Models{}
	}
	list := events.Models{{Model: name}}
	for _, ref := range next {
		provider, model, found := strings.Cut(ref, "/")
		if !found {
			provider, model = "", ref
		}
		list = append(list, events.ModelRef{Provider: provider, Model: model})
	}
	b.def.Models[taskType] = list
	return b
}

// Sampling sets all sampling parameters. The provider decides about those that are nil or
// zero.
func (b *Builder) Sampling(s llm.Sampling) *Builder {
	l := &b.def.LLM
	l.Temperature, l.TopP, l.Seed, l.MaxTokens, l.Stop, l.ThinkingTokens = s.Temperature, s.TopP, s.Seed, s.MaxTokens, s.Stop, s.ThinkingTokens
	return b
}

// ThinkingTokens bounds the model's thinking before an answer, in tokens. n is at least
// 1024, or 0 for no thinking. Models without thinking ignore it.
func (b *Builder) ThinkingTokens(n int) *Builder { b.def.LLM.ThinkingTokens = n; return b }

// Tool gives the agent tools, see [Func].
func (b *Builder) Tool(tools ...tool.Tool) *Builder { b.tools = append(b.tools, tools...); return b }

// RemoteTools gives the agent tools of actors in other processes, by name, or as
// "pool/name" if several pools have a tool of that name. The model sees only the name.
func (b *Builder) RemoteTools(names ...string) *Builder {
	b.remoteTools = append(b.remoteTools, names...)
	return b
}

// Blacklist names tools, without their pools, that the model may not call.
func (b *Builder) Blacklist(names ...string) *Builder {
	b.def.Blacklist = append(b.def.Blacklist, names...)
	return b
}

// ProviderTools adds tools that the model's provider itself carries out, such as a web search:
// JSON objects with a type, as the provider's API wants them.
func (b *Builder) ProviderTools(tools ...json.RawMessage) *Builder {
	b.def.ProviderTools = append(b.def.ProviderTools, tools...)
	return b
}

// Reasoning says how much the model reasons. It goes before the effort and the bound of
// [Builder.Sampling].
func (b *Builder) Reasoning(c events.ReasoningConfig) *Builder { b.def.Reasoning = &c; return b }

// OnCut sets how a truncated reply is handled; by default the model is asked once to continue.
func (b *Builder) OnCut(what events.OnCut) *Builder { b.def.OnCut = what; return b }

// Text uses the text protocol, for models without tool calls.
func (b *Builder) Text() *Builder { b.def.LLM.Text = true; return b }

// StatePrompt sets the prompt of a state of the text protocol: thinking, executing, or base
// for both.
func (b *Builder) StatePrompt(state, prompt string) *Builder {
	prompts := maps.Clone(b.def.LLM.StatePrompts)
	if prompts == nil {
		prompts = map[string]string{}
	}
	prompts[state] = prompt
	b.def.LLM.StatePrompts = prompts
	return b
}

// Prices sets the prices of models, for a budget in money. Default: a table of the models
// of openai and anthropic.
func (b *Builder) Prices(p llm.Prices) *Builder { b.prices = p; return b }

// Estimator registers a token estimator by name, for the setting token_estimator of the
// definition. estimate returns the number of tokens in a text, 0 for an empty text. It is
// safe for concurrent use and does not block. "bytes/4" and "o200k" are built in.
func (b *Builder) Estimator(name string, estimate func(text string) int) *Builder {
	b.estimators = b.estimators.With(tokens.Set{name: estimate})
	return b
}

// Budget bounds the tokens, money and time of a run.
func (b *Builder) Budget(budget events.Budget) *Builder { b.def.Budget = &budget; return b }

// Approval sets which calls wait for a human, see [Run.Approvals]. A policy names the
// agent's tools without their pools.
func (b *Builder) Approval(policy events.Approval) *Builder { b.def.Approval = &policy; return b }

// OutputSchema sets the JSON Schema that the answer must satisfy.
func (b *Builder) OutputSchema(schema json.RawMessage) *Builder {
	b.def.OutputSchema = schema
	return b
}

// Graph gives the agent a custom graph.
func (b *Builder) Graph(g *Graph) *Builder { b.graph = g; return b }

// Bus runs the agent on an existing bus. Default: an embedded server.
func (b *Builder) Bus(bus journal.Bus) *Builder { b.place = place{bus: bus}; return b }

// Conn runs the agent on the bus of a connection, which the caller closes. The bus is set
// up if necessary.
func (b *Builder) Conn(conn *nats.Conn) *Builder { b.place = place{conn: conn}; return b }

// NATS runs the agent on the bus at a URL, with the credentials of the environment
// (NATS_CREDS and others). The bus is set up if necessary.
func (b *Builder) NATS(url string) *Builder { b.place = place{url: url}; return b }

// Data runs the agent on an embedded server that keeps its data in a directory, so that
// runs can be resumed and inspected later. Default: a temporary directory, which is removed
// after the run.
func (b *Builder) Data(dir string) *Builder { b.place = place{dir: dir}; return b }

// Elsewhere says that other processes run the roles: the agent only starts and watches
// runs. Its provider and tools must be announced on the bus, see [Builder.Use] and
// [Builder.RemoteTools].
func (b *Builder) Elsewhere() *Builder { b.elsewhere = true; return b }

// Logger sets the logger of the roles. Default: warnings and errors go to [slog.Default], so
// `go test -v` shows a tool that panicked and a call that was refused.
func (b *Builder) Logger(logger *slog.Logger) *Builder { b.logger = logger; return b }

// Build checks the settings and makes the agent. The error is a *[BuildError]. Later changes
// of the Builder do not affect the agent.
func (b *Builder) Build() (*Agent, error) {
	a, err := b.build()
	if err != nil {
		return nil, &BuildError{err}
	}
	return a, nil
}

func (b *Builder) build() (*Agent, error) {
	a := &Agent{def: b.def, namespace: b.namespace, prices: b.prices, estimators: b.estimators, elsewhere: b.elsewhere, logger: b.logger, place: b.place}
	if a.logger == nil {
		a.logger = slog.New(warnings{slog.Default().Handler()})
	}
	if !events.ValidToken(b.namespace) {
		return nil, fmt.Errorf("namespace: %q is not a namespace; use [a-z0-9][a-z0-9_-]{0,62}", b.namespace)
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
	a.def.Blacklist, a.def.Models, a.def.ClientTools = slices.Clone(b.def.Blacklist), maps.Clone(b.def.Models), slices.Clone(b.def.ClientTools)
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
		return nil, errors.New("the roles run in other processes, but no bus is named: use NATS, Conn or Bus")
	}
	a.serving, err = together([]*Agent{a})
	return a, err
}

// buildModel sets the provider that the agent asks, and those that it brings.
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
	for _, name := range a.def.Providers() {
		if _, ok := a.providers[name]; !ok && !b.elsewhere {
			return fmt.Errorf("there is no model caller %q, which a model names: offer one with Provider", name)
		}
	}
	for name, caller := range a.providers {
		if caller == nil {
			return fmt.Errorf("the model caller %q is nil", name)
		}
	}
	return nil
}

// Memory is the memory of a run, see [reducer.Memory].
type Memory = reducer.Memory

// checkNames reports invalid names, an approval policy that cannot be evaluated, and tools
// in the policy or the blacklist that the agent does not have. Those are probably
// misspelled, and the intended tool would run.
func checkNames(def *events.Agent) error {
	if err := def.CheckNames(); err != nil {
		return err
	}
	errs := []error{approval.New().Check(def.Approval)}
	report := func(where string, names []string) {
		for _, name := range names {
			has := func(ref string) bool { _, bare := events.SplitTool(ref); return bare == name }
			client := func(t events.ClientTool) bool { return t.Name == name }
			if !slices.ContainsFunc(def.Tools, has) && !slices.ContainsFunc(def.ClientTools, client) {
				errs = append(errs, fmt.Errorf("%s: the agent has no tool %q; it has %q", where, name, def.Tools))
			}
		}
	}
	report("blacklist", def.Blacklist)
	if def.Approval != nil {
		report("approval.tools", def.Approval.Tools)
	}
	return errors.Join(errs...)
}

// opener makes a source and does not start it.
type opener func() (tool.Source, error)

// Source gives the agent the named tools of a source whose tools come and go. For an MCP
// server, open is
//
//	func() (tool.Source, error) { return mcptool.New(options) }
//
// A source runs once. So open is called whenever roles start, and once when the agent is
// built, to check the options. Runs wait until the source has named its tools, and fail to
// start if it lacks a named one. On a server with several agents, one brings the source and
// the others name its tools with [Builder.RemoteTools].
func (b *Builder) Source(open func() (tool.Source, error), tools ...string) *Builder {
	b.sources = append(b.sources, open)
	return b.RemoteTools(tools...)
}

// newRegistry makes a registry of tools and sources. It starts nothing.
func newRegistry(tools []tool.Tool, open []opener) (*toolset.Registry, error) {
	options := toolset.Options{Breakers: true}
	for _, open := range open {
		source, err := open()
		if err != nil {
			return nil, err
		}
		options.Sources = append(options.Sources, source)
	}
	return toolset.NewWith(options, tools...)
}
