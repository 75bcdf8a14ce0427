package sim

import (
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/pkg/events"
)

// The cases of agents that are called as tools.

// another is whoever takes the delivery of an event of another run.
const another = "another run"

const (
	rowSubrun    = "Start of a run that answers a call"
	rowDelegated = "ToolCallStarted of a call that a run answers"
	rowAnswer    = "ToolSuccess, ToolFailure, ToolCallResult as a run's answer"
	rowHandedOff = "HandedOff"
	rowCascade   = "Cancelled of a run that answers a call"
)

var subrunCases = []*livenessCase{
	{row: rowSubrun, name: "of a sub-run", event: events.TypeStart, from: events.Idle, nth: 2, script: script(calls("helper")), then: itself,
		points: []string{simtest.BeforeAppend, simtest.AfterAppend, simtest.BeforeTimer, simtest.AfterTimer}},
	{row: rowDelegated, name: "for a sub-run", event: events.TypeToolCallStarted, from: events.Acting, script: script(calls("endless")), then: another},
	{row: rowDelegated, name: "for the first of two sub-runs", event: events.TypeToolCallStarted, from: events.ParallelActing,
		script: script(calls("endless", "endless")), then: held},
	{row: rowDelegated, name: "for a sub-run among several pools", event: events.TypeToolCallStarted, from: events.ParallelActing,
		script: script(calls("slow", "endless")), then: "ToolCallDispatched"},
	{row: rowAnswer, name: "of a sub-run", event: events.TypeToolSuccess, from: events.Acting, script: script(calls("helper")), nth: 2, then: itself},
	{row: rowAnswer, name: "of a sub-run", event: events.TypeToolFailure, from: events.Acting, script: script(calls("loser")), then: itself},
	{row: rowAnswer, name: "of a sub-run, not the last", event: events.TypeToolCallResult, from: events.ParallelActing,
		script: script(calls("helper", "endless")), then: another},
	{row: rowAnswer, name: "of a sub-run, the last", event: events.TypeToolCallResult, from: events.ParallelActing, nth: 2,
		script: script(calls("helper", "loser")), then: itself},
	{row: rowAnswer, name: "of a sub-run that was cancelled", event: events.TypeToolFailure, from: events.Acting, script: script(calls("endless")), then: itself,
		people: cancelsSubrun},
	{row: rowCascade, name: "of a sub-run", event: events.TypeCancelled, from: events.WaitingForHuman, script: script(calls("endless")), asked: true, then: nobody,
		people: then(subrunWaits, act(actCancel))},
	{row: "BudgetExceeded at the deadline", name: "of a sub-run", event: events.TypeBudgetExceeded, from: events.WaitingForHuman, script: script(calls("endless")),
		timer: true, points: timedPoints, then: nobody},
	{row: rowLost, name: "for the lost end of a sub-run", event: events.TypeResumed, from: events.Acting, lost: []events.Type{events.TypeLLMFinalAnswer},
		script: script(calls("helper")), timer: true, points: timedPoints, then: itself},
	{row: rowHandedOff, event: events.TypeHandedOff, from: events.Acting, script: script(calls(handsOver)), then: held},
	{row: rowForked, name: "while it waits for a sub-run", event: events.TypeForked, from: events.Idle, asked: true, points: timedPoints, then: itself,
		script: script(calls("helper")), people: forks(3)},
}

// subrun is the run that answers a run's first call.
func (p *person) subrun() string { return runid.Child(p.spec.ID, "call_1_1") }

// subrunWaits waits until the sub-run waits for people, who never come.
func subrunWaits(ctx context.Context, p *person) {
	newPerson(p.w, &runSpec{ID: p.subrun(), Agent: p.spec.Agent}).awaitState(ctx, events.WaitingForHuman)
}

// cancelsSubrun cancels the sub-run alone.
var cancelsSubrun = then(subrunWaits, func(ctx context.Context, p *person) {
	newPerson(p.w, &runSpec{ID: p.subrun(), Agent: p.spec.Agent}).act(ctx, actSpec{Kind: actCancel})
})

// isFirst reports whether the case is about the first event of the run that people
// start.
func (c *livenessCase) isFirst() bool {
	return c.event == events.TypeStart && c.nth < 2
}

// ofAnother reports whether no event of the run is of that id.
func ofAnother(all []*events.Event, id string) bool {
	return !slices.ContainsFunc(all, func(e *events.Event) bool { return e.ID == id })
}
