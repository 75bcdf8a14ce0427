// Package subagent is the role that makes an agent a tool of others: it owns the
// states Acting and ParallelActing of the reserved pool `agents`, and starts runs.
//
// A call of such a tool is answered by a run of its own, the child. Its id follows
// from the parent's and the call's, so however often a delivery comes, there is one.
// Once its Start is in the log the parent gets a ToolCallStarted and the delivery is
// acknowledged: a parent that waits holds nothing. The child's end comes to pool
// `agents`, and whoever takes it from there answers the parent. So nothing that waits
// is in any process's memory, and every process may die at any moment.
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
	// Tombstones say which runs were purged. Nil: nobody purges.
	Tombstones journal.Tombstones
	// Tools are the agents that can be called. None: calls are answered that they
	// were not found, and ends of children come to their parents nevertheless.
	Tools []Tool
	// Blobs takes answers that are too large; nil cuts them. Results bounds them.
	Blobs   journal.Blobs
	Results toolcall.Results
	// Approval evaluates approval policies. Default: those of package approval.
	Approval toolcall.Approval
	// Validator, CheckScript and CheckApproval check stored definitions, as they
	// do for runs that people start; nil: they are not checked.
	Validator     tool.Validator
	CheckScript   func(script json.RawMessage) error
	CheckApproval func(*events.Approval) error
	// CheckEstimator is the gateway's; nil: every name does.
	CheckEstimator func(name string) error
	// Patience is how long a tool or a provider of a child may be missing, since
	// processes start in any order. Default 30 s, how long an announcement lives.
	Patience time.Duration
	// FirstLook is how soon a child is looked at by whoever takes timers. Default
	// 1 min.
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
			effects.KindTool: worker.HandlerFunc(s.call),
			effects.KindJoin: worker.HandlerFunc(toolcall.Join),
		},
		GiveUp: map[effects.Kind]worker.Handler{effects.KindTool: worker.HandlerFunc(s.giveUp)},
		Peers:  toolcall.PeersOf(cfg.Queue), Lends: s.lends, Arrived: s.arrived,
	})
	return s, err
}

// Inboxes are what the role consumes: calls of agents, and the ends of the runs that
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

// Announce says once which agents can be called. Run does so in the rhythm that
// keeps it known.
func (s *Subagents) Announce(ctx context.Context) error {
	if err := s.worker.Offer(events.AgentsPool, toolcall.Names(s.specs)); err != nil {
		return err
	}
	return s.cfg.Directory.Announce(ctx, events.AgentsPool, s.cfg.Instance, s.specs)
}

func (s *Subagents) withdraw(ctx context.Context) error {
	return s.cfg.Directory.Withdraw(ctx, events.AgentsPool, s.cfg.Instance)
}

// Run announces the agents and works until ctx ends; then it takes the announcement back.
func (s *Subagents) Run(ctx context.Context) error {
	return announce.During(ctx, s.cfg.Logger, s.Announce, s.withdraw, s.worker.Run)
}

// Step works on one delivery.
func (s *Subagents) Step(ctx context.Context) error { return s.worker.Step(ctx) }
