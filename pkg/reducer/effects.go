package reducer

import (
	"strconv"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
)

// Kind is what an effect does.
type Kind string

// The kinds of effects. KindState is the work of a state that is not built in.
const (
	KindPlan     Kind = "plan"
	KindReflect  Kind = "reflect"
	KindTool     Kind = "tool"
	KindDispatch Kind = "dispatch"
	KindJoin     Kind = "join"
	KindObserve  Kind = "observe"
	KindPage     Kind = "page"
	KindDecide   Kind = "decide"
	KindEnd      Kind = "end"
	KindState    Kind = "state"
)

// Effect is a piece of work that a memory wants done. Only its Key is compared:
// it names everything that would make the work different, and never contains
// the attempt.
type Effect struct {
	Key  string
	Kind Kind
	// State is the state whose worker does it. It is empty for KindEnd, which
	// anyone may do.
	State events.State
	// CallID names the call of KindTool and KindDispatch.
	CallID string
	// Wake is the event whose delivery is responsible for the work: an older
	// delivery leaves it to that one.
	Wake uint64
	// Started is the ToolCallStarted of the call, 0 if there is none.
	Started uint64
	// Held is true while the run is paused: work that runs may go on, but none
	// starts.
	Held bool
	// Failed counts the failures that the log holds for this key.
	Failed Attempt
	// Exhausted says why the work is given up instead; empty while it is not.
	Exhausted string
}

// The bounds of the failures of one effect, beyond which it is given up.
const (
	MaxHandlerFailures = 3
	MaxWorkersLost     = 10
)

// Effects returns what the run wants done now, in a fixed order. A terminal run
// wants nothing, a poisoned one or one over its safety cap only its end.
func Effects(t *Table, mem *Memory) []Effect {
	switch {
	case t.Terminal(mem.State):
		return nil
	case mem.Control.Poison != nil, mem.overCap():
		return []Effect{mem.effect(KindEnd, "")}
	}
	switch mem.State {
	case events.Planning:
		return []Effect{mem.heldWhilePaused(mem.effect(KindPlan, events.Planning))}
	case events.Reflecting:
		return []Effect{mem.heldWhilePaused(mem.effect(KindReflect, events.Reflecting))}
	case events.Acting:
		return mem.toolEffects()
	case events.ParallelActing:
		return mem.parallelEffects()
	case events.Observing:
		return []Effect{mem.effect(KindObserve, events.Observing)}
	case events.Paging:
		return []Effect{mem.effect(KindPage, events.Paging)}
	case events.WaitingForHuman:
		if a := mem.PendingApproval; a != nil && mem.Control.Batch && len(a.Decisions) == len(a.Requests) {
			return []Effect{mem.effect(KindDecide, events.WaitingForHuman)}
		}
		return nil
	case events.WaitingForUser, t.Initial():
		return nil
	}
	return []Effect{mem.heldWhilePaused(mem.effect(KindState, mem.State))}
}

// overCap reports whether the run changed its state more often than any run
// can that still gets somewhere: 5 x max_steps + 3 times since the last user
// message, or since it was handed over.
func (mem *Memory) overCap() bool {
	return mem.N > 0 && mem.Config.MaxSteps > 0 && mem.Control.SinceUser.Changes > 5*mem.Config.MaxSteps+3
}

func (mem *Memory) effect(kind Kind, state events.State) Effect {
	e := Effect{Key: string(kind) + "/" + strconv.FormatUint(mem.Control.Armed, 10), Kind: kind, State: state}
	e.Wake = mem.Control.Wake[state]
	return mem.withFailures(e)
}

// callKey is the key of the work on a call that event n asks for.
func callKey(kind Kind, n uint64, callID string) string {
	var room [96]byte
	b := append(append(room[:0], kind...), '/')
	b = append(strconv.AppendUint(b, n, 10), '/')
	return string(append(b, callID...))
}

func (mem *Memory) heldWhilePaused(e Effect) Effect {
	e.Held = mem.Control.Paused
	return e
}

// withFailures adds what the log says of earlier attempts.
func (mem *Memory) withFailures(e Effect) Effect {
	for i := range mem.Control.Attempts {
		if a := &mem.Control.Attempts[i]; a.Key == e.Key {
			e.Failed = *a
		}
	}
	switch {
	case e.Failed.Handler > MaxHandlerFailures:
		e.Exhausted = "failed " + strconv.Itoa(e.Failed.Handler) + " times"
		if e.Failed.Last != "" {
			e.Exhausted += ", the last time with: " + e.Failed.Last
		}
	case e.Failed.Lost > MaxWorkersLost:
		e.Exhausted = "lost its worker " + strconv.Itoa(e.Failed.Lost) + " times"
	}
	return e
}

// toolEffects wants every call of the reply that has no result run.
func (mem *Memory) toolEffects() []Effect {
	var effects []Effect
	for i := range mem.Control.Calls {
		call := &mem.Control.Calls[i]
		if call.Answered || call.Wake == 0 {
			continue
		}
		if call.Delegated() {
			effects = mem.delegatedEffect(effects, call)
			continue
		}
		e := mem.withFailures(Effect{
			Key:  callKey(KindTool, mem.Control.Armed, call.ID),
			Kind: KindTool, State: mem.State, CallID: call.ID, Wake: call.Wake, Started: call.Started,
		})
		// What was started is concluded even while the run is paused.
		e.Held = mem.Control.Paused && call.Started == 0
		effects = append(roomForCalls(effects, mem, i), e)
	}
	if len(effects) == 0 && mem.State == events.Acting && mem.openCalls() == 0 {
		// Acting without a call: the handler ends the run and says so.
		effects = append(effects, mem.effect(KindTool, events.Acting))
	}
	return effects
}

// roomForCalls makes room, before the first effect, for one of each call from
// number i on.
func roomForCalls(effects []Effect, mem *Memory, i int) []Effect {
	if effects == nil {
		return make([]Effect, 0, len(mem.Control.Calls)-i)
	}
	return effects
}

func (mem *Memory) parallelEffects() []Effect {
	if mem.openCalls() == 0 {
		return []Effect{mem.effect(KindJoin, events.ParallelActing)}
	}
	effects := mem.toolEffects()
	if _, one := mem.singlePool(); one {
		return effects
	}
	after := mem.Control.DispatchAfter
	for i := range mem.Control.Calls {
		call := &mem.Control.Calls[i]
		if call.Answered || call.running() || call.Dispatched > after {
			continue
		}
		effects = append(roomForCalls(effects, mem, i), mem.heldWhilePaused(mem.withFailures(Effect{
			Key:  callKey(KindDispatch, after, call.ID),
			Kind: KindDispatch, State: events.Planning, CallID: call.ID, Wake: mem.Control.Wake[events.Planning],
		})))
	}
	return effects
}

// GiveUp is the event that ends an effect which is given up: a call is
// answered, anything else ends the run.
func GiveUp(mem *Memory, e Effect) events.Payload {
	if e.Kind == KindTool && e.CallID != "" {
		o := events.ToolOutcome{
			CallID: e.CallID, Code: CodeAttemptsExhausted,
			Observation: ErrorPrefix + "the call was given up: it " + e.Exhausted,
		}
		if mem.Control.Batch {
			return &events.ToolCallResult{ToolOutcome: o}
		}
		return &events.ToolFailure{Outcome: &o}
	}
	return &events.FatalError{Outcome: events.Outcome{
		Code: CodeAttemptsExhausted, Message: string(e.Kind) + " was given up: it " + e.Exhausted,
	}}
}

// End is the event that ends a run which wants its end.
func End(mem *Memory) events.Payload {
	if p := mem.Control.Poison; p != nil {
		return &events.FatalError{
			Outcome: events.Outcome{Code: CodePoison, Message: poisonMessage(p)},
			Poison:  *p,
		}
	}
	return &events.FatalError{Outcome: events.Outcome{
		Code:    CodeSafetyCap,
		Message: "more than " + strconv.Itoa(5*mem.Config.MaxSteps+3) + " state changes since the last user message",
	}}
}

func poisonMessage(p *events.Poison) string {
	kind := p.Type
	if kind == "" {
		kind = "a message that is no event"
	}
	return kind + " (event " + strconv.FormatUint(p.N, 10) + ") cannot be processed: " + p.Reason
}

// delegatedEffect adds the work on a call that a run of its own answers: to start
// that run, which may be done over and over. It is due until a ToolCallStarted
// follows what woke it, so that Resumed and Forked drive it once more. Nobody
// concludes that its outcome is unknown.
func (mem *Memory) delegatedEffect(effects []Effect, call *CallState) []Effect {
	if call.Started >= call.Wake {
		return effects
	}
	return append(effects, mem.heldWhilePaused(mem.withFailures(Effect{
		Key:  callKey(KindTool, mem.Control.Armed, call.ID),
		Kind: KindTool, State: mem.State, CallID: call.ID, Wake: call.Wake,
	})))
}

// Deadline returns when the run will have used up its wall time, counted from
// its start whatever it does or waits for; false if its budget has no such limit.
func Deadline(mem *Memory) (at time.Time, limited bool) {
	if mem.N == 0 || mem.Budget == nil || mem.Budget.MaxWallTime <= 0 {
		return time.Time{}, false
	}
	return mem.Started.Add(time.Duration(mem.Budget.MaxWallTime)), true
}

// OverWallTime reports whether the run has used up its wall time, and how it
// ends for that reason.
func OverWallTime(mem *Memory, now time.Time) (o events.Outcome, over bool) {
	at, limited := Deadline(mem)
	if !limited || now.Before(at) {
		return events.Outcome{}, false
	}
	return events.Outcome{
		Code: CodeWallTime, Message: "the run took longer than its " + time.Duration(mem.Budget.MaxWallTime).String(),
	}, true
}
