package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Agent is an agent with a task. It may run any number of times, also at once, and
// is safe for concurrent use. What runs at once shares one set of roles.
type Agent struct {
	def            events.Agent
	task, taskType string
	providers      map[string]llm.Caller
	tools          []tool.Tool
	sources        []opener
	callees        []callee
	// graph is what drawn was when the agent was built.
	graph, drawn *Graph
	machine      *reducer.Machine
	prices       llm.Prices
	estimators   tokens.Set
	onOutput     func(Output)
	place        place
	elsewhere    bool
	logger       *slog.Logger
	// serving is what serves the agent alone.
	serving serving

	mu sync.Mutex
	// server is set by Serve; without one the runs share own.
	server *Server
	last   *Run
	own    shared
}

// Run runs the task to its end and returns the answer. In chat mode that is the
// first one, and the conversation is closed. A run that ends otherwise is an error:
// *[Failed] or one of the others of this package, or the context's, in which case
// the run is cancelled.
func (a *Agent) Run(ctx context.Context) (answer string, err error) {
	r, err := a.Start(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Release()) }()
	answer, err = r.Answer(ctx)
	if err == nil && a.def.Mode == events.ModeChat {
		return answer, r.Finish(ctx)
	}
	if err != nil && ctx.Err() != nil {
		stop, done := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer done()
		err = errors.Join(err, r.Cancel(stop, context.Cause(ctx).Error()))
	}
	return answer, err
}

// cancelTimeout bounds the attempt to cancel a run whose context has ended.
const cancelTimeout = 5 * time.Second

// Resume carries on a run of this agent whose process died, waits for its end and
// returns its answer, as [Agent.Run] does. It needs the same place, and the same
// graph. A run that ended before is not run again; one that others carry on is
// waited for. If the context ends, the run is left as it is. A run that is not there
// is a [journal.ErrNotFound].
func (a *Agent) Resume(ctx context.Context, run string) (answer string, err error) {
	r, err := a.Open(ctx, run)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Release()) }()
	return r.Wait(ctx)
}

// Start starts a run, which goes on by itself. The caller lets go of it by
// [Run.Release]. If the context ends before it is known whether the run was started,
// it is cancelled.
//
// The models, tools and handlers that this process runs for the run, and for the
// runs that answer its calls, see the values of ctx. They do not see its end or its
// deadline. A run that another process carries on, or that is carried on after a
// restart, has no such values.
func (a *Agent) Start(ctx context.Context) (*Run, error) {
	service, release, err := a.acquire(ctx)
	if err != nil {
		return nil, err
	}
	return a.start(ctx, service, release)
}

// Open is [Agent.Start] for a run that was started before.
func (a *Agent) Open(ctx context.Context, run string) (*Run, error) {
	service, release, err := a.acquire(ctx)
	if err != nil {
		return nil, err
	}
	at := service.host.Store().Place(events.DefaultNamespace, run)
	err = events.CheckID(run)
	if err != nil {
		err = fmt.Errorf("%w: %w", journal.ErrNotFound, err)
	} else {
		_, err = service.bus.Head(ctx, at)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run %q: %w", run, err), release())
	}
	return a.open(service, release, at)
}

// Stepwise starts a run whose roles stand still: it goes on by [Run.Step] alone.
// Nothing else may run in the agent's place meanwhile, and no timers fire.
func (a *Agent) Stepwise(ctx context.Context) (*Run, error) {
	a.mu.Lock()
	served := a.server != nil
	a.mu.Unlock()
	if served || a.elsewhere {
		return nil, fmt.Errorf("%w: the agent's roles are run by its server", ErrStepwise)
	}
	if len(a.callees) > 0 {
		return nil, fmt.Errorf("%w: the agent calls others, whose runs go on by themselves", ErrStepwise)
	}
	service, err := a.serving.open(ctx, stepping)
	if err != nil {
		return nil, err
	}
	return a.start(ctx, service, service.close)
}

func (a *Agent) start(ctx context.Context, s *service, release func() error) (*Run, error) {
	at := s.host.Store().Place(events.DefaultNamespace, runlog.NewID())
	r, err := a.open(s, release, at) // first, so that no word of the model is missed
	if err != nil {
		return nil, err
	}
	s.host.Store().Bind(at, ctx)
	_, err = s.host.Gateway().Start(ctx, "", control.StartRequest{Agent: &a.def, Task: a.task, TaskType: a.taskType, RunID: at.ID})
	if err != nil {
		if _, is := errors.AsType[*Refused](refused(err)); is {
			err = &BuildError{err}
		} else if ctx.Err() != nil || errors.Is(err, journal.ErrUnknownOutcome) {
			err = errors.Join(err, r.callOff(ctx))
		}
		s.host.Store().Unbind(at)
		return nil, errors.Join(err, r.Release())
	}
	return r, nil
}

// open watches a run.
func (a *Agent) open(s *service, release func() error, at events.Run) (*Run, error) {
	r, err := watch(s, at, nil, a.onOutput, a.logger, release)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = r
	return r, nil
}

// acquire returns the service that the agent's runs share, and opens it for the
// first one.
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

// latest is the run that was started or opened last, nil if there was none.
func (a *Agent) latest() *Run {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// Memory returns the memory of the run that was started or opened last, nil if
// there was none.
func (a *Agent) Memory() *Memory {
	if r := a.latest(); r != nil {
		return r.Memory()
	}
	return nil
}

// State returns where that run stands: Idle if there was none.
func (a *Agent) State() events.State {
	if r := a.latest(); r != nil {
		return r.State()
	}
	return events.Idle
}

// Trace returns what happened in that run, nil if there was none.
func (a *Agent) Trace() reducer.Trace {
	if r := a.latest(); r != nil {
		return r.Trace()
	}
	return nil
}
