package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/gateway"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/natsbus"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
	"github.com/moorebus/moorebus/pkg/tokens"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/breaker"
)

// providerName is what a built agent calls its one model provider.
const providerName = "llm"

// Builder makes an [Agent] of Go values. Of settings that are given twice the
// last one holds; lists grow. It is not safe for concurrent use.
type Builder struct {
	def      events.Agent
	task     string
	taskType string
	caller   llm.Caller
	prices   llm.Prices
	tools    []tool.Tool
	bus      Bus
	dir      string
	logger   *slog.Logger
	// estimators are those of [Builder.Estimator].
	estimators tokens.Set
}

// New begins an agent for a task.
func New(task string) *Builder {
	b := &Builder{def: events.DefaultAgent(), task: task}
	b.def.Name = "agent"
	b.def.LLM.Provider = providerName
	return b
}

// Name sets the agent's name. Default "agent".
func (b *Builder) Name(name string) *Builder { b.def.Name = name; return b }

// TaskType sets the type of the task, which chooses the model.
func (b *Builder) TaskType(taskType string) *Builder { b.taskType = taskType; return b }

// SystemPrompt sets what the model is told first, verbatim.
func (b *Builder) SystemPrompt(prompt string) *Builder { b.def.SystemPrompt = prompt; return b }

// LLM sets the model caller. There is no agent without one.
func (b *Builder) LLM(caller llm.Caller) *Builder { b.caller = caller; return b }

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

// Tool gives the agent a tool.
func (b *Builder) Tool(t tool.Tool) *Builder { b.tools = append(b.tools, t); return b }

// Blacklist names tools that the model may not call.
func (b *Builder) Blacklist(names ...string) *Builder {
	b.def.Blacklist = append(b.def.Blacklist, names...)
	return b
}

// Configure changes the agent's limits.
func (b *Builder) Configure(change func(*events.Config)) *Builder {
	change(&b.def.Config)
	return b
}

// Budget bounds what a run may use.
func (b *Builder) Budget(budget events.Budget) *Builder { b.def.Budget = &budget; return b }

// Approval sets which calls wait for a human.
func (b *Builder) Approval(policy events.Approval) *Builder { b.def.Approval = &policy; return b }

// OutputSchema sets the JSON Schema that the answer has to satisfy.
func (b *Builder) OutputSchema(schema json.RawMessage) *Builder {
	b.def.OutputSchema = schema
	return b
}

// Bus runs the agent on a bus that is there. Default: an embedded server.
func (b *Builder) Bus(bus Bus) *Builder { b.bus = bus; return b }

// Data sets where the embedded server keeps its data. Default: a temporary
// folder that is removed after the run.
func (b *Builder) Data(dir string) *Builder { b.dir = dir; return b }

// Logger sets where the roles log. Default: nowhere.
func (b *Builder) Logger(logger *slog.Logger) *Builder { b.logger = logger; return b }

// Build checks the settings. The error is a *[BuildError].
func (b *Builder) Build() (*Agent, error) {
	if b.caller == nil {
		return nil, &BuildError{errors.New("there is no model caller: set one with LLM")}
	}
	registry, err := tool.NewRegistryWith(tool.Options{Gate: breaker.New}, b.tools...)
	if err != nil {
		return nil, &BuildError{err}
	}
	if err := checkSchemas(registry, b.def.OutputSchema); err != nil {
		return nil, &BuildError{err}
	}
	def := b.def
	def.Tools = nil
	for _, d := range registry.Definitions() {
		def.Tools = append(def.Tools, d.Name)
	}
	if def, err = def.Resolve(); err != nil {
		return nil, &BuildError{err}
	}
	return &Agent{settings: *b, def: def, registry: registry, machine: reducer.NewMachine(reducer.MachineOptions{})}, nil
}

// Agent is one agent with one task. Run it once.
type Agent struct {
	settings Builder
	def      events.Agent
	registry *tool.Registry
	machine  *reducer.Machine
	memory   *reducer.Memory
}

// Run runs the task to its end and returns the answer. A run that ends
// otherwise is an error: *[Failed] or one of the others of this package, or the
// context's, in which case the run is cancelled.
func (a *Agent) Run(ctx context.Context) (string, error) {
	bus, closeBus, err := a.openBus(ctx)
	if err != nil {
		return "", err
	}
	defer closeBus()
	h, err := NewHost(HostOptions{
		Bus: bus, Machine: a.machine, Tools: a.registry, Prices: a.settings.prices, Logger: a.settings.logger,
		Providers: map[string]llm.Caller{providerName: a.settings.caller}, Estimators: a.settings.estimators,
	})
	if err != nil {
		return "", &BuildError{err}
	}
	hostCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- h.Run(hostCtx) }()
	answer, err := a.start(ctx, h, bus)
	stop()
	return answer, errors.Join(err, <-ended)
}

func (a *Agent) openBus(ctx context.Context) (Bus, func(), error) {
	if a.settings.bus != nil {
		return a.settings.bus, func() {}, nil
	}
	dir, remove := a.settings.dir, func() {}
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "moorebus-"); err != nil {
			return nil, nil, err
		}
		remove = func() { _ = os.RemoveAll(dir) }
	}
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir, SyncAlways: true, Logger: a.settings.logger})
	if err != nil {
		remove()
		return nil, nil, err
	}
	shutdown := func() { server.Shutdown(); remove() }
	conn, err := server.Connect()
	if err != nil {
		shutdown()
		return nil, nil, err
	}
	closeAll := func() { conn.Close(); shutdown() }
	if err := natsbus.Init(ctx, conn, natsbus.InitOptions{Pools: a.registry.Pools()}); err != nil {
		closeAll()
		return nil, nil, err
	}
	bus, err := natsbus.Open(ctx, conn, natsbus.Options{Logger: a.settings.logger})
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return bus, closeAll, nil
}

// start starts the run and waits for its end.
func (a *Agent) start(ctx context.Context, h *Host, bus Bus) (string, error) {
	if err := h.Announce(ctx); err != nil {
		return "", err
	}
	started, err := h.Gateway().Start(ctx, "", gateway.StartRequest{Agent: &a.def, Task: a.settings.task, TaskType: a.settings.taskType})
	if err != nil {
		return "", &BuildError{err}
	}
	run := h.Store().Place(events.DefaultNamespace, started.RunID)
	if err := a.follow(ctx, bus, run); err != nil {
		cancelled := context.WithoutCancel(ctx)
		_, cancelErr := h.Gateway().Cancel(cancelled, "", run.ID, events.By{Reason: context.Cause(ctx).Error()})
		return "", errors.Join(err, cancelErr)
	}
	return a.outcome()
}

func (a *Agent) follow(ctx context.Context, bus Bus, run events.Run) error {
	fold := runlog.NewFold(bus, a.machine, run)
	a.memory = fold.Memory()
	for rec, err := range bus.Follow(ctx, run.Shard, journal.Filter{Namespace: run.Namespace, Run: run.ID}, 0) {
		if err != nil {
			return err
		}
		if _, err := fold.Apply(ctx, rec); err != nil && !runlog.Refused(err) {
			return err
		}
		if a.machine.Table().Terminal(a.memory.State) {
			return nil
		}
	}
	return ctx.Err()
}

func (a *Agent) outcome() (string, error) {
	mem := a.memory
	switch {
	case mem.State == events.Cancelled:
		return "", &Failed{Code: "cancelled", Message: "the run was cancelled"}
	case mem.Error != nil:
		return "", failure(mem)
	case mem.FinalAnswer == nil:
		return "", nil
	}
	return *mem.FinalAnswer, nil
}

// Memory returns the run's memory after Run, nil before.
func (a *Agent) Memory() *reducer.Memory { return a.memory }

// State returns where the run stands: Idle before Run.
func (a *Agent) State() events.State {
	if a.memory == nil {
		return events.Idle
	}
	return a.memory.State
}

// Trace returns what happened in the run, nil before Run.
func (a *Agent) Trace() reducer.Trace {
	if a.memory == nil {
		return nil
	}
	return a.memory.Trace
}

// failure is the typed error of a run that ended in Error.
func failure(mem *reducer.Memory) error {
	f := Failed{Code: mem.Error.Code, Message: mem.Error.Message}
	switch f.Code {
	case reducer.CodeNoHandler:
		return &NoHandlerForState{f}
	case reducer.CodeSafetyCap:
		return &SafetyCapExceeded{f}
	case reducer.CodePoison:
		return &MemoryError{f}
	case reducer.CodeInvalidTransition:
		return &InvalidTransition{f}
	}
	for _, kind := range []llm.ErrorKind{
		llm.KindRateLimited, llm.KindOverloaded, llm.KindNetwork, llm.KindAuth, llm.KindInvalid, llm.KindContextTooLong, llm.KindOther,
	} {
		if f.Code == string(kind) {
			return &LLMError{f}
		}
	}
	return &f
}

// Failed is a run that ended without an answer. The more special errors of this
// package embed it.
type Failed struct{ Code, Message string }

// Error returns code and message.
func (f *Failed) Error() string { return fmt.Sprintf("the agent failed: %s: %s", f.Code, f.Message) }

// InvalidTransition is a handler's event for which the table has no row.
type InvalidTransition struct{ Failed }

// NoHandlerForState is a state that no handler serves.
type NoHandlerForState struct{ Failed }

// SafetyCapExceeded is a run that changes its state for ever.
type SafetyCapExceeded struct{ Failed }

// LLMError is a model provider that gave no reply; the code is its
// [llm.ErrorKind].
type LLMError struct{ Failed }

// MemoryError is a log with a record that is not legal.
type MemoryError struct{ Failed }

// BuildError is a setting that is missing or wrong.
type BuildError struct{ Err error }

// Error returns what is wrong.
func (e *BuildError) Error() string { return "cannot build the agent: " + e.Err.Error() }

// Unwrap returns what is wrong.
func (e *BuildError) Unwrap() error { return e.Err }
