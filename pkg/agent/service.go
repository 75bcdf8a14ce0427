package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/custom"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// conduct says who runs the roles of a service.
type conduct int

const (
	// running: the service runs them.
	running conduct = iota
	// stepping: [Run.Step] runs them.
	stepping
	// elsewhere: other processes run them.
	elsewhere
)

// serving has the parts of a service.
type serving struct {
	place     place
	providers map[string]llm.Caller
	// agents are the digests of the agents' definitions, by name.
	agents  map[string]string
	tools   []tool.Tool
	sources []opener
	// subagents are the callees as tools; callers are the agents that were named, which may
	// call others.
	subagents []subagent.Tool
	callers   []*Agent
	graph     *Graph
	machine   *reducer.Machine
	// prices and estimators may be nil.
	prices     llm.Prices
	estimators tokens.Set
	logger     *slog.Logger
	// http has no listener without HTTP.
	http HTTP
}

// service is an open bus with its roles.
type service struct {
	bus     journal.Bus
	host    *host.Host
	machine *reducer.Machine
	logger  *slog.Logger
	conduct conduct
	release func()
	stop    context.CancelFunc
	// retiring are the parts that an addition replaced.
	retiring sync.WaitGroup
	// adding is held while agents are added, and at the end; stopSources ends the registry's
	// sources.
	adding      sync.Mutex
	stopSources func()
	// ended is closed when the roles have ended; failed is why.
	ended  chan struct{}
	failed error
}

// open opens the bus and starts the roles. The context bounds only the start.
func (o serving) open(ctx context.Context, how conduct) (*service, error) {
	registry, err := newRegistry(o.tools, o.sources)
	if err != nil {
		return nil, &BuildError{err}
	}
	n := needs{pools: o.pools(registry), states: o.graph.own()}
	bus, release, err := o.place.open(ctx, n, o.logger)
	if err != nil {
		return nil, err
	}
	s := &service{bus: bus, machine: o.machine, logger: o.logger, conduct: how, release: release, stop: func() {}, stopSources: func() {}, ended: make(chan struct{})}
	if s.host, err = o.makeHost(bus, registry, how); err != nil {
		release()
		return nil, &BuildError{err}
	}
	if how != elsewhere {
		s.stopSources = registry.Start(context.Background(), o.logger)
		registry.Ready(ctx)
	}
	if err := s.start(ctx, o.callers); err != nil {
		_ = s.close()
		return nil, err
	}
	return s, nil
}

// pools returns the pools of the tools, and the pool of agents if there are callees.
func (o serving) pools(registry *toolset.Registry) []string {
	pools := registry.Pools()
	if len(o.subagents) > 0 {
		pools = append(pools, events.AgentsPool)
	}
	return pools
}

func (o serving) makeHost(bus journal.Bus, registry *toolset.Registry, how conduct) (*host.Host, error) {
	options := o.options(bus, registry)
	if how == elsewhere {
		return host.NewClient(options)
	}
	return host.New(options)
}

func (o serving) options(bus journal.Bus, registry *toolset.Registry) host.Options {
	return host.Options{
		Bus: bus, Machine: o.machine, Tools: registry, Logger: o.logger, Providers: o.providers, Agents: o.agents, Prices: o.prices, Estimators: o.estimators,
		Subagents: o.subagents, StateTimeout: o.graph.handlerTimeout(), Listener: o.http.Listener, Token: o.http.Token, Hosts: o.http.Hosts,
		CheckScript: script.Check,
		States:      func(h *host.Host) map[events.State]custom.Handler { return o.graph.handlers(h, registry) },
	}
}

// start announces the roles, stores the callees and, unless they step, runs the roles.
func (s *service) start(ctx context.Context, callers []*Agent) error {
	if s.conduct != elsewhere {
		// First, since nothing may happen under a name that is taken.
		err := s.host.Announce(ctx)
		if err == nil {
			err = s.store(ctx, callers)
		}
		if err != nil {
			close(s.ended)
			return err
		}
	}
	if s.conduct != running {
		close(s.ended)
		return nil
	}
	var hostCtx context.Context
	hostCtx, s.stop = context.WithCancel(context.Background())
	go func() {
		defer close(s.ended)
		s.failed = s.host.Run(hostCtx)
	}()
	return nil
}

// broken returns a channel that is closed when the roles have ended; nil if the service
// runs none.
func (s *service) broken() <-chan struct{} {
	if s.conduct != running {
		return nil
	}
	return s.ended
}

// over reports whether the roles have ended.
func (s *service) over() bool {
	select {
	case <-s.broken():
		return true
	default:
		return false
	}
}

// close ends the roles and releases the bus. The error is the roles' error.
func (s *service) close() error {
	s.stop()
	<-s.ended
	s.adding.Lock() // an addition that is not done fails now
	defer s.adding.Unlock()
	if s.conduct == stepping {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_ = s.host.Withdraw(ctx) // else the announcement expires
		cancel()
	}
	s.retiring.Wait()
	s.stopSources()
	s.release()
	return s.failed
}

// add makes the service serve what o has, instead of what it served before.
func (s *service) add(ctx context.Context, o serving) error {
	registry, err := newRegistry(o.tools, o.sources)
	if err != nil {
		return &BuildError{err}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.ended: // nothing is worth waiting for
			cancel()
		case <-ctx.Done():
		}
	}()
	stop := registry.Start(context.Background(), o.logger)
	registry.Ready(ctx)
	if err := s.store(ctx, o.callers); err != nil {
		stop()
		return err
	}
	retired, err := s.host.Update(ctx, o.options(s.bus, registry))
	if err != nil {
		stop()
		return err
	}
	old := s.stopSources
	s.stopSources = stop
	s.retiring.Go(func() { <-retired; old() })
	return nil
}

// shared is the service that an agent's runs share while there are any. Its lock is held
// while a service opens or closes, since a place has one service at a time.
type shared struct {
	mu  sync.Mutex
	now *tenancy
}

// tenancy is a service with its number of runs. The last run closes it.
type tenancy struct {
	service *service
	users   int
	close   func() error
}

// acquire returns the service and a function that releases it. It opens a service for the
// first run, and a new one if the roles have ended: runs of the old one get the error from
// [Run.Release].
func (s *shared) acquire(ctx context.Context, open func(context.Context) (*service, error)) (*service, func() error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil && s.now.service.over() {
		_ = s.now.close() // its runs return the error
		s.now = nil
	}
	if s.now == nil {
		service, err := open(ctx)
		if err != nil {
			return nil, nil, err
		}
		s.now = &tenancy{service: service, close: sync.OnceValue(service.close)}
	}
	t := s.now
	t.users++
	return t.service, sync.OnceValue(func() error { return s.release(t) }), nil
}

// release closes a service after its last run.
func (s *shared) release(t *tenancy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.users--; t.users > 0 {
		return nil
	}
	if s.now == t {
		s.now = nil
	}
	return t.close()
}

// place is where runs are: a bus, a connection, a URL or a directory. The zero value is a
// temporary directory.
type place struct {
	bus  journal.Bus
	conn *nats.Conn
	url  string
	dir  string
}

// embedded reports whether the place is a server of this process.
func (p place) embedded() bool { return p.bus == nil && p.conn == nil && p.url == "" }

// needs lists what a bus is set up with.
type needs struct {
	pools  []string
	states []events.State
}

// open returns the bus and a function that releases it.
func (p place) open(ctx context.Context, n needs, logger *slog.Logger) (bus journal.Bus, release func(), err error) {
	switch {
	case p.bus != nil:
		return p.bus, func() {}, nil
	case p.conn != nil:
		bus, err := connected(ctx, p.conn, n, natsbus.Options{Logger: logger})
		return bus, func() {}, err
	case p.url != "":
		return p.dial(ctx, n, logger)
	}
	return p.serve(ctx, n, logger)
}

// connected opens the bus of a connection and sets it up if necessary.
func connected(ctx context.Context, conn *nats.Conn, n needs, o natsbus.Options) (journal.Bus, error) {
	bus, err := natsbus.Open(ctx, conn, o)
	if errors.Is(err, journal.ErrNotReady) {
		if err := natsbus.Init(ctx, conn, natsbus.InitOptions{Pools: n.pools, States: n.states}); err != nil {
			return nil, err
		}
		bus, err = natsbus.Open(ctx, conn, o)
	}
	if err != nil {
		return nil, err // not a nil *natsbus.Bus in an interface
	}
	return bus, nil
}

func (p place) dial(ctx context.Context, n needs, logger *slog.Logger) (journal.Bus, func(), error) {
	o, err := natsconn.FromEnv(os.Getenv)
	if err != nil {
		return nil, nil, err
	}
	o.URL, o.Name, o.Logger = p.url, "moorebus/agent", logger
	conn, err := natsconn.Connect(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	bus, err := connected(ctx, conn, n, natsbus.Options{Logger: logger})
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return bus, conn.Close, nil
}

// serve starts an embedded server.
func (p place) serve(ctx context.Context, n needs, logger *slog.Logger) (journal.Bus, func(), error) {
	dir, remove := p.dir, func() {}
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "moorebus-"); err != nil {
			return nil, nil, err
		}
		remove = func() { _ = os.RemoveAll(dir) }
	}
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir, SyncAlways: true, Logger: logger})
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
	if err := natsbus.Init(ctx, conn, natsbus.InitOptions{Pools: n.pools, States: n.states, Alone: true, Storable: server.Storable(), Sync: natsbus.SyncAlways}); err != nil {
		closeAll()
		return nil, nil, err
	}
	bus, err := connected(ctx, conn, n, natsbus.Options{Logger: logger, Full: server.Full})
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return bus, closeAll, nil
}
