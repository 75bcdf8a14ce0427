// Package control carries out commands on runs: it starts, forks, pauses, resumes, cancels and
// lists them, gives them inputs and decisions, and processes their timers. It knows no HTTP:
// commands and package httpapi call its methods.
//
// A [Controller] holds no state that is not in the log. It publishes events out of the states
// idle, waiting_for_user and waiting_for_human and those with the origin control, each under
// the run's own condition, so several controllers may serve the same runs.
//
// Its packages are one idea each: access reads and changes single runs, list pages through
// them, record returns what they did, forking, decisions and subruns are commands on them, timers and pools work in the
// background.
//
// The error of a request that cannot be carried out is a *refusal.Error with a stable code.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/clientmodel"
	"github.com/moorebus/moorebus/internal/control/dead"
	"github.com/moorebus/moorebus/internal/control/decisions"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/control/gauges"
	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/pools"
	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/control/subruns"
	"github.com/moorebus/moorebus/internal/control/timers"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// role is the name of the role on the bus.
const role = "gateway"

// The defaults of [Config.StallAfter] and [Config.PoolWait].
const (
	StallAfter = time.Hour
	PoolWait   = 10 * time.Minute
)

// Unlimited is a [Config.PoolWait] without end.
const Unlimited time.Duration = -1

// Config configures a [Controller].
type Config struct {
	// Base is what the process gives each of its roles. Concurrency is also how many timers
	// are processed at once.
	worker.Base
	// Timers wake the controller, KV has the announced tools and providers, definitions and the entries of
	// agents. Both are required.
	Timers journal.Timers
	KV     kv.Store
	// Blobs keeps images and files of messages, and large results of clients' tools. Nil:
	// messages have none, except by URL, and results are cut.
	Blobs journal.Blobs
	// Results bounds and cleans the results of clients' tools.
	Results toolcall.Results
	// Tombstones are those of purged runs, which cannot start again. Nil: runs are not
	// purged.
	Tombstones kv.Store
	// Alarms wake what is due at a time and belongs to no run. Nil: nothing does.
	Alarms ports.Alarms
	// Validator checks output schemas. Nil: they are checked to be objects.
	Validator tool.Validator
	// CheckScript checks llm.script of scripted agents, see
	// agentfile.Options. Nil: scripts are not checked.
	CheckScript func(script json.RawMessage) error
	// CheckApproval checks approval policies, see approval.Policies. Nil: they
	// are not checked.
	CheckApproval func(*events.Approval) error
	// CheckEstimator checks the names of token estimators, see tokens.Set. Nil:
	// they are not checked.
	CheckEstimator func(name string) error
	// DefaultNamespace is for requests that name none. Default "default".
	DefaultNamespace string
	// Questions reach the planners with replies of client models. Nil: none is accepted.
	Questions ports.Questions
	// Requests write what models are asked. Nil: nothing is shown of that.
	Requests interface {
		// Of returns the request whose reply is event n, or with n 0 the one whose reply is
		// awaited. The error is clientmodel.ErrNoRequest or clientmodel.ErrNothingPending if
		// there is none.
		Of(ctx context.Context, run events.Run, n uint64) (clientmodel.ModelRequest, error)
		// Tokens estimates the size of the request that a run asks its model next.
		Tokens(mem *reducer.Memory) int
	}
	// Fleet says whether the log can store events, what work waits, and which timers are set.
	// Nil: the bus does not report it.
	Fleet ports.Fleet
	// Leases choose the controller that does what one at a time does. Nil: none does.
	Leases ports.Leases
	// Ready is a further check of [Controller.Ready]; may be nil.
	Ready func(ctx context.Context) error

	// StallAfter is how long due work of a run may rest before it is delivered once more,
	// and again before the run is ended. The time begins when the work is first seen to
	// have been delivered, at most a quarter of StallAfter after the delivery: queued work
	// does not stall. It must be longer than any call of a model or tool, and than the
	// wait that a busy provider asks for. Default 1 h.
	StallAfter time.Duration
	// PoolWait is how long a pool must be without an actor before its calls are answered
	// with no_actor. [Unlimited]: they wait until there is one. Default 10 min.
	PoolWait time.Duration

	// Clock returns the time for the directory's cache. Default time.Now.
	Clock func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	var err error
	if c.Base, err = c.Base.WithDefaults("control"); err != nil {
		return c, err
	}
	if c.Timers == nil || c.KV == nil {
		return c, errors.New("control: Timers and KV are required")
	}
	if c.DefaultNamespace == "" {
		c.DefaultNamespace = events.DefaultNamespace
	}
	if !events.ValidToken(c.DefaultNamespace) {
		return c, fmt.Errorf("control: namespace %q is not [a-z0-9][a-z0-9_-]{0,62}", c.DefaultNamespace)
	}
	if c.Results, err = c.Results.Prepare(c.Store.MaxBody); err != nil {
		return c, fmt.Errorf("control: %w", err)
	}
	if c.StallAfter <= 0 {
		c.StallAfter = StallAfter
	}
	if c.PoolWait == 0 {
		c.PoolWait = PoolWait
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c, nil
}

// Controller carries out commands on runs and is the role gateway on the bus. Its methods
// are safe for concurrent use, and all but Run and Step work whether it runs or not.
type Controller struct {
	*runs.Editor
	*list.Lister
	*record.Reader
	*subruns.Subruns
	*forking.Forker
	*decisions.Decisions
	*dead.Letters

	// Admission bounds how many runs work at once: no run starts without it. ClientTools has the calls of
	// clients' tools: no run takes inputs without it. Pushes posts the updates of runs. Features set them.
	Admission   Admission
	ClientTools ClientTools
	Pushes      Pushes

	cfg    Config
	worker *worker.Worker
	timers *timers.Timers
	pools  *pools.Pools
	chunks *chunks
}

// inbox is what wakes the worker: the last decision on a batch of calls.
var inbox = journal.Inbox{States: []events.State{events.WaitingForHuman}, Pool: events.DefaultPool}

// New returns a controller.
func New(cfg Config) (*Controller, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	source := worker.Source(role, cfg.Instance)
	launcher, err := runstart.New(runstart.Config{
		Store: cfg.Store, Source: source, KV: cfg.KV, Timers: cfg.Timers, Tombstones: cfg.Tombstones,
		Validator: cfg.Validator, CheckScript: cfg.CheckScript, CheckApproval: cfg.CheckApproval, CheckEstimator: cfg.CheckEstimator,
		FirstCheck: timers.CheckEvery(cfg.StallAfter), Clock: cfg.Clock, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	a := &runs.Editor{
		Store: cfg.Store, Log: cfg.Store.Log(), Table: cfg.Store.Machine().Table(), Launcher: launcher,
		Source: source, Namespace: cfg.DefaultNamespace,
	}
	if cfg.Fleet != nil {
		a.Quorum = cfg.Fleet.Quorum
	}
	var c *Controller
	lister := list.New(a, func(ctx context.Context) map[string]time.Time { return c.pools.Unserved(ctx) })
	c = &Controller{
		cfg: cfg, Editor: a, Lister: lister, Reader: record.New(a, lister), Subruns: subruns.New(a), Forker: forking.New(a, cfg.CheckScript),
		Decisions: decisions.New(a, cfg.Validator), chunks: newChunks(cfg.Feed, cfg.Store.Now()),
	}
	c.Letters = dead.New(a, c.Forker)
	w := worker.Config{Role: role, Base: cfg.Base}
	c.pools = pools.New(pools.Config{Worker: w, Launcher: launcher, Recall: c.Recall, Wait: max(cfg.PoolWait, 0)})
	c.timers = timers.New(timers.Config{
		Runs: a, Subruns: c.Subruns, Queue: cfg.Queue, Timers: cfg.Timers, Fleet: cfg.Fleet, KV: cfg.KV, Unserved: c.pools.Unserved, Open: lister.OpenRuns, StallAfter: cfg.StallAfter,
		Expire: c.expireReply, Concurrency: cfg.Concurrency, Drain: cfg.Drain, Logger: cfg.Logger,
	})
	c.readGauges()
	w.Inboxes = []journal.Inbox{inbox}
	w.Arrived = c.timers.Await(timers.Wait{Kind: ports.TimerApproval, Deadline: decisions.Deadline, Expire: decisions.Expire})
	w.Handlers = map[effects.Kind]worker.Handler{effects.KindDecide: worker.HandlerFunc(decisions.Join)}
	c.worker, err = worker.New(w)
	return c, err
}

// Config returns the configuration with its defaults.
func (c *Controller) Config() Config { return c.cfg }

// Unserved returns the pools that no living actor serves, each since when.
func (c *Controller) Unserved(ctx context.Context) map[string]time.Time { return c.pools.Unserved(ctx) }

// readGauges has scrapes of the process's metrics tell what waits on the bus.
func (c *Controller) readGauges() {
	to := c.cfg.Store.Meter()
	if to == nil || c.cfg.Fleet == nil {
		return
	}
	g := gauges.Config{Fleet: c.cfg.Fleet, Directory: c.Launcher.Directory(), Store: c.cfg.Store, States: c.working(), Logger: c.cfg.Logger}
	if c.cfg.Requests != nil {
		g.Size = c.cfg.Requests.Tokens
	}
	to.Read(gauges.New(g).Read)
}

// Serve returns a worker on the calls of a pool whose results come from outside. Before it acknowledges a
// call it sets the timer of the wait. join ends batches.
func (c *Controller) Serve(pool string, wait timers.Wait, join worker.HandlerFunc) *worker.Worker {
	w, err := worker.New(worker.Config{
		Role: role, Base: c.cfg.Base, Origin: events.Control, Arrived: c.timers.Await(wait),
		Inboxes:  []journal.Inbox{{States: []events.State{events.Acting, events.ParallelActing}, Pool: pool}},
		Handlers: map[effects.Kind]worker.Handler{effects.KindTool: worker.HandlerFunc(c.pools.Answer), effects.KindJoin: join},
	})
	if err != nil {
		panic("control: " + err.Error()) // the controller's own worker is made of the same
	}
	return w
}

// Run does the role's work until ctx ends: it joins decisions, processes timers, and answers the calls of
// unserved pools. When ctx ends, deliveries get the drain time, and Run returns
// nil. An error is one that a retry does not fix.
func (c *Controller) Run(ctx context.Context) error {
	stop, err := c.cfg.Feed.WatchAsks(c.chunks.answer)
	if err != nil {
		return fmt.Errorf("gateway: watching for listeners: %w", err)
	}
	defer c.chunks.close()
	defer stop()
	return worker.RunAll(ctx, c.worker.Run, c.timers.Run, c.timers.Rearm, c.pools.Run)
}

// Step waits for one delivery and joins its decisions. It is for the single-step mode, without
// Run.
func (c *Controller) Step(ctx context.Context) error { return c.worker.Step(ctx) }

// Ready returns nil if the log has a quorum and the bus has the streams and consumers that the
// role needs.
func (c *Controller) Ready(ctx context.Context) error {
	if c.Quorum != nil {
		if err := c.Quorum(ctx); err != nil {
			return err
		}
	}
	if c.cfg.Ready != nil { // first, as it knows best what is wrong
		if err := c.cfg.Ready(ctx); err != nil {
			return err
		}
	}
	for shard := range c.Log.Shards() {
		if _, err := c.Log.Last(ctx, shard); err != nil {
			return err
		}
	}
	_, err := c.cfg.Queue.AckWait(ctx, inbox)
	return err
}
