package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Server is several agents on one bus in one process: one set of roles serves all
// their runs. Make it with [Serve].
type Server struct {
	service *service
	close   func() error
}

// errServerClosed is for agents whose server was closed.
var errServerClosed = errors.New("the agent's server is closed")

// Serve opens the place that the agents name, an embedded server if they name none,
// and runs their roles until [Server.Close]; it also carries on the runs that are
// there. From then on the agents run on it. The context bounds the start alone.
//
// Each agent has a name of its own, all have the same graph, and a tool that two of
// them have is the same one: anything else is a *[BuildError].
//
// On a bus that other processes serve too, a name means the same in all of them:
// Serve, [Agent.Start] and [Agent.Run] fail with a *[journal.NameTakenError] if a process that
// lives has another agent or another model caller under one of the names. Copies of
// one program go together. A process that was killed is waited for until its
// announcement has expired, for up to [journal.AnnouncementTTL].
func Serve(ctx context.Context, agents ...*Agent) (*Server, error) {
	return serve(ctx, HTTP{}, agents)
}

// HTTP says how [ServeHTTP] answers HTTP.
type HTTP struct {
	// Listener takes the connections. Required.
	Listener net.Listener
	// Token is what requests must present as a bearer token. Empty: requests need
	// none, so the listener should be on loopback.
	Token string
	// Hosts are further names by which a server without a token may be addressed.
	// Localhost and IP addresses always may; other names are refused, since a web
	// page could take them.
	Hosts []string
}

// ServeHTTP is [Serve] that also answers the HTTP interface of a gateway: runs are
// started, read, steered and ended there. They may be of these agents, or of any that
// asks their models and tools. The listener is closed by [Server.Close], and before
// ServeHTTP returns an error.
func ServeHTTP(ctx context.Context, options HTTP, agents ...*Agent) (*Server, error) {
	if options.Listener == nil {
		return nil, &BuildError{errors.New("HTTP needs a Listener; Serve has no HTTP")}
	}
	s, err := serve(ctx, options, agents)
	if err != nil {
		_ = options.Listener.Close() // the roles may have closed it
	}
	return s, err
}

func serve(ctx context.Context, options HTTP, agents []*Agent) (*Server, error) {
	o, err := served(agents)
	if err != nil {
		return nil, &BuildError{err}
	}
	o.http = options
	service, err := o.open(ctx, running)
	if err != nil {
		return nil, err
	}
	s := &Server{service: service, close: sync.OnceValue(service.close)}
	for _, a := range agents {
		a.mu.Lock()
		a.server = s
		a.mu.Unlock()
	}
	return s, nil
}

// Close ends the roles, what is in work getting a few seconds, and closes the bus.
// Runs that have not ended stay as they are and can be resumed on their data. The
// error is why the roles had ended before, if they had.
func (s *Server) Close() error { return s.close() }

// served is [together] for agents whose roles run here.
func served(agents []*Agent) (serving, error) {
	if len(agents) == 0 {
		return serving{}, errors.New("there are no agents to serve")
	}
	for _, a := range agents {
		if a.elsewhere {
			return serving{}, fmt.Errorf("the roles of agent %s run elsewhere", a.def.Name)
		}
	}
	return together(agents)
}

// together is what serves all of the agents, and those that they call.
func together(agents []*Agent) (serving, error) {
	first := agents[0]
	o := serving{
		providers: map[string]llm.Caller{}, agents: map[string]string{}, graph: first.graph, machine: first.machine, logger: slog.New(slog.DiscardHandler),
	}
	names := map[string]bool{}
	for i, a := range slices.Concat(agents, called(agents)) {
		switch {
		case names[a.def.Name]:
			return o, fmt.Errorf("two agents are called %s: set Name", a.def.Name)
		case a.drawn != first.drawn || a.machine.Table().Hash() != first.machine.Table().Hash():
			return o, fmt.Errorf("the agents %s and %s have different graphs: one server has one", first.def.Name, a.def.Name)
		case i < len(agents) && a.place != place{} && o.place != place{} && a.place != o.place:
			return o, fmt.Errorf("agent %s is in another place than the agents before it", a.def.Name)
		}
		names[a.def.Name] = true
		o.agents[a.def.Name] = a.digest()
		if i < len(agents) {
			o.logger = a.logger
			if a.place != (place{}) {
				o.place = a.place
			}
		}
		if err := o.add(a); err != nil {
			return o, err
		}
	}
	return o, o.distinct()
}

// add takes in an agent's providers and tools, its sources, its prices, its
// estimators, and the tools that other agents are to it.
func (o *serving) add(a *Agent) error {
	switch {
	case o.prices == nil:
		o.prices = a.prices
	case a.prices != nil && !same(o.prices, a.prices):
		return fmt.Errorf("agent %s has other prices than the agents before it", a.def.Name)
	}
	o.estimators = o.estimators.With(a.estimators)
	o.sources = append(o.sources, a.sources...)
	for name, caller := range a.providers {
		if known, twice := o.providers[name]; twice && !same(known, caller) {
			return fmt.Errorf("two model callers are called %s", name)
		}
		o.providers[name] = caller
	}
	for _, t := range a.tools {
		known := toolOf(o.tools, t.Definition().Name)
		switch {
		case known == nil:
			o.tools = append(o.tools, t)
		case !same(known, t):
			return fmt.Errorf("two tools are called %s: give the agents the same one, or other names", t.Definition().Name)
		}
	}
	return o.addCallees(a)
}

// digest is the same for agents with one definition and one graph.
func (a *Agent) digest() string {
	sum := sha256.Sum256([]byte(agentfile.Hash(a.def) + a.machine.Table().Hash()))
	return hex.EncodeToString(sum[:16])
}

func toolOf(tools []tool.Tool, name string) tool.Tool {
	for _, t := range tools {
		if t.Definition().Name == name {
			return t
		}
	}
	return nil
}

// same reports whether two values are one; of functions that cannot be said.
func same(a, b any) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && a == b
}
