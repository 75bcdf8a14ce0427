package subagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The codes of calls that were not answered by a run. They are stable.
const (
	CodeNestingLimit   = "nesting_limit"
	CodeBudgetExceeded = "budget_exceeded"
	CodeRunTaken       = "run_taken"
	CodeRunPurged      = "run_purged"
)

// call is one call in work.
type call struct {
	tool.Call
	run    events.Run
	subrun events.Run
	batch  bool
	// queued says that the reply has further calls, which go out after this one.
	queued bool
	// depth is the sub-run's, maxDepth the limit.
	depth, maxDepth int
	share           share
	// mode is the run's. handedOff says that the run has gone over to the call's agent.
	mode      events.Mode
	handedOff bool
	// pools are those of the run's tools, for a hand-off.
	pools map[string]string
	// labels are those that the run began with.
	labels events.Labels
}

// prepare prepares Acting and ParallelActing for one call.
func (s *Subagents) prepare(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	state := mem.Call(e.CallID)
	if state == nil {
		return toolcall.NoCurrentCall
	}
	c := s.inWork(run, mem, state)
	work := func(ctx context.Context) worker.Result { return s.work(ctx, c) }
	if s.lends(mem, e) {
		return s.elsewhere.Lend(events.AgentsPool, c.Name, work)
	}
	return work
}

// lends reports whether the effect is a call of an agent that another process has.
func (s *Subagents) lends(mem *reducer.Memory, e effects.Effect) bool {
	state := mem.Call(e.CallID)
	if e.Kind != effects.KindTool || state == nil || state.HandedOff {
		return false
	}
	_, known := s.tools[state.Name]
	return !known && mem.Tools[state.Name].Pool == events.AgentsPool
}

// inWork copies what the work on a call needs from the run's memory.
func (s *Subagents) inWork(run events.Run, mem *reducer.Memory, state *reducer.CallState) call {
	c := call{
		Call: tool.Call{Run: run.ID, ID: state.ID, Name: state.Name, Arguments: state.Arguments, TraceParent: tracecontext.In(mem.RunID, mem.Control.TraceParent, tracecontext.Tool(mem.RunID, state.ID))},
		run:  run, subrun: s.cfg.Store.Place(run.Namespace, runid.Child(run.ID, state.ID)),
		batch: mem.Control.Batch, queued: len(mem.Control.Queued) > 0, depth: 1, maxDepth: mem.Config.MaxDepth, share: shareOf(mem),
		mode: mem.Mode, handedOff: state.HandedOff, labels: mem.Control.Labels,
	}
	if s.tools[c.Name].Handoff != "" {
		c.pools = runstart.PoolsOf(mem)
	}
	if p := mem.Control.Parent; p != nil {
		c.depth = max(1, p.Depth) + 1
	}
	return c
}

// work starts the run that answers the call, or answers the call. A store that is away is
// no failure of the call.
func (s *Subagents) work(ctx context.Context, c call) worker.Result {
	if c.handedOff { // under the old agent's rules; those of the new one are for what comes after
		return handedOver(c.ID)
	}
	return s.outlast(ctx, c, s.answerOrStart)
}

// outlast repeats work on a call for a minute while a store is away.
func (s *Subagents) outlast(ctx context.Context, c call, try func(context.Context, call) (worker.Result, error)) (result worker.Result) {
	err := worker.Outlast(ctx, func(ctx context.Context) (err error) {
		if result, err = try(ctx, c); !isOutage(err) {
			return retry.Stop(err)
		}
		return err
	}, func(err error, _ time.Duration) {
		s.cfg.Logger.Warn("a call of an agent waits for a store", "run", c.Run, "call", c.ID, "tool", c.Name, "reason", err)
	})
	if err != nil {
		return worker.Fail(err)
	}
	return result
}

// isOutage reports whether an error is a store's and may pass by itself.
func isOutage(err error) bool {
	var refused *refusal.Error
	return worker.Passing(err) && !errors.As(err, &refused)
}

// answerOrStart is one attempt of work. The error is a store's.
func (s *Subagents) answerOrStart(ctx context.Context, c call) (worker.Result, error) {
	reason, err := s.guard.Refusal(ctx, c.run, c.Call)
	switch {
	case err != nil:
		return worker.Result{}, err
	case reason != "":
		s.cfg.Logger.Warn("an agent was not called", "run", c.Run, "call", c.ID, "tool", c.Name, "reason", reason)
		return c.failed(codes.NotApproved, reason), nil
	}
	if t := s.tools[c.Name]; t.Handoff != "" {
		return s.handOver(ctx, c, t)
	}
	for {
		found, err := s.findSubrun(ctx, c)
		switch {
		case err != nil:
			return worker.Result{}, err
		case found.ended != nil:
			return worker.Done(toolcall.Outcome(s.outcome(ctx, c.subrun, c.ID, found.ended), c.batch)), nil
		case found.foreign:
			return c.failed(CodeRunTaken, fmt.Sprintf("%s was not called: the run %s, which is to answer, exists already and answers something else", c.Name, c.subrun.ID)), nil
		case found.there:
			return s.handOn(ctx, c)
		}
		err = s.startSubrun(ctx, c)
		var failure *tool.Failure
		switch {
		case errors.As(err, &failure):
			return c.failed(failure.Code, failure.Message), nil
		case err != nil && !errors.Is(err, errThere):
			return worker.Result{}, err
		}
	}
}

// failed answers the call without a sub-run.
func (c *call) failed(code, message string) worker.Result {
	return worker.Done(toolcall.Outcome(events.ToolOutcome{
		CallID: c.ID, Code: code, Observation: codes.ErrorPrefix + strings.ToValidUTF8(message, "\uFFFD"),
	}, c.batch))
}

// subrun is what is known of the run that answers a call.
type subrun struct {
	there, foreign bool
	// ended is how it ended, nil if it continues.
	ended *ending
}

// findSubrun reads the run that answers the call, if it is in the log.
func (s *Subagents) findSubrun(ctx context.Context, c call) (subrun, error) {
	run := s.cfg.Store.Acquire(c.subrun)
	defer s.cfg.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return subrun{}, err
	}
	mem := run.Memory()
	found := subrun{there: mem.N > 0}
	found.foreign = found.there && !mem.Control.Parent.Answers(c.Run, c.ID)
	if found.there && !found.foreign && run.Terminal() {
		found.ended = endingOf(mem)
	}
	return found, nil
}

// errThere says that another process started the run.
var errThere = errors.New("the run is there already")

// startSubrun starts the run that answers the call. The error is a *[tool.Failure] if the
// run is not allowed, errThere, or the bus's.
func (s *Subagents) startSubrun(ctx context.Context, c call) error {
	start, err := s.pin(ctx, c)
	if err != nil {
		return err
	}
	stone, err := s.launcher.Tombstone(ctx, c.subrun)
	if err != nil {
		return err
	}
	if stone != nil {
		return tool.Failf(CodeRunPurged, "the run %s, which answered, was purged", c.subrun.ID)
	}
	_, _, err = s.launcher.Open(ctx, c.subrun, runstart.Opening{
		First: start, Budget: start.Agent.Budget, TraceParent: c.TraceParent,
		Check: func(mem *reducer.Memory) error {
			if mem.N > 0 {
				return errThere
			}
			return nil
		},
	})
	return failureOf(err)
}

// pin makes the sub-run's Start.
func (s *Subagents) pin(ctx context.Context, c call) (*events.Start, error) {
	t, known := s.tools[c.Name]
	var arguments struct {
		Task string `json:"task"`
	}
	switch {
	case !known:
		return nil, tool.Failf(tool.CodeNotFound, "tool %q not found", c.Name)
	case c.depth > c.maxDepth:
		return nil, tool.Failf(CodeNestingLimit, "%s was not called: agents may call agents %d deep here (config.max_depth)", c.Name, c.maxDepth)
	case c.share.spent != "":
		return nil, tool.Failf(CodeBudgetExceeded, "%s was not called: nothing is left of the budget's %s", c.Name, c.share.spent)
	case json.Unmarshal([]byte(c.Arguments), &arguments) != nil || strings.TrimSpace(arguments.Task) == "":
		return nil, tool.Failf(tool.CodeInvalidArguments, "%s takes {\"task\": \"what is to be done\"}", c.Name)
	}
	a, hash, err := s.launcher.Definition(ctx, c.run.Namespace, t.Agent)
	if err != nil {
		return nil, failureOf(err)
	}
	budget, left := c.share.within(a.Budget, t.Timeout, s.cfg.Store.Now())
	if !left {
		return nil, tool.Failf(CodeBudgetExceeded, "%s was not called: nothing is left of the budget's wall time", c.Name)
	}
	a.Budget, a.Config.MaxDepth = budget, c.maxDepth
	start, err := s.pinWhenThere(ctx, a, runstart.Task{Text: arguments.Task, Mode: events.ModeTask, AgentHash: hash, Labels: c.labels})
	if err != nil {
		return nil, failureOf(err)
	}
	start.Parent = &events.Parent{Run: c.Run, CallID: c.ID, Depth: c.depth}
	return start, nil
}

// pinWhenThere pins what an agent needs. It waits a while for tools and providers that are
// not announced: processes start in any order.
func (s *Subagents) pinWhenThere(ctx context.Context, a events.Agent, task runstart.Task) (*events.Start, error) {
	var start *events.Start
	err := retry.Policy{First: time.Second, Budget: toolcall.ToolWait}.Do(ctx, func(ctx context.Context) (err error) {
		start, err = s.launcher.Pin(ctx, a, task)
		if !refusal.Is(err, refusal.CodePending, refusal.CodeUnknownTool, refusal.CodeUnknownProvider) {
			return retry.Stop(err)
		}
		return err
	}, nil)
	return start, err
}

// failureOf turns the refusal of a run into the call's failure. Other errors stay as they
// are.
func failureOf(err error) error {
	var refused *refusal.Error
	if errors.As(err, &refused) {
		return tool.Failf(refused.Code, "%s", refused.Message)
	}
	return err
}

// handOn leaves the call to its sub-run, which is in the log. A process that cancelled the
// parent before may not have seen the sub-run, so the sub-run's timer is set to now.
func (s *Subagents) handOn(ctx context.Context, c call) (worker.Result, error) {
	awaited, err := s.isAwaited(ctx, c)
	if err == nil && !awaited {
		err = s.launcher.SetCheck(ctx, c.subrun, s.cfg.Store.Now())
	}
	return worker.HandOn(&events.ToolCallStarted{CallID: c.ID}), err
}

// isAwaited reports whether, by the log, the call's run still waits for an answer.
func (s *Subagents) isAwaited(ctx context.Context, c call) (bool, error) {
	run := s.cfg.Store.Acquire(c.run)
	defer s.cfg.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return false, err
	}
	state := run.Memory().Call(c.ID)
	return !run.Terminal() && state != nil && !state.Answered, nil
}
