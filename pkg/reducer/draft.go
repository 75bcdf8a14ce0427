package reducer

import (
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// Stamp is what an event needs from the world: ids and time are made by the
// shell, never here.
type Stamp struct {
	// ID is the event's id, a UUIDv7.
	ID string
	// Source is moorebus/<role>/<instance>.
	Source string
	// Cause is the id of the event that led to this one; empty for the run's
	// last one.
	Cause       string
	TraceParent string
	Time        time.Time
}

// Draft makes the run's next event out of a payload, with the subject that it
// has to be appended on. origin is the state that the publisher owns, or
// [events.Control]. The error is a *[TransitionError] where the table has no
// row for it, or says what else makes it illegal; mem is not changed.
func (m *Machine) Draft(mem *Memory, run events.Run, origin events.State, p events.Payload, stamp Stamp) (events.Subject, *events.Event, error) {
	// An event that leads nowhere is refused by the check.
	next, _ := m.next(mem, events.TypeOf(p))
	cause := stamp.Cause
	if cause == "" || mem.N == 0 {
		cause = mem.Control.LastID
	}
	e := &events.Event{
		ID: stamp.ID, Source: stamp.Source, Run: mem.RunID, Time: stamp.Time.UTC(), N: mem.N + 1,
		From: mem.State, To: next, Step: mem.Step + mem.steps(p), Cause: cause, Prev: mem.Control.Head,
		TraceParent: stamp.TraceParent, Data: p,
	}
	s := events.Subject{Run: run, From: origin}
	// The subject's form does not matter to the check, and routing may rely on
	// what the check establishes.
	if err := m.check(mem, s, e); err != nil {
		return events.Subject{}, nil, err
	}
	if err := m.checkTable(mem, e); err != nil {
		return events.Subject{}, nil, err
	}
	s.To, s.Pool = Route(m.table, mem, p)
	return s, e, nil
}

// steps is how many planning calls an event accounts for; a fork has its
// parent's.
func (mem *Memory) steps(p events.Payload) int {
	switch p := p.(type) {
	case *events.Forked:
		if parent := mem.inherited(); parent != nil {
			return parent.Step
		}
	case *events.LLMToolCall:
		if mem.isQueuedPass(p.Calls) {
			return 0
		}
		return 1
	case *events.HumanApprovalRequired:
		if mem.State != events.Planning || mem.isQueuedPass(p.Calls) {
			return 0
		}
		return 1
	case *events.ContextWindowExpanded, *events.ToolCallsAddedToContext:
		return contextSteps(p)
	case *events.LLMParallelToolCalls, *events.LLMFinalAnswer, *events.LLMMessageComplete, *events.LLMThought,
		*events.LowConfidence, *events.AnswerTooShort, *events.ToolBlacklisted, *events.ReplyInvalid:
		return 1
	}
	return 0
}
