package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/sharedlog"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

const role = "gateway"

// StallAfter is the default of [Config.StallAfter].
const StallAfter = time.Hour

// Config configures a [Gateway].
type Config struct {
	// Store holds the runs. Required; the roles of one process share it.
	Store *runlog.Store
	// Queue, Feed and Timers are the bus, Directory says which tools and
	// providers live, Agents keeps definitions. All required.
	Queue     journal.Queue
	Feed      journal.Feed
	Timers    journal.Timers
	Directory journal.Directory
	Agents    journal.Agents
	// Tombstones say which runs were purged, so that they are not started again.
	// Nil: nobody purges.
	Tombstones journal.Tombstones
	// Instance names this process in its events. Required.
	Instance string
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
	// DefaultNamespace is used where a request names none. Default "default".
	DefaultNamespace string

	// Listener is served by Run. Nil: Run serves no HTTP, see Handler.
	Listener net.Listener
	// Token is what HTTP requests must present as a bearer token; empty: none.
	Token string
	// Hosts are further names under which a gateway without a token may be
	// addressed. Localhost and IP addresses always may; other names are refused,
	// since a web page could take them.
	Hosts []string
	// Ready is asked by /readyz beside the gateway's own checks; may be nil.
	Ready func(ctx context.Context) error

	// StallAfter is how long a run may have work to be done without anything
	// happening, before that work is driven once more, and again before the run
	// is ended. Work that was not delivered to anybody yet waits for its turn,
	// and does not count: the time begins when it is first seen to have been, at
	// the latest a quarter of it afterwards. It must be longer than a call of a model or of a tool may take,
	// and than what is asked of callers by a provider that is busy. Default 1 h.
	StallAfter time.Duration
	// PoolWait is how long no living actor has to have announced a pool until the
	// calls that wait for it are answered without one. Default 30 s.
	PoolWait time.Duration

	// Concurrency is how many deliveries, and how many timers, are in work at
	// once. Default 64.
	Concurrency int
	// Drain is how long requests and deliveries may go on after Run's context
	// ends. Default 8 s.
	Drain time.Duration
	// Heartbeat is the rhythm of comments on event streams. Default 15 s.
	Heartbeat time.Duration
	// WriteTimeout is how long one write to a client may take. Default 30 s.
	WriteTimeout time.Duration
	// MaxStreams bounds the event streams that are open at once, MaxClientStreams those
	// of one client, by its remote address. A request beyond them is 429. Default
	// [MaxStreams] and [MaxClientStreams].
	MaxStreams, MaxClientStreams int
	// Clock tells the time of the directory's cache. Default time.Now.
	Clock func() time.Time
	// Logger gets what the log of events does not show. Default: discarded.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Store == nil, c.Queue == nil, c.Feed == nil, c.Timers == nil, c.Directory == nil, c.Agents == nil:
		return c, errors.New("gateway: Store, Queue, Feed, Timers, Directory and Agents are required")
	case c.Instance == "":
		return c, errors.New("gateway: Instance is required: it names this process in its events")
	}
	if c.DefaultNamespace == "" {
		c.DefaultNamespace = events.DefaultNamespace
	}
	if !events.ValidToken(c.DefaultNamespace) {
		return c, fmt.Errorf("gateway: namespace %q is not [a-z0-9][a-z0-9_-]{0,62}", c.DefaultNamespace)
	}
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
	}{
		{&c.Drain, 8 * time.Second}, {&c.Heartbeat, 15 * time.Second}, {&c.WriteTimeout, 30 * time.Second},
		{&c.StallAfter, StallAfter}, {&c.PoolWait, defaultPoolWait},
	} {
		if *d.value <= 0 {
			*d.value = d.usual
		}
	}
	for _, n := range []struct {
		value *int
		usual int
	}{{&c.Concurrency, 64}, {&c.MaxStreams, MaxStreams}, {&c.MaxClientStreams, MaxClientStreams}} {
		if *n.value <= 0 {
			*n.value = n.usual
		}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Gateway is the role. Its methods are safe for concurrent use.
type Gateway struct {
	cfg   Config
	store *runlog.Store
	log   journal.Log
	// followed is the log as event streams follow it, and frames what they show.
	followed *sharedlog.Log
	frames   frames
	streams  openStreams
	machine  *reducer.Machine
	table    *reducer.Table
	source   string
	launcher *launch.Launcher
	worker   *worker.Worker
	counts   *counters
	handler  http.Handler

	// closing is closed when Run's context ends, so that streams end.
	closing   chan struct{}
	closeOnce sync.Once
}

// New returns a gateway.
func New(cfg Config) (*Gateway, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		cfg: cfg, store: cfg.Store, log: cfg.Store.Log(), machine: cfg.Store.Machine(),
		source: worker.Source(role, cfg.Instance),
		counts: newCounters(), closing: make(chan struct{}),
	}
	g.table = g.machine.Table()
	g.streams = openStreams{most: cfg.MaxStreams, mostOfClient: cfg.MaxClientStreams, byClient: map[string]int{}}
	g.followed = sharedlog.New(g.log, sharedlog.Options{Logger: cfg.Logger})
	g.frames = frames{codec: g.machine.Codec(), kept: map[place]*made{}}
	g.launcher, err = launch.New(launch.Config{
		Store: cfg.Store, Source: g.source, Directory: cfg.Directory, Agents: cfg.Agents, Timers: cfg.Timers, Tombstones: cfg.Tombstones,
		Validator: cfg.Validator, CheckScript: cfg.CheckScript, CheckApproval: cfg.CheckApproval, CheckEstimator: cfg.CheckEstimator,
		FirstLook: g.lookAfter(), Clock: cfg.Clock,
	})
	if err != nil {
		return nil, err
	}
	g.worker, err = worker.New(worker.Config{
		Role: role, Instance: cfg.Instance, Store: cfg.Store, Queue: cfg.Queue, Feed: cfg.Feed,
		Inboxes:     []journal.Inbox{inbox},
		Handlers:    map[reducer.Kind]worker.Handler{reducer.KindDecide: worker.HandlerFunc(planDecide)},
		Arrived:     g.arrived,
		Concurrency: cfg.Concurrency, Drain: cfg.Drain, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	g.handler = g.routes()
	return g, nil
}

// Run does the role's work until ctx ends: it joins decisions, does what timers
// are for, answers the calls of pools that nobody serves, and serves HTTP if there
// is a listener. When ctx ends, event streams end at once, requests and
// deliveries get the drain time, and Run returns nil. Any other return is an
// error that waiting does not mend.
func (g *Gateway) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(ctx, func() { g.closeOnce.Do(func() { close(g.closing) }) })
	parts := []func(context.Context) error{g.worker.Run, g.watchTimers, g.watchPools}
	if g.cfg.Listener != nil {
		parts = append(parts, g.serve)
	}
	errs := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			err := part(ctx)
			if err != nil {
				stop()
			}
			errs <- err
		}()
	}
	var all error
	for range parts {
		all = errors.Join(all, <-errs)
	}
	return all
}

// Handler returns the HTTP of the gateway, for a server of one's own. Its event
// streams end with their request, or when Run's context ends.
func (g *Gateway) Handler() http.Handler { return g.handler }
