package gateway

import (
	"fmt"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// overdue is what has to happen to a run because time has passed, nothing if
// nothing has: a poisoned run ends, one that is older than its budget allows
// ends, an approval expires, work that stands still is driven once more and then
// given up.
func (g *Gateway) overdue(mem *reducer.Memory, w watch) ([]runlog.Draft, error) {
	if g.table.Terminal(mem.State) {
		return nil, nil
	}
	for _, e := range reducer.Effects(g.table, mem) {
		if e.Kind == reducer.KindEnd {
			return one(events.Control, reducer.End(mem))
		}
	}
	if outcome, over := reducer.OverWallTime(mem, g.store.Now()); over {
		return one(events.Control, &events.BudgetExceeded{Outcome: outcome})
	}
	if drafts := g.expire(mem); drafts != nil {
		return drafts, nil
	}
	if w.N != mem.N || !w.stuck {
		return nil, nil
	}
	return g.unstick(mem)
}

// expire ends an approval whose deadline has passed; nothing otherwise.
func (g *Gateway) expire(mem *reducer.Memory) []runlog.Draft {
	at, waits := approvalDeadline(mem)
	if !waits || g.store.Now().Before(at) {
		return nil
	}
	return []runlog.Draft{{Origin: events.WaitingForHuman, Payload: &events.ApprovalExpired{}}}
}

// unstick drives work that stands still once more, and ends the run if it was
// driven before in vain.
func (g *Gateway) unstick(mem *reducer.Memory) ([]runlog.Draft, error) {
	quiet := g.store.Now().Sub(mem.Updated)
	what := fmt.Sprintf("nothing happened for %s while %s was due", quiet.Round(time.Millisecond), describe(mem, g.idle(mem)))
	if redriven(mem) {
		return one(events.Control, &events.FatalError{Outcome: events.Outcome{
			Code: reducer.CodeStalled, Message: what + ", although it was driven again",
		}})
	}
	return one(events.Control, &events.Resumed{By: events.By{Reason: what, By: g.source}, Redrive: true})
}

// idle is the work of a run that somebody should be at. A run that is paused
// waits for whoever paused it.
func (g *Gateway) idle(mem *reducer.Memory) []reducer.Effect {
	if mem.Control.Paused {
		return nil
	}
	return reducer.Effects(g.table, mem)
}

// redriven reports whether a gateway drove the run's work again and nothing came of
// it: sending calls to their pools once more is not yet work on them. That somebody
// else resumed the run does not count, since what that drove may be lost as well.
func redriven(mem *reducer.Memory) bool {
	for i := len(mem.Trace) - 1; i >= 0; i-- {
		switch events.Type(mem.Trace[i].Event) {
		case events.TypeToolCallDispatched:
		case events.TypeResumed:
			return mem.Control.Redriven
		default:
			return false
		}
	}
	return false
}

// mostDescribed bounds what a message says of calls by the hundred.
const mostDescribed = 5

// describe names work: what kind, and of which tool and call.
func describe(mem *reducer.Memory, effects []reducer.Effect) string {
	if len(effects) == 0 {
		return "the answer of another run"
	}
	var names []string
	for i, e := range effects {
		if i == mostDescribed {
			names = append(names, fmt.Sprintf("%d more", len(effects)-i))
			break
		}
		name := string(e.Kind)
		if call := mem.ToolCalls[e.CallID]; call != nil {
			name += " " + call.Name + " (call " + e.CallID + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}
