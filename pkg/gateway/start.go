package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/pkg/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// defaultTaskType is the task type of a run that names none.
const defaultTaskType = "default"

// StartRequest says which run to start.
type StartRequest struct {
	// AgentName names a stored definition; Agent is one of one's own, resolved
	// or not. Exactly one is set.
	AgentName string
	Agent     *events.Agent
	// Task is the first user message: not empty, and UTF-8.
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
// the request, 404 for an agent that does not exist, 409 run_exists or run_purged, 413, and 422
// for tools and providers that do not live.
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
	first := opening{first: start, budget: start.Agent.Budget}
	at := g.store.Place(ns, req.RunID)
	if req.RunID == "" {
		at = g.store.Place(ns, g.store.NewID())
	} else if err := g.checkNew(ctx, at); err != nil {
		return StartResult{}, err
	}
	opened, err := g.open(ctx, at, first)
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
	case strings.TrimSpace(r.Task) == "":
		return badRequest(CodeEmptyTask, "task: is empty; say what is to be done")
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
		return nil, err
	}
	hash := agentfile.Hash(a)
	if req.Mode != "" {
		a.Mode = req.Mode
	}
	if a, err = a.Resolve(); err != nil {
		return nil, badRequest(CodeBadAgent, "agent: %s", err.Error())
	}
	if err := g.checkAgent(&a); err != nil {
		return nil, err
	}
	tools, err := g.catalog.resolve(ctx, &a)
	if err == nil {
		err = g.checkToolSchemas(tools)
	}
	if err != nil {
		return nil, err
	}
	start := &events.Start{
		Agent: a, AgentHash: hash, Task: req.Task, Mode: a.Mode, TaskType: req.TaskType, Tools: tools,
		TableHash: g.table.Hash(),
	}
	if start.TaskType == "" {
		start.TaskType = defaultTaskType
	}
	return start, nil
}

// definition returns the agent that the request means, as its definition leaves
// it: not resolved.
func (g *Gateway) definition(ctx context.Context, ns string, req StartRequest) (events.Agent, error) {
	if req.Agent != nil {
		return *req.Agent, nil
	}
	stored, err := g.Agent(ctx, ns, req.AgentName)
	if err != nil {
		return events.Agent{}, err
	}
	a, err := agentfile.ParseDefinition(stored, agentfile.JSON, agentfile.Options{CheckScript: g.cfg.CheckScript})
	if err != nil {
		return events.Agent{}, unprocessable(CodeBadAgent, "the stored agent %q cannot be used any more, put it again: %s", req.AgentName, err.Error())
	}
	return a, nil
}

// checkAgent reports what is wrong with a definition beyond its form.
func (g *Gateway) checkAgent(a *events.Agent) error {
	if check := g.cfg.CheckApproval; check != nil {
		if err := check(a.Approval); err != nil {
			return unprocessable(CodeBadApproval, "%s", err.Error())
		}
	}
	if err := g.checkEstimator(a.Config.TokenEstimator); err != nil {
		return err
	}
	return g.checkOutputSchema(a.OutputSchema)
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
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return err
	}
	return exists(run.Memory())
}

// opening is how a run begins: a Start, or a Forked with the fold of its parent;
// and the budget that it begins with.
type opening struct {
	first  events.Payload
	parent *runlog.Fold
	budget *events.Budget
	// check, if not nil, may refuse it right before it is appended.
	check func() error
}

// open sets the run's timer, appends its first event and returns where the run
// stands then. If that fails, the timer finds no run and is done with.
func (g *Gateway) open(ctx context.Context, at events.Run, o opening) (Result, error) {
	run := g.store.Acquire(at)
	defer g.store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := g.armFirst(ctx, at, o.budget); err != nil {
		return Result{}, err
	}
	if o.parent != nil {
		run.Adopt(o.parent)
	}
	err := g.commit(ctx, run, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if err := exists(mem); err != nil {
			return nil, err
		}
		if o.check != nil {
			if err := o.check(); err != nil {
				return nil, err
			}
		}
		return one(events.Idle, o.first)
	})
	if errors.Is(err, journal.ErrTooLarge) {
		return Result{}, wrap(err, http.StatusRequestEntityTooLarge, CodeTooLarge,
			"task, definition and tool schemas together are larger than %d KiB, the most that an event may have", journal.MaxBody>>10)
	}
	if err != nil {
		return Result{}, err
	}
	g.counts.started.Add(1)
	return Result{State: run.Memory().State, N: run.Memory().N}, nil
}
