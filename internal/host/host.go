// Package host runs every role in one process, on a bus that exists. Package agent
// and the commands that work without other processes are built on it.
package host

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/a2a"
	"github.com/moorebus/moorebus/internal/actor"
	"github.com/moorebus/moorebus/internal/agui"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/custom"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/feature"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/httpapi"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/observer"
	"github.com/moorebus/moorebus/internal/planner"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/prices"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Options say what a [Host] runs.
type Options struct {
	// Bus is where the runs are. Required.
	Bus journal.Bus
	// Machine folds the runs; nil for the default one.
	Machine *reducer.Machine
	// Providers are the models by name, Tools the tools. Required, Tools may be
	// empty.
	Providers map[string]llm.Caller
	Tools     *toolset.Registry
	// Agents are the digests of the definitions of the agents that the process serves, by
	// name; see planner.Config. May be nil.
	Agents map[string]string
	// Prices says what models cost. Default: prices.Builtin.
	Prices llm.Prices
	// Subagents are the agents that are tools of others.
	Subagents []subagent.Tool
	// Results bounds and cleans what the tools give back.
	Results toolcall.Results
	// Estimators are the application's own token estimators, by name, besides bytes/4 and
	// o200k.
	Estimators tokens.Set
	// Instance names the host in its events, and among those that share the bus.
	// Default: the name of the program, the machine, the process id and a number.
	Instance string
	// Listener, TLS, Token and Hosts are those of HTTP, see httpapi.Config; nil: no HTTP.
	Listener net.Listener
	TLS      *tls.Config
	Token    string
	Hosts    []string
	// MaxStreams and MaxClientStreams bound the event streams of HTTP, see
	// httpapi.Config.
	MaxStreams, MaxClientStreams int
	// A2AAgent is the stored agent that is found by programs which speak A2A, see
	// a2a.Config.
	A2AAgent string
	// CheckScript checks scripts of agents that come over HTTP; may be nil.
	CheckScript func(script json.RawMessage) error
	// Snapshots keeps snapshots of long runs, taken every SnapshotEvery events; nil or 0:
	// none are taken. Tombstones keep purged runs from being started again; may be nil.
	Snapshots     ports.Snapshots
	SnapshotEvery int
	Tombstones    kv.Store
	// Ready is called by the gateway's /readyz; may be nil.
	Ready func(context.Context) error
	// StallAfter is how long a run with work to be done may be silent, see
	// control.Config. Default 1 h.
	StallAfter time.Duration
	// PoolWait is the gateway's, see control.Config; 0: its default.
	PoolWait time.Duration
	// Features are the gateway's. Default: all, with their own defaults.
	Features feature.Set
	// States makes the handlers of the states of the machine's own graph that are served
	// here, and of built-in states, see custom.Around; nil: none. StateTimeout bounds one
	// call of a handler; 0: the default.
	States       func(*Host) map[events.State]custom.Handler
	StateTimeout time.Duration
	// Metrics keeps the numbers of the process, which HTTP serves at /metrics. Default: a
	// registry of the host's own.
	Metrics *metrics.Registry
	// Concurrency and Drain are those of every role; 0: its defaults.
	Concurrency int
	Drain       time.Duration
	// Logger gets the roles' logs. Default: discarded.
	Logger *slog.Logger
}

// Host is all roles in one process. They share the runs in memory, so a role need not read
// what another one appended.
type Host struct {
	store    *runlog.Store
	gateway  *control.Controller
	http     *httpapi.Server // nil for a client
	features feature.Parts
	// threads forgets threads of AG-UI.
	threads func(context.Context) error
	// next gets the roles that Run is to run besides the present ones.
	next  chan *crew
	ended chan struct{}

	mu  sync.Mutex
	now *crew
}

// crew is the roles that work on runs, except for the gateway. A host changes its models,
// tools and handlers by a new crew: the old one ends what it has in flight.
type crew struct {
	planner *planner.Planner
	roles   []role
	// owners are the roles by the states that they serve.
	owners map[events.State]role
	retire context.CancelFunc
	done   chan struct{}
}

type role interface {
	Run(ctx context.Context) error
	Step(ctx context.Context) error
}

// announcer is a role that announces itself to other processes.
type announcer interface {
	Announce(ctx context.Context) error
	Withdraw(ctx context.Context) error
}

// withdrawTime bounds the attempt to withdraw what an update announced.
const withdrawTime = 2 * time.Second

// hosts counts the hosts of this process.
var hosts atomic.Int64

// instanceName returns a name that no other host has.
func instanceName() string {
	machine, _ := os.Hostname() // without one the rest must do
	name := fmt.Sprintf("%s-%s-%d-%d", filepath.Base(os.Args[0]), machine, os.Getpid(), hosts.Add(1))
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, name)
}

// prepare returns the process that makes a host's roles.
func (o *Options) prepare(snapshots ports.Snapshots) *Process {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New()
	}
	store := runlog.New(runlog.Options{Log: o.Bus, Machine: o.Machine, Snapshots: snapshots, Meter: o.Metrics, Appended: o.Metrics.Appended, Logger: o.Logger})
	return o.process(store)
}

// process returns a process with its own instance.
func (o *Options) process(store *runlog.Store) *Process {
	base := worker.Base{Instance: cmp.Or(o.Instance, instanceName()), Store: store, Concurrency: o.Concurrency, Drain: o.Drain, Logger: o.Logger}
	return NewProcess(base, o.Bus, o.Tombstones, o.Estimators)
}

// New makes the roles; nothing runs before [Host.Run].
func New(o Options) (*Host, error) {
	if o.Bus == nil || o.Tools == nil {
		return nil, errors.New("host: Bus and Tools are required")
	}
	process := o.prepare(o.Snapshots)
	h := &Host{store: process.Store, next: make(chan *crew), ended: make(chan struct{})}
	if err := h.addGateway(process, o); err != nil {
		return nil, err
	}
	var err error
	h.now, err = h.crew(process, o)
	return h, err
}

// crew makes the roles that work on runs.
func (h *Host) crew(process *Process, o Options) (*crew, error) {
	if err := CheckSchemas(o.Tools, nil); err != nil {
		return nil, err
	}
	if o.Prices == nil {
		o.Prices = prices.Builtin()
	}
	c := &crew{owners: map[events.State]role{events.WaitingForHuman: h.gateway}, done: make(chan struct{})}
	process.Retire, c.retire = context.WithCancel(context.Background())
	process.Crew = new(worker.Crew)
	own, builtin := o.handlers(h)
	if len(builtin) > 0 {
		process.Wrap = custom.Around(builtin, o.StateTimeout)
	}
	ob, err := process.Observer(observer.Config{Snapshots: o.Snapshots, SnapshotEvery: o.SnapshotEvery})
	if err != nil {
		return nil, err
	}
	if builtin[events.Observing] == nil && builtin[events.ParallelActing] == nil {
		process.Follow = toolcall.Follow(ob.Follow)
	}
	if c.planner, err = process.Planner(planner.Config{Providers: o.Providers, Agents: o.Agents, Prices: o.Prices}); err != nil {
		return nil, err
	}
	c.add(c.planner, events.Planning, events.Reflecting)
	a, err := process.Actor(actor.Config{Tools: o.Tools, Results: o.Results})
	if err != nil {
		return nil, err
	}
	c.add(a, events.Acting, events.ParallelActing)
	c.add(ob, events.Observing, events.Paging)
	if len(o.Subagents) > 0 {
		s, err := process.Subagents(subagent.Config{Tools: o.Subagents, Results: o.Results, CheckScript: o.CheckScript})
		if err != nil {
			return nil, err
		}
		c.add(s)
	}
	if len(own) > 0 {
		r, err := custom.New(custom.Config{Base: process.Base, States: own, Timeout: o.StateTimeout})
		if err != nil {
			return nil, err
		}
		c.add(r, slices.Collect(maps.Keys(own))...)
	}
	return c, nil
}

// handlers returns the handlers of the graph's own states, and those of built-in ones.
func (o *Options) handlers(h *Host) (own, builtin map[events.State]custom.Handler) {
	own, builtin = map[events.State]custom.Handler{}, map[events.State]custom.Handler{}
	if o.States == nil {
		return own, builtin
	}
	for state, handler := range o.States(h) {
		if custom.Wraps(state) {
			builtin[state] = handler
		} else {
			own[state] = handler
		}
	}
	return own, builtin
}

// add adds a role, with the states that it alone serves.
func (c *crew) add(r role, states ...events.State) {
	c.roles = append(c.roles, r)
	for _, state := range states {
		c.owners[state] = r
	}
}

// announce announces what the roles offer.
func (c *crew) announce(ctx context.Context) error {
	for _, r := range c.roles {
		if a, ok := r.(announcer); ok {
			if err := a.Announce(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// withdraw takes back what announce announced. What the bus does not take back expires.
func (c *crew) withdraw(ctx context.Context) error {
	var errs []error
	for _, r := range c.roles {
		if a, ok := r.(announcer); ok {
			errs = append(errs, a.Withdraw(ctx))
		}
	}
	return errors.Join(errs...)
}

// run runs the roles until ctx ends or, once they are retired, until their work has ended.
func (c *crew) run(ctx context.Context) error {
	defer close(c.done)
	var parts []func(context.Context) error
	for _, r := range c.roles {
		parts = append(parts, r.Run)
	}
	return worker.RunAll(ctx, parts...)
}

// addGateway adds the gateway with its HTTP.
func (h *Host) addGateway(process *Process, o Options) (err error) {
	if h.gateway, err = process.Controller(o.control(), o.Providers); err != nil {
		return err
	}
	h.features = o.features().On(h.gateway)
	face := agui.On(h.gateway, o.Bus, o.Logger)
	h.threads = face.Run
	h.http, err = httpapi.New(httpapi.Config{
		Control: h.gateway, Rows: h.features.Rows(), Pages: o.features().Pages(), Feed: o.Bus, Listener: o.Listener, TLS: o.TLS, Token: o.Token, Hosts: o.Hosts,
		Faces:      []route.Face{face, a2a.New(a2a.Config{Control: h.gateway, Feed: o.Bus, Agent: o.A2AAgent, Token: o.Token != ""})},
		MaxStreams: o.MaxStreams, MaxClientStreams: o.MaxClientStreams, Drain: o.Drain, Metrics: o.Metrics.Handler(), Logger: o.Logger,
	})
	return err
}

func (o *Options) features() feature.Set {
	if len(o.Features) == 0 {
		return all.Features()
	}
	return o.Features
}

func (o *Options) control() control.Config {
	return control.Config{StallAfter: o.StallAfter, PoolWait: o.PoolWait, Ready: o.Ready, CheckScript: o.CheckScript, Results: o.Results}
}

// Gateway returns the gateway, to start and control runs with. Its methods work
// before and while the host runs.
func (h *Host) Gateway() *control.Controller { return h.gateway }

// Store returns the runs in memory.
func (h *Host) Store() *runlog.Store { return h.store }

// Handler returns the handler of HTTP requests, for a server of the application's own.
func (h *Host) Handler() http.Handler { return h.http.Handler() }

// Model returns the model of a run for handlers, see planner.Planner.Caller.
func (h *Host) Model(mem *reducer.Memory) llm.Caller { return h.crewNow().planner.Caller(mem) }

// Speak begins a message of a handler, see [planner.Planner.Speak].
func (h *Host) Speak(run events.Run) (say func(text string), end func()) {
	return h.crewNow().planner.Speak(run)
}

func (h *Host) crewNow() *crew {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// Announce announces the host's tools and providers, so that a run that needs them can
// start as soon as it returns. It fails with a *[journal.NameTakenError] if another
// process on the bus uses the name of a provider or an agent for something else.
func (h *Host) Announce(ctx context.Context) error { return h.crewNow().announce(ctx) }

// Update replaces the models, tools, sub-agents and handlers of a host that runs. The old
// ones end what they have in flight; retired is closed then. What the gateway checks and
// what HTTP serves stays as it was made. After an error everything is as before.
func (h *Host) Update(ctx context.Context, o Options) (retired <-chan struct{}, err error) {
	o.Instance = "" // the old roles still have theirs
	c, err := h.crew(o.process(h.store), o)
	if err != nil {
		return nil, err
	}
	if err = c.announce(ctx); err == nil {
		select {
		case h.next <- c:
		case <-h.ended:
			err = errors.New("the roles have ended")
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		c.retire()
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
		defer stop()
		return nil, errors.Join(err, c.withdraw(ctx))
	}
	h.mu.Lock()
	old := h.now
	h.now = c
	h.mu.Unlock()
	old.retire()
	return old.done, nil
}

// Run runs every role until ctx ends or one of them fails, and returns when all
// have ended.
func (h *Host) Run(ctx context.Context) error {
	defer close(h.ended)
	return worker.RunAll(ctx, h.gateway.Run, h.features.Run, h.http.Run, h.threads, h.runCrews)
}

// runCrews runs the present roles, and those of every update.
func (h *Host) runCrews(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running, results := 0, make(chan error)
	start := func(c *crew) {
		running++
		go func() { results <- c.run(ctx) }()
	}
	start(h.crewNow())
	var all error
	for running > 0 {
		select {
		case c := <-h.next:
			start(c)
		case err := <-results:
			if running--; err != nil {
				all = errors.Join(all, err)
				stop()
			}
		}
	}
	return all
}

// NewClient returns a host without roles, for a bus that other processes serve.
func NewClient(o Options) (*Host, error) {
	process := o.prepare(nil)
	gateway, err := process.Controller(o.control(), nil)
	if err != nil {
		return nil, err
	}
	return &Host{store: process.Store, gateway: gateway, features: o.features().Clients().On(gateway)}, nil
}

// standing is where a run stands between two steps.
type standing struct {
	n, armed uint64
	state    events.State
	ended    bool
	// step lets the role that serves what is due next take one delivery; nil: no role here does.
	step func(context.Context) error
	// waits says that the run waits for a human or its client.
	waits bool
}

// ErrWaits says that the run waits for a human or its client.
var ErrWaits = errors.New("the run waits for a human or its client")

// Step lets roles work until the run's next transition is in the log. No role may run
// meanwhile. It returns the number of the last event, and the state after it.
func (h *Host) Step(ctx context.Context, run events.Run) (uint64, events.State, error) {
	before, err := h.standing(ctx, run)
	for now := before; err == nil; now, err = h.standing(ctx, run) {
		switch {
		case now.ended, now.armed != before.armed:
			return now.n, now.state, nil
		case now.step == nil && now.waits:
			return now.n, now.state, ErrWaits
		case now.step == nil:
			return now.n, now.state, fmt.Errorf("no role here serves the state %s", now.state)
		}
		if err := now.step(ctx); err != nil {
			return now.n, now.state, err
		}
	}
	return before.n, before.state, err
}

func (h *Host) standing(ctx context.Context, at events.Run) (standing, error) {
	run := h.store.Acquire(at)
	defer h.store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return standing{}, err
	}
	mem := run.Memory()
	s := standing{n: mem.N, armed: mem.Control.Armed, state: mem.State, ended: run.Terminal()}
	s.waits = mem.State == events.WaitingForHuman || mem.State == events.WaitingForUser || len(mem.ClientCalls()) > 0
	for _, e := range run.Effects() {
		if e.Held {
			return s, errors.New("the run is paused")
		}
		if e.Client {
			s.waits = true
			continue
		}
		owner := e.State
		if e.Kind == effects.KindEnd {
			owner = mem.State
		}
		if e.Kind == effects.KindJoin && mem.Control.LastResult == events.ClientPool {
			s.step = h.gateway.ClientTools.Step
			break
		}
		if role := h.crewNow().owners[owner]; role != nil {
			s.step = role.Step
			break
		}
	}
	return s, nil
}

// Withdraw withdraws what [Host.Announce] announced, for a host that never ran.
func (h *Host) Withdraw(ctx context.Context) error { return h.crewNow().withdraw(ctx) }
