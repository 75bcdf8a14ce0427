package agent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// conduct is how the roles of a service are run.
type conduct int

const (
	// running runs them.
	running conduct = iota
	// stepping leaves them to Step.
	stepping
	// elsewhere has none: other processes run them.
	elsewhere
)

// serving is what a service is made of.
type serving struct {
	place     place
	providers map[string]llm.Caller
	// agents are the digests of the agents' definitions, by name.
	agents  map[string]string
	tools   []tool.Tool
	sources []opener
	// subagents are the agents as tools, stored those whose definitions they need.
	subagents []subagent.Tool
	stored    []*Agent
	graph     *Graph
	machine   *reducer.Machine
	// prices and estimators may be nil.
	prices     llm.Prices
	estimators tokens.Set
	logger     *slog.Logger
	// http has no listener if there is no HTTP.
	http HTTP
}

// service is an open bus, and the roles on it.
type service struct {
	bus     journal.Bus
	host    *host.Host
	machine *reducer.Machine
	conduct conduct
	release func()
	stop    context.CancelFunc
	// stopSources ends what gives the registry its tools.
	stopSources func()
	// ended is closed when the roles have ended; failed is why.
	ended  chan struct{}
	failed error
}

// open opens the bus and starts the roles. The context bounds the start alone.
func (o serving) open(ctx context.Context, how conduct) (*service, error) {
	registry, err := newRegistry(o.tools, o.sources)
	if err != nil {
		return nil, &BuildError{err}
	}
	n := needs{pools: o.pools(registry), states: slices.Sorted(maps.Keys(o.graph.handlers()))}
	bus, release, err := o.place.open(ctx, n, o.logger)
	if err != nil {
		return nil, err
	}
	s := &service{bus: bus, machine: o.machine, conduct: how, release: release, stop: func() {}, stopSources: func() {}, ended: make(chan struct{})}
	if s.host, err = o.makeHost(bus, registry, how); err != nil {
		release()
		return nil, &BuildError{err}
	}
	if how != elsewhere {
		s.stopSources = registry.Start(context.Background(), o.logger)
		registry.Settle(ctx)
	}
	if err := s.start(ctx, o.stored); err != nil {
		_ = s.close()
		return nil, err
	}
	return s, nil
}

// pools are those of the tools, and that of agents where some are tools.
func (o serving) pools(registry *tool.Registry) []string {
	pools := registry.Pools()
	if len(o.subagents) > 0 {
		pools = append(pools, events.AgentsPool)
	}
	return pools
}

func (o serving) makeHost(bus journal.Bus, registry *tool.Registry, how conduct) (*host.Host, error) {
	options := host.Options{
		Bus: bus, Machine: o.machine, Tools: registry, Logger: o.logger, Providers: o.providers, Agents: o.agents, Prices: o.prices, Estimators: o.estimators,
		Subagents: o.subagents, States: o.graph.handlers(), StateTimeout: o.graph.handlerTimeout(), Listener: o.http.Listener, Token: o.http.Token, Hosts: o.http.Hosts,
		CheckScript: scripted.CheckScript,
	}
	if how == elsewhere {
		return host.NewClient(options)
	}
	return host.New(options)
}

// start makes the roles known, and the agents that are called, and runs the roles, if
// they are to run.
func (s *service) start(ctx context.Context, stored []*Agent) error {
	if s.conduct != elsewhere {
		// First of all, since nothing may be done under a name that is taken.
		err := s.host.Announce(ctx)
		if err == nil {
			err = s.store(ctx, stored)
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

// broken is closed when the roles have ended by themselves; nil if there are none
// that could.
func (s *service) broken() <-chan struct{} {
	if s.conduct != running {
		return nil
	}
	return s.ended
}

// over reports whether the roles have ended by themselves, or by a close.
func (s *service) over() bool {
	select {
	case <-s.broken():
		return true
	default:
		return false
	}
}

// close ends the roles and lets go of the bus. The error is that of the roles.
func (s *service) close() error {
	s.stop()
	<-s.ended
	if s.conduct == stepping {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_ = s.host.Withdraw(ctx) // else the announcement expires
		cancel()
	}
	s.stopSources()
	s.release()
	return s.failed
}
