// Package agent makes agents of Go values and runs them.
//
// The least that an agent needs is a task and a model:
//
//	a, err := agent.New("What is 6 times 7?").
//		LLM(model).
//		Tool(agent.Func("multiply", "Multiplies two numbers.", multiply, agent.Pure)).
//		Build()
//	answer, err := a.Run(ctx)
//
// [Agent.Run] runs the task to its end. [Agent.Start] returns the [Run] at once, to watch
// it, to talk to it in chat mode, or to decide on its calls. Every run is a log of events.
// The log is on a server inside the process, unless the agent is given another place
// ([Builder.Data], [Builder.NATS], [Builder.Conn], [Builder.Bus]). So [Agent.Resume] can
// continue a run whose process died. [Agent.Stepwise] runs event by event.
//
// A [Graph] adds custom states, events, transitions and memory. [Builder.OnOutput] shows
// what happens. [Serve] puts several agents on one server.
//
// A program needs no other package to run an agent. Custom tools are made with package
// tool, custom models with package llm, and processes that only run tools with package
// actor.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/tokens"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// Agent is an agent with a task. It may run any number of times and is safe for concurrent
// use. Concurrent runs share one set of roles.
type Agent struct {
	def            events.Agent
	task, taskType string
	parts          []events.Part
	providers      map[string]llm.Caller
	tools          []tool.Tool
	sources        []opener
	callees        []callee
	// graph is a copy of drawn, made when the agent was built.
	graph, drawn *Graph
	machine      *reducer.Machine
	prices       llm.Prices
	estimators   tokens.Set
	onOutput     func(Output)
	place        place
	elsewhere    bool
	logger       *slog.Logger
	// serving makes the service of this agent alone.
	serving serving

	mu sync.Mutex
	// server is set by Serve. Without a server the runs share own.
	server *Server
	last   *Run
	own    shared
}

// Run runs the task to its end and returns the answer. In chat mode it returns the first
// answer and closes the conversation. If a run ends without an answer, the error is a
// *[Failed] or one of the other types of this package. If the context ends, the run is
// cancelled and the error is the context's.
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

// Resume continues a run of this agent whose process died. It waits for the run's end and
// returns the answer, as [Agent.Run] does. The agent needs the same place and the same
// graph. If the run has ended, Resume returns its answer. If other processes serve it,
// Resume waits. If the context ends, the run stays as it is. The error is a
// [journal.ErrNotFound] if there is no such run.
func (a *Agent) Resume(ctx context.Context, run string) (answer string, err error) {
	r, err := a.Open(ctx, run)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Release()) }()
	return r.Wait(ctx)
}

// Start starts a run, which proceeds without the caller. Call [Run.Release] when the run
// is not needed any more. If the context ends while it is unknown whether the run was
// started, the run is cancelled.
//
// The models, tools and handlers that this process calls for the run and its sub-runs see
// the values of ctx, but not its end or its deadline. A run that another process serves,
// or that is resumed after a restart, has no such values.
func (a *Agent) Start(ctx context.Context) (*Run, error) {
	service, release, err := a.acquire(ctx)
	if err != nil {
		return nil, err
	}
	return a.start(ctx, service, release)
}

// Open is [Agent.Start] for an existing run.
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

// Stepwise starts a run that only [Run.Step] advances. No timers fire. Nothing else may run
// in the agent's place meanwhile.
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
	r, err := a.open(s, release, at) // before the start, so that no output is missed
	if err != nil {
		return nil, err
	}
	s.host.Store().Bind(at, ctx)
	_, err = s.host.Gateway().Start(ctx, "", a.request(at.ID))
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

// request is the start of a run of the agent.
func (a *Agent) request(run string) control.StartRequest {
	r := control.StartRequest{Agent: &a.def, TaskType: a.taskType, RunID: run}
	r.Task, r.Parts = content(a.task, a.parts)
	return r
}

// content is a text with images and files: as text if there are none, else as parts.
func content(text string, more []events.Part) (string, []events.Part) {
	switch {
	case len(more) == 0:
		return text, nil
	case text == "":
		return "", more
	}
	return "", append([]events.Part{{Type: events.PartText, Text: text}}, more...)
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

// latest returns the run that was started or opened last, or nil.
func (a *Agent) latest() *Run {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// Memory returns the memory of the run that was started or opened last, or nil.
func (a *Agent) Memory() *Memory {
	if r := a.latest(); r != nil {
		return r.Memory()
	}
	return nil
}

// State returns the state of the last run, Idle without a run.
func (a *Agent) State() events.State {
	if r := a.latest(); r != nil {
		return r.State()
	}
	return events.Idle
}

// Trace returns the trace of the last run, or nil.
func (a *Agent) Trace() reducer.Trace {
	if r := a.latest(); r != nil {
		return r.Trace()
	}
	return nil
}

// Failed is the error of a run that ended without an answer. The more specific errors of
// this package contain it.
type Failed struct{ Code, Message string }

// Error returns code and message.
func (f *Failed) Error() string { return fmt.Sprintf("the agent failed: %s: %s", f.Code, f.Message) }

// As lets [errors.As] find the Failed in the more specific errors.
func (f *Failed) As(target any) bool {
	plain, ok := target.(**Failed)
	if ok {
		*plain = f
	}
	return ok
}

// InvalidTransition says that a handler returned an event for which the table has no row.
type InvalidTransition struct{ Failed }

// NoHandlerForState says that no handler serves a state.
type NoHandlerForState struct{ Failed }

// SafetyCapExceeded says that a run changed its state too often.
type SafetyCapExceeded struct{ Failed }

// LLMError says that a model provider gave no reply. The code is its [llm.ErrorKind].
type LLMError struct{ Failed }

// ToolError says that a run had to call a tool and had no call. The failure of a tool never
// ends a run: it is an observation for the model.
type ToolError struct{ Failed }

// MemoryError says that a record of the log cannot be folded.
type MemoryError struct{ Failed }

// BuildError says which setting is missing or wrong.
type BuildError struct{ Err error }

// Error returns what is wrong.
func (e *BuildError) Error() string { return "cannot build the agent: " + e.Err.Error() }

// Unwrap returns what is wrong.
func (e *BuildError) Unwrap() error { return e.Err }

// ErrStepwise says that a run was not started by [Agent.Stepwise], or cannot be.
var ErrStepwise = errors.New("the run is not stepwise")

// ErrWaits says that a run cannot be advanced since it waits for a human.
var ErrWaits = host.ErrWaits

// Refused is the error of a request that a run cannot meet, such as a decision on a call
// that does not wait, or a message to a run that has ended. Nothing was changed. Code is a
// code of the HTTP interface, such as not_waiting.
type Refused struct{ Code, Message string }

// Error returns the message.
func (r *Refused) Error() string { return r.Message }

// refused converts a refusal of the request into a *[Refused]. It returns other errors
// unchanged.
func refused(err error) error {
	if answer, is := errors.AsType[*refusal.Error](err); is && answer.Kind < refusal.Internal {
		return &Refused{Code: answer.Code, Message: answer.Message}
	}
	return err
}

// errReleased is returned to waiters of a released run.
var errReleased = errors.New("the run was released before it ended")

// outcome returns the result of a run that has ended.
func outcome(mem *reducer.Memory) (string, error) {
	switch {
	case mem.State == events.Cancelled:
		return "", &Failed{Code: "cancelled", Message: "the run was cancelled"}
	case mem.Error != nil:
		return "", failure(mem)
	case mem.FinalAnswer == nil:
		return "", nil
	}
	return *mem.FinalAnswer, nil
}

// failure returns the typed error of a run that ended in Error.
func failure(mem *reducer.Memory) error {
	f := Failed{Code: mem.Error.Code, Message: mem.Error.Message}
	switch f.Code {
	case reducer.CodeNoHandler:
		return &NoHandlerForState{f}
	case reducer.CodeSafetyCap:
		return &SafetyCapExceeded{f}
	case reducer.CodePoison:
		return &MemoryError{f}
	case reducer.CodeInvalidTransition:
		return &InvalidTransition{f}
	case reducer.CodeNoCurrentCall:
		return &ToolError{f}
	}
	for _, kind := range []llm.ErrorKind{
		llm.KindRateLimited, llm.KindOverloaded, llm.KindNetwork, llm.KindAuth, llm.KindInvalid, llm.KindContextTooLong, llm.KindOther,
	} {
		if f.Code == string(kind) {
			return &LLMError{f}
		}
	}
	return &f
}
