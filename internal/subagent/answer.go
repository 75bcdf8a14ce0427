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

// The codes of children that ended without an answer and gave no code themselves.
const (
	CodeCancelled = "cancelled"
	CodeFailed    = "agent_failed"
)

// ending is how a child ended.
type ending struct {
	agent string
	state events.State
	// id is that of the child's last event.
	id     string
	answer string
	// answered says that there is one, which may be empty.
	answered bool
	failed   *reducer.RunError
	usage    reducer.TotalUsage
	took     time.Duration
}

// endingOf takes what is needed of the memory of a run that has ended.
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

// failure is the code of an end without an answer, empty if there is one. An end of
// the application's own graph is one if it leaves an answer.
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

// text is what the call's result says of the end.
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

// outcome is what a child's end means to the call.
func (s *Subagents) outcome(ctx context.Context, child events.Run, callID string, e *ending) events.ToolOutcome {
	o := events.ToolOutcome{
		CallID: callID, Code: tool.CodeOK, Success: true, LatencyMS: max(0, e.took.Milliseconds()), Run: child.ID, Usage: toolcall.Usage(e.usage),
	}
	text, prefix := e.text(), reducer.SuccessPrefix
	if code := e.failure(); code != "" {
		o.Success, o.Code, prefix = false, code, reducer.ErrorPrefix
	}
	text = s.cfg.Results.Redact(strings.ToValidUTF8(text, "\uFFFD"))
	fitting, ref, err := s.cfg.Results.Fit(ctx, s.cfg.Blobs, events.AgentsPool, text)
	if err != nil {
		s.cfg.Logger.Warn("a large answer cannot be kept in full", "run", child.ID, "bytes", len(text), "reason", err)
	}
	o.Ref, o.Observation = ref, prefix+fitting
	return o
}

// arrived sees to those who have to know that a run has ended: its parent, and the
// children that it leaves.
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
			err = s.answer(ctx, run, *parent, end)
		}
		return errors.Join(err, s.abandon(ctx, run, open))
	}
}

// answer gives a child's parent the answer to its call, if it still waits for one.
func (s *Subagents) answer(ctx context.Context, child events.Run, p events.Parent, end *ending) error {
	store := s.cfg.Store
	o := s.outcome(ctx, child, p.CallID, end)
	run := store.Acquire(store.Place(child.Namespace, p.Run))
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
		// To try again would not help: the application's own table does not have it.
		s.cfg.Logger.Error("an answer cannot be given", "run", p.Run, "call", p.CallID, "child", child.ID, "reason", err)
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

// abandon has the children looked at that a run left when it ended: whoever takes
// their timers cancels them, as nobody waits for them.
func (s *Subagents) abandon(ctx context.Context, run events.Run, calls []string) error {
	for _, id := range calls {
		child := s.cfg.Store.Place(run.Namespace, events.ChildID(run.ID, id))
		head, err := s.cfg.Store.Log().Head(ctx, child)
		if errors.Is(err, journal.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if at, err := events.ParseSubject(head.Subject); err == nil && s.table.Terminal(at.To) {
			continue
		}
		if err := s.launcher.SetCheck(ctx, child, s.cfg.Store.Now()); err != nil {
			return err
		}
	}
	return nil
}
