package reducer

import (
	"errors"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
)

var controlRules = []rule{
	{
		typ: events.TypePaused, stays: true, from: control, check: always, legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			p := e.Data.(*events.Paused)
			mem.Control.Paused, mem.Control.PauseReason, mem.Control.Restored = true, p.Reason, p.Restored
		},
		trace: traced(func(p *events.Paused) string { return traceBy(p.By) }),
	},
	{
		typ: events.TypeResumed, stays: true, from: control,
		ways:  func(_ *Table, state events.State) []Edge { return redrives(state) },
		route: func(mem *Memory, _ events.Payload) (events.State, string) { return mem.redrive() },
		check: always, legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			mem.Control.Paused, mem.Control.PauseReason, mem.Control.Restored = false, "", false
			mem.Control.DispatchAfter, mem.Control.Redriven = e.N, e.Data.(*events.Resumed).Redrive
		},
		trace: traced(func(p *events.Resumed) string { return traceBy(p.By) }),
	},
	{
		typ: events.TypeBudgetRaised, stays: true, from: control, check: always, legality: 1,
		fold:  func(mem *Memory, e *events.Event) { mem.raiseBudget(e.Data.(*events.BudgetRaised).Budget) },
		trace: traced(func(p *events.BudgetRaised) string { return traceBy(p.By) }),
	},
	{
		typ: events.TypeCancelled, moves: []move{{"", events.Cancelled}}, from: control,
		check: always, legality: 1, fold: foldEnd,
		trace: traced(func(p *events.CancelledRun) string { return traceBy(p.By) }),
	},
	{
		typ: events.TypeMaxSteps, moves: []move{{events.Planning, events.Errored}}, from: own,
		check: always, legality: 1,
		fold:  func(mem *Memory, e *events.Event) { mem.fail(e.Data.(*events.MaxSteps).Outcome) },
		trace: traced(func(p *events.MaxSteps) string { return p.Message }),
	},
	{
		typ: events.TypeBudgetExceeded, moves: []move{{"", events.Errored}}, from: own | control,
		check: always, legality: 1,
		fold:  func(mem *Memory, e *events.Event) { mem.fail(e.Data.(*events.BudgetExceeded).Outcome) },
		trace: traced(func(p *events.BudgetExceeded) string { return p.Message }),
	},
	{
		typ: events.TypeFatalError, moves: []move{{"", events.Errored}}, from: everyState | control,
		fromNow: func(mem *Memory, _ events.Payload) origin {
			if _, over := mem.SafetyCap(); over || mem.Control.Poison != nil {
				return everyState | control // any worker that reads it
			}
			return mem.workers() | control
		},
		check: always, legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			p := e.Data.(*events.FatalError)
			mem.fail(p.Outcome)
			if p.Usage != nil {
				mem.addUsage(*p.Usage)
			}
		},
		trace: traced(func(f *events.FatalError) string { return f.Code + ": " + f.Message }),
	},
	{
		typ: events.TypeCustomMemorySet, stays: true, from: control, check: checkCustomMemory, legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			p := e.Data.(*events.CustomMemorySet)
			mem.Keep(p.Key, p.Value)
		},
		trace: traced(func(p *events.CustomMemorySet) string { return p.Key }),
	},
	{
		typ: events.TypeAdmitted, stays: true, in: []events.State{events.Planning}, from: control,
		ways:  only(plain(events.Planning)),
		route: func(*Memory, events.Payload) (events.State, string) { return events.Planning, events.DefaultPool },
		check: checkAdmitted, legality: 1,
		fold: func(mem *Memory, e *events.Event) {
			mem.Control.Admission = &Admission{Priority: mem.Control.Admission.Priority, At: e.Time}
		},
		trace: says("admitted"),
	},
}

// checkCustomMemory refuses what would keep nothing.
func checkCustomMemory(_ *Memory, e *events.Event) error {
	if p := e.Data.(*events.CustomMemorySet); p.Key == "" || len(p.Value) == 0 {
		return errors.New("has no key or no value")
	}
	return nil
}

// checkAdmitted refuses to admit a run that is not queued.
func checkAdmitted(mem *Memory, _ *events.Event) error {
	if !mem.Queued() {
		return errors.New("admits a run that is not queued")
	}
	return nil
}

// Queued reports whether the run waits to be admitted: it has no work until then.
func (mem *Memory) Queued() bool { return mem.Control.Admission != nil && mem.Control.Admission.Queued }

func (mem *Memory) fail(o events.Outcome) {
	mem.Error = &RunError{Code: o.Code, Message: o.Message}
	mem.ReactContext = nil
}

func foldEnd(mem *Memory, _ *events.Event) { mem.ReactContext = nil }

// SafetyCap returns how often a run may change its state, and whether this one has done so
// more often: 5 x max_steps + 3 times since the last user message, or since it was handed
// over. No run that still gets somewhere does.
func (mem *Memory) SafetyCap() (changes int, over bool) {
	changes = 5*mem.Config.MaxSteps + 3
	return changes, mem.N > 0 && mem.Config.MaxSteps > 0 && mem.Control.SinceUser.Changes > changes
}

func (mem *Memory) raiseBudget(by events.Budget) {
	b := events.Budget{}
	if mem.Budget != nil {
		b = *mem.Budget
	}
	if by.MaxInputTokens != 0 {
		b.MaxInputTokens = by.MaxInputTokens
	}
	if by.MaxOutputTokens != 0 {
		b.MaxOutputTokens = by.MaxOutputTokens
	}
	if by.MaxTotalTokens != 0 {
		b.MaxTotalTokens = by.MaxTotalTokens
	}
	if by.MaxCostUSD != 0 {
		b.MaxCostUSD = by.MaxCostUSD
	}
	if by.MaxWallTime != 0 {
		b.MaxWallTime = by.MaxWallTime
	}
	mem.Budget = &b
}

// redrive is the route by which the current state's work is delivered once more.
func (mem *Memory) redrive() (events.State, string) {
	switch mem.State {
	case events.Acting:
		if len(mem.Control.Calls) > 0 {
			return events.Acting, mem.Control.Calls[0].Pool
		}
	case events.ParallelActing:
		if mem.openCalls() == 0 {
			return events.ParallelActing, mem.Control.LastResult
		}
		return mem.approvedRoute()
	}
	return mem.State, events.DefaultPool
}

func traceBy(b events.By) string {
	text := b.Reason
	if b.By != "" {
		text = strings.TrimSpace(text + " (by " + b.By + ")")
	}
	if text == "" {
		text = "no reason given"
	}
	return cut(text, traceTextLimit)
}
