package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/launch"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// StartRequest says which run to start.
type StartRequest struct {
	// AgentName names a stored definition; Agent is one of one's own, resolved
	// or not. Exactly one is set.
	AgentName string
	Agent     *events.Agent
	// Task is the first user message, in UTF-8. Empty: the definition's own, if it
	// has one.
	Task string
	// Mode overrides the definition's; empty: the definition's.
	Mode events.Mode
	// TaskType chooses the model; empty: default.
	TaskType string
	// RunID is a lower-case UUIDv7; empty: a new one.
	RunID string
}

// StartResult names the run that was started and how many events it has.
type StartResult struct {
	RunID string `json:"run_id"`
	N     uint64 `json:"n"`
}

// Start starts a run: it pins the definition, the tools as they are announced
// now, and the transition table. Errors are *[Error]: 400 for what is wrong with
// the request, 404 for an agent that does not exist, 409 run_exists or run_purged, 413, 422
// for tools and providers that do not live, and 503 announcements_pending for those that
// lived a moment ago, or may while the directory comes back.
func (g *Gateway) Start(ctx context.Context, ns string, req StartRequest) (StartResult, error) {
	ns, err := g.checkNamespace(ns)
	if err != nil {
		return StartResult{}, err
	}
	if err := req.check(); err != nil {
		return StartResult{}, err
	}
	start, err := g.pin(ctx, ns, req)
	if err != nil {
		return StartResult{}, err
	}
	at := g.store.Place(ns, req.RunID)
	if req.RunID == "" {
		at = g.store.Place(ns, g.store.NewID())
	} else if err := g.checkNew(ctx, at); err != nil {
		return StartResult{}, err
	}
	opened, err := g.open(ctx, at, launch.Opening{First: start, Budget: start.Agent.Budget, Check: exists})
	if err != nil {
		return StartResult{}, err
	}
	return StartResult{RunID: at.ID, N: opened.N}, nil
}

func (r *StartRequest) check() error {
	switch {
	case (r.AgentName == "") == (r.Agent == nil):
		return badRequest(CodeBadRequest, "agent: give the name of a stored agent or a definition")
	case !utf8.ValidString(r.Task) || !utf8.ValidString(r.TaskType):
		return badRequest(CodeBadRequest, "task: is not valid UTF-8")
	case r.Mode != "" && r.Mode != events.ModeTask && r.Mode != events.ModeChat:
		return badRequest(CodeBadRequest, "mode: %q is not a mode; use task or chat", r.Mode)
	case r.RunID != "" && events.CheckID(r.RunID) != nil:
		return badRequest(CodeBadRunID, "run_id: %q is not a lower-case UUIDv7", r.RunID)
	}
	return nil
}

// pin makes the Start event.
func (g *Gateway) pin(ctx context.Context, ns string, req StartRequest) (*events.Start, error) {
	a, err := g.definition(ctx, ns, req)
	if err != nil {
		return nil, refused(err)
	}
	task := req.Task
	if task == "" {
		task = a.Task
	}
	if strings.TrimSpace(task) == "" {
		return nil, badRequest(CodeEmptyTask, "task: is empty, and the agent has none of its own; say what is to be done")
	}
	start, err := g.launcher.Pin(ctx, a, launch.Task{Text: task, Mode: req.Mode, TaskType: req.TaskType})
	return start, g.unannounced(ctx, refused(err))
}

// unannounced puts a full log in the place of what it makes a definition lack:
// where nobody can announce anything, what lives is not known.
func (g *Gateway) unannounced(ctx context.Context, err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeUnknownProvider && e.Code != CodeUnknownTool && e.Code != CodeUnsettled || g.cfg.Ready == nil {
		return err
	}
	if full := g.cfg.Ready(ctx); errors.Is(full, journal.ErrFull) {
		return full
	}
	return err
}

// definition returns the agent that the request means, as its definition leaves
// it: not resolved.
func (g *Gateway) definition(ctx context.Context, ns string, req StartRequest) (events.Agent, error) {
	if req.Agent != nil {
		return *req.Agent, nil
	}
	return g.launcher.Definition(ctx, ns, req.AgentName)
}

// exists is the conflict with a run that has been started.
func exists(mem *reducer.Memory) error {
	if mem.N == 0 {
		return nil
	}
	e := fault(http.StatusConflict, CodeRunExists, "run %s exists already", mem.RunID)
	e.Fields = map[string]any{"run": mem.RunID, "state": mem.State, "n": mem.N}
	return e
}

// checkNew refuses an id that a run has, whose timer must stay as it is, or had.
func (g *Gateway) checkNew(ctx context.Context, at events.Run) error {
	if err := g.purged(ctx, at, http.StatusConflict); err != nil {
		return err
	}
	run := g.store.Acquire(at)
	defer g.store.Release(run)
	if err := lock(ctx, run); err != nil {
		return err
	}
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return err
	}
	return exists(run.Memory())
}

// open begins a run and returns where it stands then.
func (g *Gateway) open(ctx context.Context, at events.Run, o launch.Opening) (Result, error) {
	opened, err := g.launcher.Open(ctx, at, o)
	if err != nil {
		return Result{}, refused(err)
	}
	g.counts.appended.Add(1)
	g.counts.started.Add(1)
	return Result{State: opened.State, N: opened.N}, nil
}

// refused makes a launcher's refusal the caller's error; any other stays as it
// is.
func refused(err error) error {
	var r *launch.Refusal
	if !errors.As(err, &r) {
		return err
	}
	status := http.StatusUnprocessableEntity
	switch r.Kind {
	case launch.Malformed:
		status = http.StatusBadRequest
	case launch.NotFound:
		status = http.StatusNotFound
	case launch.TooLarge:
		status = http.StatusRequestEntityTooLarge
	case launch.Unsettled:
		status = http.StatusServiceUnavailable
	}
	return &Error{Status: status, Code: r.Code, Message: r.Message, Fields: r.Fields, RetryAfter: r.RetryAfter, cause: r}
}

// Tools returns every tool that lives, as it was announced.
func (g *Gateway) Tools(ctx context.Context) ([]events.ToolSpec, error) {
	tools, err := g.launcher.Announced(ctx)
	if tools == nil {
		tools = []events.ToolSpec{}
	}
	return tools, err
}
