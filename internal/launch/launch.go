// Package launch pins what a run needs and opens it: the agent's definition as it
// is resolved, the tools and providers as they are announced, the transition
// table, and the run's first timer, which is set before its first event.
//
// It is what the roles have in common that own the initial state. A run is opened
// by a conditional append, so two that open the same one do so once.
package launch

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile"
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
	// Store holds the runs, Source signs their first events, Directory says which
	// tools and providers live, Agents keeps definitions, Timers wake who looks
	// after the runs. All required.
	Store     *runlog.Store
	Source    string
	Directory journal.Directory
	Agents    journal.Agents
	Timers    journal.Timers
	// Tombstones say which runs were purged. Nil: nobody purges.
	Tombstones journal.Tombstones
	// Validator checks output schemas; nil: they are checked to be objects.
	Validator tool.Validator
	// CheckScript checks scripts of scripted agents, CheckApproval approval
	// policies; nil: they are not checked.
	CheckScript   func(script json.RawMessage) error
	CheckApproval func(*events.Approval) error
	// CheckEstimator checks the names of token estimators; nil: every name does.
	CheckEstimator func(name string) error
	// FirstLook is how soon a new run is looked at, unless its time is up before.
	FirstLook time.Duration
	// Clock tells the time of the directory's cache. Default time.Now.
	Clock func() time.Time
}

// Launcher opens runs. It is safe for concurrent use.
type Launcher struct {
	cfg     Config
	catalog *catalog
}

// New checks the configuration.
func New(cfg Config) (*Launcher, error) {
	if cfg.Store == nil || cfg.Source == "" || cfg.Directory == nil || cfg.Agents == nil || cfg.Timers == nil || cfg.FirstLook <= 0 {
		return nil, errors.New("launch: Store, Source, Directory, Agents, Timers and FirstLook are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &Launcher{cfg: cfg, catalog: newCatalog(cfg.Directory, cfg.Clock)}, nil
}

// Agent returns a stored definition as it was stored. An agent that is not there is a
// refusal.CodeAgentNotFound.
func (l *Launcher) Agent(ctx context.Context, ns, name string) ([]byte, error) {
	missing := refusal.New(refusal.NotFound, refusal.CodeAgentNotFound, "there is no agent %q in this namespace; store it with PUT /v1/agents/NAME", name)
	if !events.ValidToken(name) {
		return nil, missing
	}
	data, err := l.cfg.Agents.Agent(ctx, ns, name)
	if errors.Is(err, journal.ErrNotFound) {
		return nil, missing
	}
	return data, err
}

// Definition returns a stored agent as its definition leaves it: not resolved.
// Errors are the bus's, or a *[refusal.Error].
func (l *Launcher) Definition(ctx context.Context, ns, name string) (events.Agent, error) {
	stored, err := l.Agent(ctx, ns, name)
	if err != nil {
		return events.Agent{}, err
	}
	a, err := agentfile.ParseDefinition(stored, agentfile.JSON, agentfile.Options{CheckScript: l.cfg.CheckScript, Stored: true})
	if err != nil {
		return events.Agent{}, refusal.New(refusal.Unprocessable, refusal.CodeBadAgent, "the stored agent %q cannot be used any more, put it again: %s", name, err.Error())
	}
	return a, nil
}

// Check reports what is wrong with a definition beyond its form, as a *[refusal.Error].
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
	return l.checkOutputSchema(a.OutputSchema)
}

// Task is what a run is for. Mode overrides the definition's, empty: the
// definition's; an empty TaskType is [DefaultTaskType].
type Task struct {
	Text     string
	Mode     events.Mode
	TaskType string
	// Pools are the pools of the tools that the run has already, by name: a tool that
	// the definition names without a pool stays in its own. Nil for a new run.
	Pools map[string]string
}

// Pin makes the Start of a run of the definition, with the tools as they are
// announced now. Errors are the bus's, or a *[refusal.Error].
func (l *Launcher) Pin(ctx context.Context, a events.Agent, task Task) (*events.Start, error) {
	hash := agentfile.Hash(a)
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
	tools, err := l.Tools(ctx, &a, task.Pools)
	if err != nil {
		return nil, err
	}
	start := &events.Start{
		Agent: a, AgentHash: hash, Task: task.Text, Mode: a.Mode, TaskType: task.TaskType, Tools: tools,
		TableHash: l.cfg.Store.Machine().Table().Hash(),
	}
	if start.TaskType == "" {
		start.TaskType = DefaultTaskType
	}
	return start, nil
}

// PoolsOf returns the pools of a run's tools, see [Task].
func PoolsOf(mem *reducer.Memory) map[string]string {
	pools := make(map[string]string, len(mem.Tools))
	for name, info := range mem.Tools {
		pools[name] = info.Pool
	}
	return pools
}

// Tools returns the tools of a definition as they are announced, and checks that
// its provider lives. pools are as in [Task]. Errors are the bus's, or a *[refusal.Error].
func (l *Launcher) Tools(ctx context.Context, a *events.Agent, pools map[string]string) ([]events.ToolSpec, error) {
	tools, err := l.catalog.resolve(ctx, a, pools)
	if err == nil {
		err = l.checkToolSchemas(tools)
	}
	return tools, err
}

// Look reads the directory, at most twice a second, and returns the living tools and
// providers and the announcements that gateways remember. A caller that looks regularly
// lets starts tell a tool that is being announced again from one that nobody has.
// With an error, which is the bus's, before is what was read last; journal.ErrNotReady
// says that nobody has written it yet. The slices are shared: do not change them.
func (l *Launcher) Look(ctx context.Context) (tools []events.ToolSpec, providers []string, before journal.Offers, err error) {
	seen, err := l.catalog.since(ctx, l.cfg.Clock().Add(-lookEvery))
	if err == nil {
		err = seen.stale
	}
	return seen.tools, seen.providers, seen.before, err
}

// Announced returns every tool that lives, as it was announced.
func (l *Launcher) Announced(ctx context.Context) ([]events.ToolSpec, error) {
	seen, err := l.catalog.since(ctx, l.cfg.Clock().Add(-catalogAge))
	return seen.tools, err
}
