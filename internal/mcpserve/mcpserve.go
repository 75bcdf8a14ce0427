// Package mcpserve offers agents as tools to programs that speak MCP.
//
// Each agent is a tool of the same name with one argument, the task. A call starts a run and
// waits for its end. The text of the result is the answer; a run that ends in an error is a
// result with isError. Both hold the run's id. A client that sent a progress token gets every
// transition. If the client cancels the call or disconnects, or the server ends, the run is
// cancelled.
package mcpserve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// refreshEvery is how often the server lists the stored agents to tell clients of new
	// ones.
	refreshEvery = 10 * time.Second
	// refreshTimeout bounds one listing, for which clients that list tools wait.
	refreshTimeout = 5 * time.Second
)

// Options configure a [Server].
type Options struct {
	// Log and Store hold the runs, Control starts and cancels them. All required.
	Log     journal.Log
	Store   *runlog.Store
	Control *control.Controller
	// Namespace is that of agents and runs.
	Namespace string
	// Agent is the only agent that is offered. Nil: stored agents.
	Agent *events.Agent
	// Names are the stored agents that are offered. Empty: all.
	Names []string
	// Logger gets errors that clients do not get. Default: discarded.
	Logger *slog.Logger
}

// Server offers agents to any number of clients.
type Server struct {
	o   Options
	mcp *mcp.Server

	refreshing sync.Mutex
	// offered is each agent's tool as JSON.
	offered map[string]string
	// beginning guards closed: no call begins after the server waits for the calls.
	beginning sync.Mutex
	closed    bool
	calls     sync.WaitGroup
	// key seals what clients bring back with their answers.
	key []byte
	// most is how many sessions there may be over HTTP.
	most int
	// open are the runs whose clients are asked something and have not called again.
	asking sync.Mutex
	open   map[string]openRun
	// ending is the context of the calls, stop ends it.
	ending context.Context
	stop   context.CancelFunc
}

// errEnding is the answer to calls while the server ends.
var errEnding = errors.New("the server is shutting down; call again when it is back")

// begin counts a call until calls.Done. It returns false if the server is ending.
func (s *Server) begin() bool {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	if s.closed {
		return false
	}
	s.calls.Add(1)
	return true
}

// shutDown ends the calls in flight and refuses new ones.
func (s *Server) shutDown() {
	s.beginning.Lock()
	defer s.beginning.Unlock()
	s.closed = true
	s.stop()
}

// New returns a server that offers the agents. A name in [Options] without a stored agent is
// an error.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, offered: map[string]string{}, key: make([]byte, 32), open: map[string]openRun{}, most: maxSessions}
	_, _ = rand.Read(s.key) // it never fails
	s.ending, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "moorebus", Version: buildinfo.Read().Version}, &mcp.ServerOptions{
		Logger:       o.Logger,
		Instructions: "Each tool is an agent: it works on its task until it is done, which may take minutes.",
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}},
	})
	s.mcp.AddReceivingMiddleware(s.fresh)
	if o.Agent != nil {
		s.offer(o.Agent, s.announced(ctx))
		return s, nil
	}
	if err := s.refresh(ctx); err != nil {
		return nil, err
	}
	for _, name := range o.Names {
		if _, there := s.offered[name]; !there {
			return nil, fmt.Errorf("there is no agent %q in namespace %s; store it with `moorebus agents put FILE`", name, o.Namespace)
		}
	}
	return s, nil
}

// Serve serves one client until it disconnects or ctx ends, and returns when the runs of its
// calls have ended. Use a server once.
func (s *Server) Serve(ctx context.Context, t mcp.Transport) error {
	defer s.cancelOpen(ctx)
	defer s.calls.Wait()
	defer s.shutDown()
	defer s.watch(ctx)()
	defer context.AfterFunc(ctx, s.shutDown)()
	err := s.mcp.Run(ctx, t)
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, mcp.ErrConnectionClosed) {
		return nil // ctx ended, or the client disconnected
	}
	return err
}

// watch refreshes the offered agents until stop is called.
func (s *Server) watch(ctx context.Context) (stop func()) {
	if s.o.Agent != nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		tick := time.NewTicker(refreshEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.tryRefresh(ctx)
			}
		}
	})
	return func() { cancel(); watcher.Wait() }
}

// fresh is middleware that refreshes the agents before a client lists tools.
func (s *Server) fresh(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "tools/list" && s.o.Agent == nil {
			s.tryRefresh(ctx)
		}
		return next(ctx, method, req)
	}
}

// tryRefresh is refresh. If it fails, the agents stay as they were.
func (s *Server) tryRefresh(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, refreshTimeout)
	defer stop()
	if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
		s.o.Logger.Warn("the stored agents cannot be listed", "reason", err)
	}
}

// refresh offers the stored agents as tools.
func (s *Server) refresh(ctx context.Context) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	stored, err := s.o.Control.StoredAgents(ctx, s.o.Namespace)
	if err != nil {
		return err
	}
	announced := s.announced(ctx)
	there := map[string]bool{}
	for _, info := range stored {
		if len(s.o.Names) > 0 && !slices.Contains(s.o.Names, info.Name) {
			continue
		}
		there[info.Name] = true
		a := s.definition(ctx, info.Name)
		if a == nil && s.offered[info.Name] == "" {
			a = &events.Agent{Name: info.Name, Tools: []string{"?"}} // a definition of another build: what it can do is not known
		}
		if a != nil {
			s.offer(a, announced)
		}
	}
	for name := range s.offered {
		if !there[name] {
			delete(s.offered, name)
			s.mcp.RemoveTools(name)
		}
	}
	return nil
}

// definition returns a stored agent, or nil if it cannot be read.
func (s *Server) definition(ctx context.Context, name string) *events.Agent {
	data, err := s.o.Control.Agent(ctx, s.o.Namespace, name)
	if err != nil {
		return nil
	}
	a, err := agentfile.ParseDefinition(data, agentfile.JSON, agentfile.Options{Name: name})
	if err != nil {
		return nil
	}
	a.Name = name
	return &a
}

func (s *Server) machine() *reducer.Machine { return s.o.Store.Machine() }
