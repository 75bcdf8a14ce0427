// Package agent makes agents of Go values and runs them.
//
// The least that an agent needs is a name and a model:
//
//	a, err := agent.New("calculator").
//		LLM(model).
//		Tool(agent.Func("multiply", "Multiplies two numbers.", multiply, agent.Pure)).
//		Build()
//	answer, err := a.Run(ctx, "What is 6 times 7?")
//
// [Agent.Run] runs a task to its end. [Agent.Start] returns the [Run] at once, to watch it,
// to talk to it in chat mode, to approve or reject its calls, or to steer it. Every run is a log of
// events. The log is on a server inside the process, unless the agent is given another place
// ([Builder.Data], [Builder.NATS], [Builder.Conn], [Builder.Bus]). So [Agent.Attach] can
// continue a run whose process died. [Agent.Stepwise] runs event by event.
//
// A [Graph] adds custom states, events, transitions and memory, and changes what the
// built-in states do. [Run.Outputs] and [Run.Events] show what happens. [Serve] puts
// several agents on one server, with HTTP if wanted.
//
// A program needs no other package to run an agent. Custom tools are made with package
// tool, custom models with package llm, and processes that only run tools with package
// actor.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Agent is an agent: a definition with the models and tools that its runs use. It may run
// any number of tasks and is safe for concurrent use. Concurrent runs share one set of
// roles.
type Agent struct {
	def       events.Agent
	namespace string
	providers map[string]llm.Caller
	tools     []tool.Tool
	sources   []opener
	callees   []callee
	// graph is a copy of drawn, made when the agent was built.
	graph, drawn *Graph
	machine      *reducer.Machine
	prices       llm.Prices
	estimators   tokens.Set
	place        place
	elsewhere    bool
	logger       *slog.Logger
	// serving makes the service of this agent alone.
	serving serving

	mu sync.Mutex
	// server is set by Serve. Without a server the runs share own.
	server *Server
	own    shared
}

// Run runs a task to its end and returns the answer. In chat mode it returns the first
// answer and closes the conversation. If a run ends without an answer, the error is a
// *[Failed] or one of the other types of this package. If the context ends, the run is
// cancelled and the error is the context's.
func (a *Agent) Run(ctx context.Context, task string, options ...StartOption) (answer string, err error) {
	r, err := a.Start(ctx, append(options[:len(options):len(options)], Task(task))...)
	if err != nil {
		return "", err
	}
	defer func() { err = cmp.Or(err, r.Release()) }()
	answer, err = r.Answer(ctx)
	if err == nil && a.def.Mode == events.ModeChat {
		return answer, r.Finish(ctx)
	}
	if err != nil && ctx.Err() != nil {
		stop, done := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer done()
		err = also(err, r.Cancel(stop, context.Cause(ctx).Error()))
	}
	return answer, err
}

// cancelTimeout bounds the attempt to cancel a run whose context has ended.
const cancelTimeout = 5 * time.Second

// also joins two errors, if there are two.
func also(err, another error) error {
	if err == nil || another == nil {
		return cmp.Or(err, another)
	}
	return errors.Join(err, another)
}

// Start starts a run, which proceeds without the caller. Call [Run.Release] when the run
// is not needed any more. If the context ends while it is unknown whether the run was
// started, the run is cancelled, unless [RunID] names it. A request that the gateway refuses, such as the id of
// another run, is a *[Refused].
//
// A deadline of ctx is also the run's: the run ends with the code max_wall_time at that
// time at the latest, in whichever process it is then. The models, tools and handlers that
// this process calls for the run and its sub-runs see the values of ctx, but not its end or
// its deadline. A run that another process serves, or that is attached to after a restart,
// has no such values.
func (a *Agent) Start(ctx context.Context, options ...StartOption) (*Run, error) {
	service, release, err := a.acquire(ctx)
	if err != nil {
		return nil, err
	}
	return a.start(ctx, service, release, options)
}

// Attach returns an existing run of the agent's place and namespace, to watch and to steer
// it. If the process of the run died, this one continues it: work in flight is done again,
// as its class allows. The agent needs the same place and the same graph. If other
// processes serve the run, Attach changes nothing. The error is a [journal.ErrNotFound] if
// there is no such run.
func (a *Agent) Attach(ctx context.Context, run string) (*Run, error) {
	service, release, err := a.acquire(ctx)
	if err != nil {
		return nil, err
	}
	at := service.host.Store().Place(a.namespace, run)
	err = events.CheckID(run)
	if err != nil {
		err = fmt.Errorf("%w: %w", journal.ErrNotFound, err)
	} else {
		_, err = service.bus.Head(ctx, at)
	}
	if err != nil {
		_ = release() // the run is what was asked for
		return nil, fmt.Errorf("run %q: %w", run, err)
	}
	return a.open(service, release, at), nil
}

// Stepwise is [Agent.Start] for a run that only [Run.Step] advances. No timers fire. Nothing
// else may run in the agent's place meanwhile.
func (a *Agent) Stepwise(ctx context.Context, options ...StartOption) (*Run, error) {
	a.mu.Lock()
	served := a.server != nil
	a.mu.Unlock()
	if served || a.elsewhere {
		return nil, fmt.Errorf("%w: the agent's roles are run by its server", ErrStepwise)
	}
	if len(a.callees) > 0 {
		return nil, fmt.Errorf("%w: the agent calls others, whose runs continue by themselves", ErrStepwise)
	}
	service, err := a.serving.open(ctx, stepping)
	if err != nil {
		return nil, err
	}
	return a.start(ctx, service, service.close, options)
}

// open watches a run.
func (a *Agent) open(s *service, release func() error, at events.Run) *Run {
	r := watch(s, at, nil, release)
	r.agent = a
	return r
}

// acquire returns the service that the agent's runs share, and opens it if necessary.
func (a *Agent) acquire(ctx context.Context) (*service, func() error, error) {
	a.mu.Lock()
	server := a.server
	a.mu.Unlock()
	if server != nil {
		if server.service.over() {
			return nil, nil, errServerClosed
		}
		return server.service, func() error { return nil }, nil
	}
	how := running
	if a.elsewhere {
		how = elsewhere
	}
	return a.own.acquire(ctx, func(ctx context.Context) (*service, error) { return a.serving.open(ctx, how) })
}
