package reducertest

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/callname"
	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Event is a payload and the state in whose name it is published.
type Event struct {
	Origin  events.State
	Payload events.Payload
}

// Next draws an event that is legal in the run as it stands. A run that has
// ended has none: the payload is nil.
func Next(t *rapid.T, r *Run) Event {
	mem := r.Mem
	g := gen{T: t, run: r, mem: mem}
	switch {
	case r.Machine.Table().Terminal(mem.State):
		return Event{}
	case mem.Control.Poison != nil:
		if g.chance(3) {
			return Event{events.Control, &events.CancelledRun{By: g.by()}}
		}
		origin := g.pick("origin", events.Planning, events.Acting, events.Observing, events.Control)
		return Event{origin, effects.End(mem).(*events.FatalError)}
	case mem.State == events.Idle:
		return Event{events.Idle, g.start()}
	case g.chance(4):
		return g.aside()
	}
	if id, open := g.open(); open && mem.State == events.ParallelActing && g.chance(3) {
		return Event{events.Planning, &events.ToolCallDispatched{CallID: id}}
	}
	return Event{mem.State, g.step()}
}

// open draws one of the reply's calls that have no result.
func (g gen) open() (string, bool) {
	var open []string
	for _, c := range g.mem.Control.Calls {
		if !c.Answered {
			open = append(open, c.ID)
		}
	}
	if len(open) == 0 {
		return "", false
	}
	return rapid.SampledFrom(open).Draw(g.T, "call"), true
}

// gen draws what stands in payloads.
type gen struct {
	*rapid.T
	run *Run
	mem *reducer.Memory
}

// chance is true once in n times.
func (g gen) chance(n int) bool { return rapid.IntRange(1, n).Draw(g.T, "chance") == n }

func (g gen) pick(label string, states ...events.State) events.State {
	return rapid.SampledFrom(states).Draw(g.T, label)
}

func (g gen) text() string {
	return rapid.SampledFrom([]string{"", "hm", "Let me look.", "<b>&\u2028</b>", "🚌 größer", "line\nline", "\ufffd"}).Draw(g.T, "text")
}

func (g gen) by() events.By {
	return events.By{Reason: g.text(), By: rapid.SampledFrom([]string{"", "ann"}).Draw(g.T, "by")}
}

func (g gen) usage() events.Usage {
	in, out := rapid.IntRange(0, 9).Draw(g.T, "in"), rapid.IntRange(0, 9).Draw(g.T, "out")
	u := events.Usage{Input: in, Output: out, Total: in + out}
	if g.chance(2) {
		cost := 0.25 * float64(in)
		u.CostUSD = &cost
	}
	return u
}

func (g gen) start() *events.Start {
	mode := rapid.SampledFrom([]events.Mode{events.ModeTask, events.ModeChat}).Draw(g.T, "mode")
	s := StartOf("do "+g.text(), mode)
	c := &s.Agent.Config
	c.MaxSteps = rapid.IntRange(5, 40).Draw(g.T, "max steps")
	c.ContextWindowSize = rapid.IntRange(0, 4).Draw(g.T, "window")
	c.ThinkingLogEntries = rapid.IntRange(0, 2).Draw(g.T, "thoughts")
	c.ParallelTools = g.chance(2)
	if g.chance(3) {
		s.Parent = &events.Parent{Run: g.run.NewID(), CallID: "call_0"}
	}
	if g.chance(3) {
		s.Labels = events.Labels{"stage": g.text()}
	}
	if g.chance(2) {
		s.Agent.Budget = &events.Budget{MaxTotalTokens: 1000}
	}
	return s
}

// calls draws calls as a planner names them.
func (g gen) calls(least, most int) []events.Call {
	known := slices.Clone(g.mem.Control.CallOrder)
	calls := make([]events.Call, rapid.IntRange(least, most).Draw(g.T, "calls"))
	for i := range calls {
		provider := rapid.SampledFrom([]string{"call_0", "call_1", "x~1", ""}).Draw(g.T, "id")
		id := callname.New(known, provider)
		known = append(known, id)
		calls[i] = events.Call{
			ID:        id,
			Name:      rapid.SampledFrom([]string{"alpha", "beta", "gamma", "delta", "stranger"}).Draw(g.T, "tool"),
			Arguments: rapid.SampledFrom([]string{"", "{}", `{"n": 1.0}`, "not json"}).Draw(g.T, "arguments"),
		}
		if id != provider {
			calls[i].ProviderID = provider
		}
	}
	return calls
}

func (g gen) reply(least, most int) events.ToolCallReply {
	calls := g.calls(least, most+2)
	extra := max(0, len(calls)-most)
	r := events.ToolCallReply{Content: g.text(), Calls: calls[:len(calls)-extra], Confidence: 0.5, Model: "m", Usage: g.usage()}
	for _, call := range calls[len(calls)-extra:] {
		r.Refused = append(r.Refused, events.Refusal{Call: call, Observation: "ERROR: not found", Code: "not_found"})
	}
	return r
}

// aside draws one of the events that leave the state as it is, or an end.
func (g gen) aside() Event {
	mem := g.mem
	own := g.pick("origin", mem.State, events.Control)
	switch rapid.IntRange(0, 14).Draw(g.T, "aside") {
	case 0, 1, 2:
		return Event{events.Control, &events.UserMessage{MessageID: g.messageID(), Content: g.text()}}
	case 3:
		return Event{events.Control, &events.Paused{By: g.by()}}
	case 4, 5:
		return Event{events.Control, &events.Resumed{By: g.by()}}
	case 6:
		return Event{events.Control, &events.BudgetRaised{Budget: events.Budget{MaxInputTokens: 5}, By: g.by()}}
	case 7:
		return Event{own, &events.ContextWindowExpanded{Increment: rapid.IntRange(0, 3).Draw(g.T, "increment"), NextTurn: g.chance(2)}}
	case 8:
		ids := slices.DeleteFunc(slices.Clone(mem.Control.CallOrder), func(id string) bool { return mem.ToolCalls[id] == nil || g.chance(2) })
		return Event{own, &events.ToolCallsAddedToContext{CallIDs: ids, NextTurn: g.chance(2)}}
	case 9:
		return Event{mem.State, &events.WorkingMemoryAdded{Entry: g.entry()}}
	case 10:
		return Event{mem.State, &events.WorkingMemoryRemoved{Tags: g.entry().Tags}}
	case 11:
		return Event{mem.State, &events.StorageSaved{Entry: g.entry()}}
	case 12:
		return Event{mem.State, &events.StorageLoaded{Tags: []string{"a"}, Entries: []events.Entry{g.entry()}}}
	case 13:
		if g.chance(2) {
			return Event{events.Planning, g.interrupted()}
		}
		return Event{mem.State, g.failure()}
	}
	return g.ending(own)
}

func (g gen) ending(own events.State) Event {
	o := events.Outcome{Code: "c", Message: g.text()}
	switch rapid.IntRange(0, 9).Draw(g.T, "ending") {
	case 0:
		return Event{own, &events.FatalError{Outcome: o}}
	case 1:
		return Event{own, &events.BudgetExceeded{Outcome: o}}
	case 2:
		return Event{events.Control, &events.CancelledRun{By: g.by()}}
	}
	return Event{events.Control, &events.Resumed{}}
}

func (g gen) failure() *events.LLMAttemptFailed {
	f := &events.LLMAttemptFailed{Message: g.text()}
	f.Kind = rapid.SampledFrom([]string{codes.KindHandler, codes.KindWorkerLost, codes.KindRateLimited, codes.KindContextTooLong}).Draw(g.T, "kind")
	if effects := g.run.Effects(); len(effects) > 0 {
		f.Key = rapid.SampledFrom(effects).Draw(g.T, "effect").Key
	}
	if g.chance(2) {
		u := g.usage()
		f.Usage = &u
	}
	return f
}

// interrupted draws what is kept of a reply, at any place of the conversation.
func (g gen) interrupted() *events.LLMAttemptFailed {
	f := &events.LLMAttemptFailed{Kind: codes.KindInterrupted, Content: "It i", MessageID: g.messageID()}
	if n := len(g.mem.Messages); g.chance(2) {
		f.Before = g.mem.Messages[rapid.IntRange(0, n-1).Draw(g.T, "before")].ID
	}
	return f
}

// messageID is mostly new.
func (g gen) messageID() string {
	if n := len(g.mem.Messages); n > 0 && g.chance(4) {
		return g.mem.Messages[rapid.IntRange(0, n-1).Draw(g.T, "known")].ID
	}
	return fmt.Sprintf("m%d", g.mem.N)
}

func (g gen) entry() events.Entry {
	return events.Entry{Tags: rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b c", "d", ""}), 0, 3).Draw(g.T, "tags"), Value: g.text()}
}
