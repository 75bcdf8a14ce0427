package subagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/toolcall"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The codes of sub-runs that ended without an answer and without a code of their own.
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
	answered bool
	failed   *reducer.RunError
	usage    reducer.TotalUsage
	took     time.Duration
}

// endingOf copies what is needed from the memory of a run that has ended.
func endingOf(mem *reducer.Memory) *ending {
	e := &ending{
		agent: mem.Control.Agent.Name, state: mem.State, id: mem.Control.LastID, usage: mem.TotalUsage, took: mem.Updated.Sub(mem.Started),
	}
	if mem.FinalAnswer != nil {
		e.answer, e.answered = *mem.FinalAnswer, true
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

// text returns the text of the call's result.
func (e *ending) text() string {
	switch code := e.failure(); {
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
		CallID: callID, Code: tool.CodeOK, Success: true, LatencyMS: max(0, e.took.Milliseconds()), Run: subrun.ID, Usage: toolcall.Usage(e.usage),
	}
	text, prefix := e.text(), reducer.SuccessPrefix
	if code := e.failure(); code != "" {
		o.Success, o.Code, prefix = false, code, reducer.ErrorPrefix
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
	if p := mem.Control.Parent; p != nil && run.ID == events.ChildID(p.Run, p.CallID) {
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
		s.cfg.Logger.Error("an answer cannot be given", "run", p.Run, "call", p.CallID, "child", subrun.ID, "reason", err)
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
		subrun := s.cfg.Store.Place(run.Namespace, events.ChildID(run.ID, id))
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
