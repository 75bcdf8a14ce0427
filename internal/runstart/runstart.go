// Package runstart opens runs. It pins the resolved definition of the agent, the announced tools
// and providers, and the transition table, and sets the run's first timer before its first
// event.
//
// The roles that own the initial state share it. A run is opened by a conditional append, so
// only one of two processes can open the same run.
package runstart

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// DefaultTaskType is the task type of a run that names none.
const DefaultTaskType = "default"

// Config configures a [Launcher].
type Config struct {
	// Store holds the runs, Source is the source of their first events, KV has the announced
	// tools and providers, and definitions, Timers wake the gateways. All required.
	Store  *runlog.Store
	Source string
	KV     kv.Store
	Timers journal.Timers
	// Tombstones are those of purged runs. Nil: runs are not purged.
	Tombstones kv.Store
	// Validator checks output schemas; nil: they are checked to be objects.
	Validator tool.Validator
	// CheckScript checks scripts of scripted agents, CheckApproval approval
	// policies; nil: they are not checked.
	CheckScript   func(script json.RawMessage) error
	CheckApproval func(*events.Approval) error
	// CheckEstimator checks the names of token estimators; nil: every name is accepted.
	CheckEstimator func(name string) error
	// FirstCheck is when a gateway first checks a new run, unless its deadline is earlier.
	FirstCheck time.Duration
	// Clock tells the time of the directory's cache. Default time.Now.
	Clock func() time.Time
	// Logger gets warnings about announcements. Default: slog's.
	Logger *slog.Logger
}

// Launcher opens runs. It is safe for concurrent use.
type Launcher struct {
	cfg         Config
	catalog     *catalog
	definitions definitions
}

// New returns a Launcher.
func New(cfg Config) (*Launcher, error) {
	if cfg.Store == nil || cfg.Source == "" || cfg.KV == nil || cfg.Timers == nil || cfg.FirstCheck <= 0 {
		return nil, errors.New("launch: Store, Source, KV, Timers and FirstCheck are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &Launcher{cfg: cfg, catalog: newCatalog(announce.NewDirectory(cfg.KV, cfg.Logger), cfg.Clock)}, nil
}

// Directory returns what actors and planners announce.
func (l *Launcher) Directory() *announce.Directory { return l.catalog.directory }

// Agent returns a stored definition. An unknown agent is a refusal.CodeAgentNotFound.
func (l *Launcher) Agent(ctx context.Context, ns, name string) ([]byte, error) {
	if !events.ValidToken(name) {
		return nil, noAgent(name, nil)
	}
	data, _, err := agentstore.Get(ctx, l.cfg.KV, ns, name)
	if errors.Is(err, journal.ErrNotFound) {
		names, err := agentstore.Names(ctx, l.cfg.KV, ns)
		if err != nil {
			names = nil // the refusal does without
		}
		return nil, noAgent(name, names)
	}
	return data, err
}

// noAgent refuses an agent that is not among those that are stored.
func noAgent(name string, stored []string) error {
	there := ""
	if len(stored) > 0 {
		there = "; stored: " + listed(stored)
	}
	return refusal.New(refusal.NotFound, refusal.CodeAgentNotFound, "there is no agent %q in this namespace%s; store it with PUT /v1/agents/NAME%s",
		name, strict.DidYouMean(name, stored), there)
}

// Definition returns a stored agent, not resolved, and its [agentfile.Hash]. The caller does not
// change what the agent points to. Errors are the bus's, or a *[refusal.Error].
func (l *Launcher) Definition(ctx context.Context, ns, name string) (a events.Agent, hash string, err error) {
	stored, err := l.Agent(ctx, ns, name)
	if err != nil {
		return events.Agent{}, "", err
	}
	parsed, err := l.definitions.parse(stored, agentfile.Options{CheckScript: l.cfg.CheckScript, Stored: true})
	if err != nil {
		return events.Agent{}, "", refusal.New(refusal.Unprocessable, refusal.CodeBadAgent, "the stored agent %q is no longer valid; store it again: %s", name, err.Error())
	}
	return parsed.agent, parsed.hash, nil
}

// Check checks what a parser of definitions cannot check. Errors are *[refusal.Error].
func (l *Launcher) Check(a *events.Agent) error {
	if check := l.cfg.CheckApproval; check != nil {
		if err := check(a.Approval); err != nil {
			return refusal.New(refusal.Unprocessable, refusal.CodeBadApproval, "%s", err.Error())
		}
	}
	if check := l.cfg.CheckEstimator; check != nil {
		if err := check(a.Config.TokenEstimator); err != nil {
			return refusal.New(refusal.Unprocessable, refusal.CodeBadEstimator, "config.%s", err.Error())
		}
	}
	for _, t := range a.ClientTools {
		if err := l.checkToolSchemas([]events.ToolSpec{t.Spec()}); err != nil {
			return err
		}
	}
	return l.checkOutputSchema(a.OutputSchema)
}

// Task is the task of a run. Mode overrides that of the definition if it is not empty. An empty
// TaskType is [DefaultTaskType].
type Task struct {
	Text     string
	Mode     events.Mode
	TaskType string
	// Pools are the pools of the tools that the run already has, by name. A tool that the
	// definition names without a pool stays in its pool. Nil for a new run.
	Pools map[string]string
	// AgentHash is the [agentfile.Hash] of the definition as it is stored. Empty: that of the
	// definition that is given.
	AgentHash string
	// Labels go before those of the definition, key by key.
	Labels events.Labels
}

// Pin returns the Start event of a run, with the tools as they are announced now and without the
// table, which [Launcher.Open] pins. Errors are the
// bus's, or a *[refusal.Error].
func (l *Launcher) Pin(ctx context.Context, a events.Agent, task Task) (*events.Start, error) {
	hash := task.AgentHash
	if hash == "" {
		hash = agentfile.Hash(a)
	}
	if task.Mode != "" {
		a.Mode = task.Mode
	}
	a, err := a.Resolve()
	if err != nil {
		return nil, refusal.New(refusal.Invalid, refusal.CodeBadAgent, "agent: %s", err.Error())
	}
	if err := l.Check(&a); err != nil {
		return nil, err
	}
	labels := maps.Clone(a.Labels)
	if labels == nil {
		labels = maps.Clone(task.Labels)
	}
	maps.Copy(labels, task.Labels)
	if err := CheckLabels(labels); err != nil {
		return nil, err
	}
	tools, err := l.Tools(ctx, &a, task.Pools)
	if err != nil {
		return nil, err
	}
	start := &events.Start{
		Agent: a, AgentHash: hash, Task: task.Text, Mode: a.Mode, TaskType: task.TaskType, Tools: tools, Labels: labels,
	}
	if start.TaskType == "" {
		start.TaskType = DefaultTaskType
	}
	return start, nil
}

// CheckLabels refuses labels that no run may have.
func CheckLabels(labels events.Labels) error {
	if err := labels.Check(); err != nil {
		return refusal.New(refusal.Invalid, refusal.CodeBadRequest, "%s", err.Error())
	}
	if len(labels) > events.MaxLabels {
		return refusal.New(refusal.Unprocessable, refusal.CodeTooManyLabels, "labels: the run would have %d; at most %d are allowed", len(labels), events.MaxLabels)
	}
	return nil
}

// PoolsOf returns the pools of a run's tools, see [Task].
func PoolsOf(mem *reducer.Memory) map[string]string {
	pools := make(map[string]string, len(mem.Tools))
	for name, info := range mem.Tools {
		pools[name] = info.Pool
	}
	return pools
}

// Tools returns the tools of a definition as they are announced, with those of its client, and
// checks that its provider is announced. pools are as in [Task]. Errors are the bus's, or a *[refusal.Error].
func (l *Launcher) Tools(ctx context.Context, a *events.Agent, pools map[string]string) ([]events.ToolSpec, error) {
	tools, err := l.catalog.resolve(ctx, a, pools)
	if err == nil {
		err = l.checkToolSchemas(tools)
	}
	return tools, err
}

// Pools is [announce.Directory.Pools]. ReadDirectory does not read again what it has read a moment ago.
func (l *Launcher) Pools(ctx context.Context) ([]announce.Pool, error) { return l.catalog.walk(ctx) }

// ReadDirectory reads the directory, at most twice a second. It returns the announced tools and
// providers, and the announcements that gateways remember. Regular calls keep track of names
// whose announcement is being renewed. With an error, which is the bus's, before is the last
// value that was read; journal.ErrNotReady says that there is none yet. The slices are shared
// and must not be changed.
func (l *Launcher) ReadDirectory(ctx context.Context) (tools []events.ToolSpec, providers []string, before announce.Offers, err error) {
	seen, err := l.catalog.since(ctx, l.cfg.Clock().Add(-readEvery))
	if err == nil {
		err = seen.stale
	}
	return seen.tools, seen.providers, seen.before, err
}

// Announced returns every announced tool.
func (l *Launcher) Announced(ctx context.Context) ([]events.ToolSpec, error) {
	seen, err := l.catalog.since(ctx, l.cfg.Clock().Add(-catalogAge))
	return seen.tools, err
}

func (l *Launcher) checkOutputSchema(schema json.RawMessage) error {
	if err := l.usable(schema); err != nil {
		return refusal.New(refusal.Unprocessable, refusal.CodeBadOutputSchema, "output_schema: %s", err.Error())
	}
	return nil
}

// checkToolSchemas checks the schemas of tools: with an invalid one every call would be refused.
func (l *Launcher) checkToolSchemas(tools []events.ToolSpec) error {
	for _, t := range tools {
		if err := l.usable(t.Schema); err != nil {
			whose := "is announced with"
			if t.Client {
				whose = "has, under client_tools,"
			}
			return refusal.New(refusal.Unprocessable, refusal.CodeBadToolSchema,
				"the tool %q %s an invalid schema: %s", t.Name, whose, err.Error()).With(map[string]any{"tool": t.Name})
		}
	}
	return nil
}

// usable returns why a schema is invalid. The instance does not have to satisfy it.
func (l *Launcher) usable(schema json.RawMessage) error {
	if l.cfg.Validator == nil || len(schema) == 0 {
		return nil
	}
	err := l.cfg.Validator.Validate(schema, "{}")
	var unsatisfied *tool.Failure
	if errors.As(err, &unsatisfied) {
		return nil
	}
	return err
}
