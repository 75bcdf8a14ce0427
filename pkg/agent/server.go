package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Server serves several agents on one bus in one process, with one set of roles. Make it
// with [Serve].
type Server struct {
	service *service
	close   func() error
	// serving is what the agents need, guarded by service.adding.
	agents  []*Agent
	serving serving
}

// errServerClosed is returned by agents whose server was closed.
var errServerClosed = errors.New("the agent's server is closed")

// Serve opens the place that the agents name, by default an embedded server, and runs their
// roles until [Server.Close]. It also continues the runs that are there. From then on the
// agents use the server. The context bounds only the start.
//
// Agents have unique names and the same graph, and a tool name means the same tool in all
// of them. Otherwise the error is a *[BuildError].
//
// On a bus that several processes serve, a name means the same in all of them. Serve,
// [Agent.Start] and [Agent.Run] fail with a *[journal.NameTakenError] if another living
// process uses one of the names for a different agent or model caller. Copies of one
// program may use the same names. Serve waits for the announcement of a killed process to
// expire, up to 30 s.
func Serve(ctx context.Context, agents ...*Agent) (*Server, error) {
	return serve(ctx, HTTP{}, agents)
}

// HTTP configures [ServeHTTP].
type HTTP struct {
	// Listener takes the connections. Default: a free port on loopback, see [Server.URL].
	Listener net.Listener
	// Token is the bearer token that requests need. Without one, anybody who reaches the
	// listener has access, so it should be on loopback.
	Token string
	// Hosts are further host names that requests to a server without a token may use.
	// Localhost and IP addresses are always allowed. Other names are refused, since a web
	// page could use them.
	Hosts []string
}

// ServeHTTP is [Serve] with the HTTP interface of a gateway, which starts, reads, steers and
// ends runs. They may be runs of these agents, or of any agent that uses their models and
// tools. [Server.Close] closes the listener, and so does a ServeHTTP that fails.
func ServeHTTP(ctx context.Context, options HTTP, agents ...*Agent) (*Server, error) {
	if options.Listener == nil {
		var err error
		if options.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
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
	s := &Server{service: service, close: sync.OnceValue(service.close), agents: slices.Clone(agents), serving: o}
	s.take(agents)
	return s, nil
}

// take makes the agents use the server.
func (s *Server) take(agents []*Agent) {
	for _, a := range agents {
		a.mu.Lock()
		a.server = s
		a.mu.Unlock()
	}
}

// Add makes the server serve further agents, under the rules of [Serve]. Runs continue
// meanwhile: work in flight finishes in the old roles. Sources of tools are opened once more. After an
// error the server serves the agents that it served before.
func (s *Server) Add(ctx context.Context, agents ...*Agent) error {
	s.service.adding.Lock()
	defer s.service.adding.Unlock()
	if s.service.over() {
		return errServerClosed
	}
	all := slices.Concat(s.agents, agents)
	o, err := served(all)
	switch {
	case err != nil:
	case len(o.estimators) > len(s.serving.estimators):
		err = errors.New("a server takes token estimators at its start only")
	case o.place != s.serving.place:
		err = errors.New("the agent is in another place than the server")
	}
	if err != nil {
		return &BuildError{err}
	}
	o.http = s.serving.http
	if err := s.service.add(ctx, o); err != nil {
		if s.service.over() {
			return errServerClosed
		}
		return err
	}
	s.agents, s.serving = all, o
	s.take(agents)
	return nil
}

// Handler returns the HTTP interface of the server for a server of the application's own: the
// API of a gateway with its event streams and its page. Its paths begin with /v1, except for
// /healthz, /readyz, /metrics and the page. Without a token of [HTTP] the application says who
// may use it.
func (s *Server) Handler() http.Handler { return s.service.host.Handler() }

// URL returns where [ServeHTTP] serves, such as http://127.0.0.1:8080; empty for [Serve].
func (s *Server) URL() string {
	if s.serving.http.Listener == nil {
		return ""
	}
	return "http://" + s.serving.http.Listener.Addr().String()
}

// Close ends the roles and closes the bus. Work in flight gets a few seconds. Runs that
// have not ended can be resumed on their data. The error says why the roles had ended
// before, if they had.
func (s *Server) Close() error { return s.close() }

// served is [together] for agents whose roles run in this process.
func served(agents []*Agent) (serving, error) {
	if len(agents) == 0 {
		return serving{}, errors.New("there are no agents to serve")
	}
	for _, a := range agents {
		if a.elsewhere {
			return serving{}, fmt.Errorf("the roles of agent %s run in other processes", a.def.Name)
		}
	}
	return together(agents)
}

// together is what serves all of the agents, and those that they call.
func together(agents []*Agent) (serving, error) {
	first := agents[0]
	o := serving{
		providers: map[string]llm.Caller{}, agents: map[string]string{}, callers: agents, graph: first.graph, machine: first.machine, logger: slog.New(slog.DiscardHandler),
	}
	names := map[string]bool{}
	for i, a := range slices.Concat(agents, called(agents)) {
		switch {
		case names[a.def.Name]:
			return o, fmt.Errorf("two agents are called %s: give one another name", a.def.Name)
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

// add adds an agent's providers, tools, sources, prices, estimators and callees.
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

// digest is equal for agents with the same definition and graph.
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

// same reports whether two values are equal. Functions never are.
func same(a, b any) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && a == b
}
