// Package effects says what a run wants done: [Of] is a function of the run's memory
// alone and names every piece of work by a key. So a worker can start what is new, cancel
// what is gone and leave the rest alone. The package also makes the events by which work
// is given up and runs end. It is pure, as package reducer is.
package effects

import (
	"slices"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
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
	// Held is true while the run is paused: work that runs may continue, but none
	// starts.
	Held bool
	// Client is true for a reply of the run's own client, see [events.ClientProvider]. No
	// delivery does it: a worker checks whether the run may continue and then leaves it.
	Client bool
	// Failed counts the failures that the log holds for this key.
	Failed reducer.Attempt
	// Exhausted says why the work is given up instead; empty while it is not.
	Exhausted string
}

// MaxHandlerFailures bounds the failures of one effect's handler. Beyond it, or beyond
// [reducer.MaxWorkersLost], the effect is given up.
const MaxHandlerFailures = 3

// Of returns what the run wants done now, in a fixed order. A terminal run wants
// nothing, a poisoned one or one over its safety cap only its end, and a queued one nothing else.
func Of(t *reducer.Table, mem *reducer.Memory) []Effect {
	if t.Terminal(mem.State) {
		return nil
	}
	if _, over := mem.SafetyCap(); over || mem.Control.Poison != nil {
		return []Effect{stateWork(mem, KindEnd, "")}
	}
	if mem.Queued() {
		return nil
	}
	switch mem.State {
	case events.Planning:
		return []Effect{modelWork(mem, KindPlan, events.Planning)}
	case events.Reflecting:
		return []Effect{modelWork(mem, KindReflect, events.Reflecting)}
	case events.Acting:
		return toolWork(mem)
	case events.ParallelActing:
		return batchWork(mem)
	case events.Observing:
		return []Effect{stateWork(mem, KindObserve, events.Observing)}
	case events.Paging:
		return []Effect{stateWork(mem, KindPage, events.Paging)}
	case events.WaitingForHuman:
		if a := mem.PendingApproval; a != nil && mem.Control.Batch && len(a.Decisions) == len(a.Requests) {
			return []Effect{stateWork(mem, KindDecide, events.WaitingForHuman)}
		}
		return nil
	case events.WaitingForUser, t.Initial():
		return nil
	}
	return []Effect{heldWhilePaused(mem, stateWork(mem, KindState, mem.State))}
}

// stateWork is the one effect of a state.
func stateWork(mem *reducer.Memory, kind Kind, state events.State) Effect {
	e := Effect{Key: string(kind) + "/" + strconv.FormatUint(mem.Control.Armed, 10), Kind: kind, State: state}
	e.Wake = mem.Control.Wake[state]
	return withFailures(mem, e)
}

// modelWork is the one effect of a state that asks a model.
func modelWork(mem *reducer.Memory, kind Kind, state events.State) Effect {
	e := heldWhilePaused(mem, stateWork(mem, kind, state))
	e.Client = awaitsClient(mem, &e)
	return e
}

// callKey is the key of the work on a call that event n asks for.
func callKey(kind Kind, n uint64, callID string) string {
	var room [96]byte
	b := append(append(room[:0], kind...), '/')
	b = append(strconv.AppendUint(b, n, 10), '/')
	return string(append(b, callID...))
}

func heldWhilePaused(mem *reducer.Memory, e Effect) Effect {
	e.Held = mem.Control.Paused
	return e
}

// withFailures adds the earlier failures that the log holds.
func withFailures(mem *reducer.Memory, e Effect) Effect {
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
	case e.Failed.Lost > reducer.MaxWorkersLost:
		e.Exhausted = "lost its worker " + strconv.Itoa(e.Failed.Lost) + " times"
	}
	return e
}

// toolWork is the work on the reply's calls that have no result.
func toolWork(mem *reducer.Memory) []Effect {
	var effects []Effect
	for i := range mem.Control.Calls {
		call := &mem.Control.Calls[i]
		if call.Answered || call.Wake == 0 || call.Client || call.Delegated() && call.Started >= call.Wake {
			// A client's call is nobody's work. To start the run that answers a call may be done over and over. It is due until
			// a ToolCallStarted follows what woke it, so Resumed and Forked start it again.
			continue
		}
		e := withFailures(mem, Effect{
			Key:  callKey(KindTool, mem.Control.Armed, call.ID),
			Kind: KindTool, State: mem.State, CallID: call.ID, Wake: call.Wake, Started: call.Started,
		})
		if call.Delegated() {
			e.Started = 0 // nobody concludes that its outcome is unknown
		}
		// What was started is concluded even while the run is paused.
		e.Held = mem.Control.Paused && e.Started == 0
		effects = append(roomForCalls(effects, mem, i), e)
	}
	if len(effects) == 0 && mem.State == events.Acting && allAnswered(mem) {
		// Acting without a call: the handler ends the run and says so.
		effects = append(effects, stateWork(mem, KindTool, events.Acting))
	}
	return effects
}

// roomForCalls makes room, before the first effect, for one of each call from
// number i on.
func roomForCalls(effects []Effect, mem *reducer.Memory, i int) []Effect {
	if effects == nil {
		return make([]Effect, 0, len(mem.Control.Calls)-i)
	}
	return effects
}

func allAnswered(mem *reducer.Memory) bool {
	return !slices.ContainsFunc(mem.Control.Calls, func(c reducer.CallState) bool { return !c.Answered })
}

// batchWork is what a batch wants: its end, or its calls. Each call of a batch of several
// pools has to be dispatched first.
func batchWork(mem *reducer.Memory) []Effect {
	if allAnswered(mem) {
		return []Effect{stateWork(mem, KindJoin, events.ParallelActing)}
	}
	effects, calls := toolWork(mem), mem.Control.Calls
	if !slices.ContainsFunc(calls, func(c reducer.CallState) bool { return c.Pool != calls[0].Pool }) {
		return effects
	}
	after := mem.Control.DispatchAfter
	for i := range calls {
		call := &calls[i]
		if call.Answered || call.Running() || call.Dispatched > after || call.WaitsForClient() {
			continue
		}
		effects = append(roomForCalls(effects, mem, i), heldWhilePaused(mem, withFailures(mem, Effect{
			Key:  callKey(KindDispatch, after, call.ID),
			Kind: KindDispatch, State: events.Planning, CallID: call.ID, Wake: mem.Control.Wake[events.Planning],
		})))
	}
	return effects
}

// GiveUp is the event that ends an effect which is given up: a call is
// answered, anything else ends the run.
func GiveUp(mem *reducer.Memory, e Effect) events.Payload {
	if e.Kind == KindTool && e.CallID != "" {
		o := events.ToolOutcome{
			CallID: e.CallID, Code: codes.AttemptsExhausted,
			Observation: codes.ErrorPrefix + "the call was given up: it " + e.Exhausted,
		}
		if mem.Control.Batch {
			return &events.ToolCallResult{ToolOutcome: o}
		}
		return &events.ToolFailure{Outcome: &o}
	}
	return &events.FatalError{Outcome: events.Outcome{
		Code: codes.AttemptsExhausted, Message: string(e.Kind) + " was given up: it " + e.Exhausted,
	}}
}

// End is the event that ends a run which wants its end.
func End(mem *reducer.Memory) events.Payload {
	if p := mem.Control.Poison; p != nil {
		return &events.FatalError{
			Outcome: events.Outcome{Code: codes.Poison, Message: poisonMessage(p)},
			Poison:  *p,
		}
	}
	most, _ := mem.SafetyCap()
	return &events.FatalError{Outcome: events.Outcome{
		Code: codes.SafetyCap, Message: "more than " + strconv.Itoa(most) + " state changes since the last user message",
	}}
}

func poisonMessage(p *events.Poison) string {
	kind := p.Type
	if kind == "" {
		kind = "a message that is no event"
	}
	return kind + " (event " + strconv.FormatUint(p.N, 10) + ") cannot be processed: " + p.Reason
}

// Deadline returns when the run will have used up its wall time, counted from
// its start, or its admission if it was queued, whatever it does or waits for; false if its
// budget has no such limit or the run is queued.
func Deadline(mem *reducer.Memory) (at time.Time, limited bool) {
	if mem.N == 0 || mem.Budget == nil || mem.Budget.MaxWallTime <= 0 || mem.Queued() {
		return time.Time{}, false
	}
	if a := mem.Control.Admission; a != nil {
		return a.At.Add(time.Duration(mem.Budget.MaxWallTime)), true
	}
	return mem.Started.Add(time.Duration(mem.Budget.MaxWallTime)), true
}

// OverWallTime reports whether the run has used up its wall time, and how it
// ends for that reason.
func OverWallTime(mem *reducer.Memory, now time.Time) (o events.Outcome, over bool) {
	at, limited := Deadline(mem)
	if !limited || now.Before(at) {
		return events.Outcome{}, false
	}
	return events.Outcome{
		Code: codes.WallTime, Message: "the run took longer than its " + time.Duration(mem.Budget.MaxWallTime).String(),
	}, true
}
