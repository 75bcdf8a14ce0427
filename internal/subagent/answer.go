package subagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/internal/worker"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The codes of sub-runs that ended without an answer and without their own code.
const (
	CodeCancelled = "cancelled"
	CodeFailed    = "agent_failed"
)

// ending is how a sub-run ended.
type ending struct {
	agent string
	state events.State
	// id is that of the sub-run's last event.
	id     string
	answer string
	// answered says that there is one, which may be empty.
	answered, incomplete bool
	failed               *reducer.RunError
	usage                reducer.TotalUsage
	took                 time.Duration
}

// endingOf copies what is needed from the memory of a run that has ended.
func endingOf(mem *reducer.Memory) *ending {
	e := &ending{
		agent: mem.Control.Agent.Name, state: mem.State, id: mem.Control.LastID, usage: mem.TotalUsage, took: mem.Updated.Sub(mem.Started),
	}
	if mem.FinalAnswer != nil {
		e.answer, e.answered, e.incomplete = *mem.FinalAnswer, true, mem.Control.Incomplete
	}
	if mem.Error != nil {
		failed := *mem.Error
		e.failed = &failed
	}
	return e
}

// failure returns the code of an end without an answer, empty if there is an answer. An
// end of the application's own graph counts as an answer if it leaves one.
func (e *ending) failure() string {
	switch {
	case e.state == events.Cancelled:
		return CodeCancelled
	case e.state == events.Errored && e.failed == nil:
		return CodeFailed
	case e.state == events.Errored:
		return cmp.Or(strings.ToValidUTF8(e.failed.Code, "\uFFFD"), CodeFailed)
	case e.state != events.Done && !e.answered:
		return string(e.state)
	}
	return ""
}

// incompleteNote tells the model of the parent that an answer was truncated.
const incompleteNote = "\n\n[moorebus: this answer is incomplete, it was cut off]"

// text returns the text of the call's result.
func (e *ending) text() string {
	switch code := e.failure(); {
	case code == "" && e.incomplete:
		return e.answer + incompleteNote
	case code == "":
		return e.answer
	case e.state == events.Cancelled:
		return fmt.Sprintf("agent %s was cancelled", e.agent)
	case e.failed == nil:
		return fmt.Sprintf("agent %s ended in %s", e.agent, e.state)
	default:
		return fmt.Sprintf("agent %s ended in %s: %s", e.agent, code, e.failed.Message)
	}
}

// outcome returns the call's outcome.
func (s *Subagents) outcome(ctx context.Context, subrun events.Run, callID string, e *ending) events.ToolOutcome {
	o := events.ToolOutcome{
		CallID: callID, Code: codes.OK, Success: true, LatencyMS: max(0, e.took.Milliseconds()), Run: subrun.ID, Usage: toolcall.Usage(e.usage),
	}
	text, prefix := e.text(), codes.SuccessPrefix
	if code := e.failure(); code != "" {
		o.Success, o.Code, prefix = false, code, codes.ErrorPrefix
	}
	text = s.cfg.Results.Redact(strings.ToValidUTF8(text, "\uFFFD"))
	fitting, ref, err := s.cfg.Results.Fit(ctx, s.cfg.Blobs, events.AgentsPool, text)
	if err != nil {
		s.cfg.Logger.Warn("a large answer cannot be kept in full", "run", subrun.ID, "bytes", len(text), "reason", err)
	}
	o.Ref, o.Observation = ref, prefix+fitting
	return o
}

// arrived answers the parent of a run that has ended, and takes care of the sub-runs that
// the run leaves.
func (s *Subagents) arrived(run events.Run, mem *reducer.Memory) func(context.Context) error {
	if !s.table.Terminal(mem.State) {
		return nil
	}
	var parent *events.Parent
	if p := mem.Control.Parent; p != nil && run.ID == runid.Child(p.Run, p.CallID) {
		parent = p
	}
	var open []string
	if mem.State != events.Done {
		open = mem.Delegated()
	}
	if parent == nil && len(open) == 0 {
		return nil
	}
	end := endingOf(mem)
	return func(ctx context.Context) error {
		var err error
		if parent != nil {
			err = s.answerParent(ctx, run, *parent, end)
		}
		return errors.Join(err, s.abandon(ctx, run, open))
	}
}

// answerParent appends the answer to the parent's call, if the parent still waits for it.
func (s *Subagents) answerParent(ctx context.Context, subrun events.Run, p events.Parent, end *ending) error {
	store := s.cfg.Store
	o := s.outcome(ctx, subrun, p.CallID, end)
	run := store.Acquire(store.Place(subrun.Namespace, p.Run))
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	if err := run.Refresh(ctx); err != nil {
		return err
	}
	_, err := run.Commit(ctx, runlog.Stamp{Source: s.source, Cause: end.id}, func(mem *reducer.Memory) ([]runlog.Draft, error) {
		if !s.wanted(mem, p.CallID) {
			return nil, nil
		}
		return []runlog.Draft{{Origin: mem.State, Payload: toolcall.Outcome(o, mem.Control.Batch)}}, nil
	})
	var refused *runlog.DraftError
	if errors.As(err, &refused) || errors.Is(err, journal.ErrTooLarge) {
		// A retry would not help: the application's own table has no such row.
		s.cfg.Logger.Error("an answer cannot be given", "run", p.Run, "call", p.CallID, "subrun", subrun.ID, "reason", err)
		return nil
	}
	return err
}

// wanted reports whether a call waits for the answer of a run.
func (s *Subagents) wanted(mem *reducer.Memory, callID string) bool {
	call := mem.Call(callID)
	return call != nil && call.Delegated() && !call.Answered && mem.Control.Poison == nil &&
		(mem.State == events.Acting || mem.State == events.ParallelActing)
}

// abandon sets the timers of the sub-runs that a run left when it ended. The gateway that
// gets a timer cancels the sub-run, since no call waits for it.
func (s *Subagents) abandon(ctx context.Context, run events.Run, calls []string) error {
	for _, id := range calls {
		subrun := s.cfg.Store.Place(run.Namespace, runid.Child(run.ID, id))
		head, err := s.cfg.Store.Log().Head(ctx, subrun)
		if errors.Is(err, journal.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if at, err := events.ParseSubject(head.Subject); err == nil && s.table.Terminal(at.To) {
			continue
		}
		if err := s.launcher.SetCheck(ctx, subrun, s.cfg.Store.Now()); err != nil {
			return err
		}
	}
	return nil
}

// giveUp plans the end of a call that failed too often. If its sub-run is in the log, the
// call is not given up: the sub-run answers it when it ends. If the sub-run has ended, the
// result says what it has used. So no call is given up that only has to wait, and the
// parent pays for the sub-run either way.
func (s *Subagents) giveUp(run events.Run, mem *reducer.Memory, e effects.Effect) worker.Work {
	state, plain := mem.Call(e.CallID), effects.GiveUp(mem, e)
	if state == nil || hopeless(e) {
		return func(context.Context) worker.Result { return worker.Done(plain) }
	}
	c := s.inWork(run, mem, state)
	return func(ctx context.Context) worker.Result {
		if c.handedOff {
			return handedOver(c.ID)
		}
		return s.outlast(ctx, c, func(ctx context.Context, c call) (worker.Result, error) {
			found, err := s.findSubrun(ctx, c)
			switch {
			case isOutage(err):
				return worker.Result{}, err
			case err != nil || !found.there || found.foreign:
				return worker.Done(plain), nil
			case found.ended == nil:
				return worker.HandOn(&events.ToolCallStarted{CallID: c.ID}), nil
			}
			return worker.Done(withUsage(plain, c, found.ended)), nil
		})
	}
}

// hopeless reports whether giving up has failed as often as the call did.
func hopeless(e effects.Effect) bool {
	return e.Failed.Handler > 2*effects.MaxHandlerFailures || e.Failed.Lost > 2*reducer.MaxWorkersLost
}

// withUsage returns the result of a call that was given up, with the usage of its sub-run.
func withUsage(given events.Payload, c call, e *ending) events.Payload {
	var o events.ToolOutcome
	switch p := given.(type) {
	case *events.ToolCallResult:
		o = p.ToolOutcome
	case *events.ToolFailure:
		o = *p.Outcome
	default:
		return given
	}
	o.Run, o.Usage = c.subrun.ID, toolcall.Usage(e.usage)
	return toolcall.Outcome(o, c.batch)
}

// share is how much of its run's budget a call may use. A limit of 0 is none. The calls of
// a reply that agents answer get equal parts of what is left. What one of them leaves goes
// to those that have not begun.
type share struct {
	budget events.Budget
	// deadline is when the run's time is up. It is not divided, since calls run side by
	// side. Zero: never.
	deadline time.Time
	// spent names the first limit that is used up; empty: none.
	spent string
}

// shareOf returns the share of one of the run's open calls.
func shareOf(mem *reducer.Memory) share {
	s := share{}
	if at, limited := effects.Deadline(mem); limited {
		s.deadline = at
	}
	b := mem.Budget
	if b == nil {
		return s
	}
	parts, used := max(1, len(mem.Delegated())), mem.TotalUsage
	s.budget.MaxInputTokens = s.part("input_tokens", b.MaxInputTokens, used.Input, parts)
	s.budget.MaxOutputTokens = s.part("output_tokens", b.MaxOutputTokens, used.Output, parts)
	s.budget.MaxTotalTokens = s.part("total_tokens", b.MaxTotalTokens, used.Total, parts)
	if b.MaxCostUSD > 0 {
		s.budget.MaxCostUSD = (b.MaxCostUSD - used.Cost) / float64(parts)
		if s.budget.MaxCostUSD <= 0 {
			s.spend("cost")
		}
	}
	return s
}

// part returns one of the equal parts of what is left under a limit.
func (s *share) part(name string, limit, used, parts int) int {
	if limit <= 0 {
		return 0
	}
	left := (limit - used) / parts
	if left <= 0 {
		s.spend(name)
	}
	return left
}

func (s *share) spend(name string) {
	if s.spent == "" {
		s.spent = name
	}
}

// within returns an agent's own budget, lowered to the share; nil if nothing bounds the
// run. A timeout that is not 0 bounds its time. It returns false if the time is up.
func (s *share) within(own *events.Budget, timeout time.Duration, now time.Time) (*events.Budget, bool) {
	b := events.Budget{}
	if own != nil {
		b = *own
	}
	b.MaxInputTokens = lower(b.MaxInputTokens, s.budget.MaxInputTokens)
	b.MaxOutputTokens = lower(b.MaxOutputTokens, s.budget.MaxOutputTokens)
	b.MaxTotalTokens = lower(b.MaxTotalTokens, s.budget.MaxTotalTokens)
	b.MaxCostUSD = lower(b.MaxCostUSD, s.budget.MaxCostUSD)
	b.MaxWallTime = lower(b.MaxWallTime, events.Duration(timeout))
	if !s.deadline.IsZero() {
		left := s.deadline.Sub(now)
		if left <= 0 {
			return nil, false
		}
		b.MaxWallTime = lower(b.MaxWallTime, events.Duration(left))
	}
	if b == (events.Budget{}) {
		return nil, true
	}
	return &b, true
}

// lower returns the lower of two limits. 0 is no limit.
func lower[T int | float64 | events.Duration](a, b T) T {
	if a <= 0 || b <= 0 {
		return max(a, b)
	}
	return min(a, b)
}
