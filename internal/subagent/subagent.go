// Package subagent is the role that makes an agent a tool of others. It owns the states
// Acting and ParallelActing of the reserved pool `agents`, and starts runs.
//
// A call of such a tool is answered by a run of its own, the sub-run. Its id follows from
// the parent's and the call's, so there is one sub-run however often the delivery comes.
// Once its Start is in the log, the parent gets a ToolCallStarted and the delivery is
// acknowledged: a parent that waits holds no delivery. The end of the sub-run comes to
// pool `agents`, and the worker that gets it answers the parent. So nothing that waits is
// in a process's memory, and every process may die at any moment.
package subagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/announce"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

const role = "subagent"

// Config configures a [Subagents].
type Config struct {
	worker.Base
	// Directory is where the agents are announced, Agents holds their definitions, and
	// Timers those of the runs. Required.
	Directory journal.Directory
	Agents    journal.Agents
	Timers    journal.Timers
	// Tombstones say which runs were purged. Nil: none are.
	Tombstones journal.Tombstones
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
	// Patience is how long a tool or a provider of a sub-run may be missing, since
	// processes start in any order. Default 30 s, the lifetime of an announcement.
	Patience time.Duration
	// FirstLook is how soon a gateway first checks a sub-run. Default 1 min.
	FirstLook time.Duration
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
	launcher  *launch.Launcher
	worker    *worker.Worker
}

// New checks the configuration.
func New(cfg Config) (*Subagents, error) {
	var err error
	if cfg.Base, err = cfg.WithDefaults(role); err != nil {
		return nil, err
	}
	if cfg.Directory == nil {
		return nil, errors.New("subagent: Directory is required")
	}
	if cfg.Patience <= 0 {
		cfg.Patience = journal.AnnouncementTTL
	}
	if cfg.FirstLook <= 0 {
		cfg.FirstLook = time.Minute
	}
	s := &Subagents{
		table: cfg.Store.Machine().Table(), source: worker.Source(role, cfg.Instance), tools: map[string]Tool{}, specs: []events.ToolSpec{},
		elsewhere: toolcall.NewElsewhere(cfg.Directory, cfg.Patience, cfg.Logger),
	}
	if cfg.Results, err = cfg.Results.Prepare(); err != nil {
		return nil, fmt.Errorf("subagent: %w", err)
	}
	s.cfg = cfg
	if err := s.addTools(); err != nil {
		return nil, err
	}
	if s.guard, err = toolcall.NewGuard(cfg.Store, cfg.Approval, s.definition); err != nil {
		return nil, err
	}
	s.launcher, err = launch.New(launch.Config{
		Store: cfg.Store, Source: s.source, Directory: cfg.Directory, Agents: cfg.Agents, Timers: cfg.Timers, Tombstones: cfg.Tombstones,
		Validator: cfg.Validator, CheckScript: cfg.CheckScript, CheckApproval: cfg.CheckApproval, CheckEstimator: cfg.CheckEstimator, FirstCheck: cfg.FirstLook,
	})
	if err != nil {
		return nil, err
	}
	s.worker, err = worker.New(worker.Config{
		Role: role, Base: cfg.Base, Inboxes: Inboxes(s.table),
		Handlers: map[effects.Kind]worker.Handler{
			effects.KindTool: worker.HandlerFunc(s.plan),
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
	return s.cfg.Directory.Announce(ctx, events.AgentsPool, s.cfg.Instance, s.specs)
}

func (s *Subagents) withdraw(ctx context.Context) error {
	return s.cfg.Directory.Withdraw(ctx, events.AgentsPool, s.cfg.Instance)
}

// Run announces the agents and works until ctx ends. Then it withdraws the announcement.
func (s *Subagents) Run(ctx context.Context) error {
	return announce.During(ctx, s.cfg.Logger, s.Announce, s.withdraw, s.worker.Run)
}

// Step works on one delivery.
func (s *Subagents) Step(ctx context.Context) error { return s.worker.Step(ctx) }
