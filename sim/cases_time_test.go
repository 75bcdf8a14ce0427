package sim

import (
	"context"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/pkg/events"
)

// The cases of what time brings about, and of what is gone for long.

// stall is how long work stands still in a case until it is driven again.
const stall = 5 * time.Minute

const (
	rowExpired   = "ApprovalExpired"
	rowNoActor   = "ToolFailure, ToolCallResult (`no_actor`)"
	rowAbandoned = "ToolFailure (batch, `no_actor`)"
	rowUnknown   = "HumanApprovalRequired out of Acting (a `once` call whose outcome is unknown)"
	rowLost      = "a delivery that was lost"
	rowForked    = "Forked"
)

// abandonedCases are those of calls whose pool math nobody serves.
var abandonedCases = []*livenessCase{
	{row: rowNoActor, name: "without an actor", event: events.TypeToolFailure, from: events.Acting, script: script(calls("sum")),
		change: apart, people: takes("math"), then: itself},
	{row: rowNoActor, name: "without an actor, not the last", event: events.TypeToolCallResult, from: events.ParallelActing,
		script: script(calls("sum", "panics")), change: apart, people: takes("math"), then: held},
	{row: rowNoActor, name: "without an actor, the last", event: events.TypeToolCallResult, from: events.ParallelActing, nth: 2,
		script: script(calls("look", "sum")), change: apart, people: takes("math"), then: itself},
	{row: rowAbandoned, name: "of a batch without an actor", event: events.TypeToolFailure, from: events.ParallelActing,
		script: script(calls("sum", "panics")), change: apart, people: takes("math"), then: itself},
}

// unknownCases are those of a call that must not run twice and lost its worker.
var unknownCases = []*livenessCase{
	{row: rowUnknown, name: "approved", event: events.TypeHumanApprovalRequired, from: events.Acting,
		script: script(calls("pay")), agent: asksOutcome, loses: true, people: then(losesWorker, decides(approved)), then: people},
	{row: rowUnknown, name: "modified", event: events.TypeHumanApprovalRequired, from: events.Acting,
		script: script(calls("pay")), agent: asksOutcome, loses: true, people: then(losesWorker, decides(modified)), then: people},
	{row: rowUnknown, name: "rejected", event: events.TypeHumanApprovalRequired, from: events.Acting,
		script: script(calls("pay")), agent: asksOutcome, loses: true, people: then(losesWorker, decides(rejected)), then: people},
	{row: rowUnknown, name: "expired", event: events.TypeHumanApprovalRequired, from: events.Acting, points: timedPoints,
		script: script(calls("pay")), agent: asksOutcome, loses: true, people: losesWorker, then: people},
}

var timedCases = []*livenessCase{
	{row: "HumanApprovalRequired", name: "that expires", event: events.TypeHumanApprovalRequired, from: events.Planning,
		script: script(calls("pay")), agent: expiring, points: timedPoints, then: people},
	{row: rowExpired, event: events.TypeApprovalExpired, from: events.WaitingForHuman, script: script(calls("pay")),
		agent: expiring, timer: true, then: itself},
	{row: rowExpired, name: "of a batch", event: events.TypeApprovalExpired, from: events.WaitingForHuman,
		script: script(calls("look", "sum")), agent: expiring, timer: true, then: itself, people: when(events.WaitingForHuman, decidesOne)},
	{row: rowExpired, name: "by the next decision", event: events.TypeApprovalExpired, from: events.WaitingForHuman,
		script: script(calls("pay")), agent: expiring, change: slowTimers, asked: true, then: itself, people: when(events.WaitingForHuman, decidesLate)},
	{row: "BudgetExceeded at the deadline", name: "at the deadline", event: events.TypeBudgetExceeded, from: events.WaitingForHuman,
		script: script(calls("look")), agent: hastyAsking, timer: true, points: timedPoints, then: nobody},
	{row: "BudgetExceeded at the deadline", name: "at the deadline, in Acting", event: events.TypeBudgetExceeded, from: events.Acting,
		script: script(calls("slow")), agent: hasty, timer: true, points: timedPoints, then: nobody},
	{row: "Resumed as a re-drive", name: "as a re-drive", event: events.TypeResumed, from: events.Observing, lost: []events.Type{events.TypeToolSuccess},
		script: script(calls("look")), timer: true, points: timedPoints, then: itself},
	{row: "Resumed as a re-drive", name: "as a second re-drive", event: events.TypeResumed, from: events.Observing, nth: 2,
		lost: []events.Type{events.TypeToolSuccess, events.TypeResumed}, script: script(calls("look")), timer: true, points: timedPoints, then: itself},
	{row: "FatalError `stalled`", name: "stalled", event: events.TypeFatalError, from: events.Planning,
		lost: []events.Type{events.TypeStart, events.TypeResumed, events.TypeResumed}, timer: true, points: timedPoints, then: nobody},
	{row: rowLost, name: "for a lost delivery", event: events.TypeResumed, from: events.Planning, lost: []events.Type{events.TypeStart},
		timer: true, points: timedPoints, then: itself},
	{row: rowLost, name: "for a lost delivery to Acting", event: events.TypeResumed, from: events.Acting, lost: []events.Type{events.TypeLLMToolCall},
		script: script(calls("pay")), timer: true, points: timedPoints, then: itself},
	{row: rowLost, name: "for a lost dispatch", event: events.TypeResumed, from: events.ParallelActing, lost: []events.Type{events.TypeToolCallDispatched},
		script: script(calls("look", "sum")), timer: true, points: timedPoints, then: itself},
	{row: rowLost, name: "for a lost last result", event: events.TypeResumed, from: events.ParallelActing, lost: []events.Type{events.TypeToolCallResult},
		script: script(calls("look", "look")), timer: true, points: timedPoints, then: itself},
}

var forkedCases = []*livenessCase{
	{row: rowForked, name: "in Planning", event: events.TypeForked, from: events.Idle, asked: true, points: timedPoints, then: itself, people: forks(1)},
	{row: rowForked, name: "in Acting", event: events.TypeForked, from: events.Idle, asked: true, points: timedPoints, then: itself,
		script: script(calls("pay")), people: forks(3)},
	{row: rowForked, name: "in ParallelActing, one pool", event: events.TypeForked, from: events.Idle, asked: true, points: timedPoints, then: itself,
		script: script(calls("pay", "fetch")), people: forks(3)},
	{row: rowForked, name: "in ParallelActing, several pools", event: events.TypeForked, from: events.Idle, asked: true, points: timedPoints, then: itself,
		script: script(calls("look", "sum")), people: forks(3)},
	{row: rowForked, name: "in Observing", event: events.TypeForked, from: events.Idle, asked: true, points: timedPoints, then: itself,
		script: script(calls("look")), people: forks(3)},
	{row: rowForked, name: "in WaitingForHuman", event: events.TypeForked, from: events.Idle, asked: true, points: timedPoints, then: people,
		script: script(calls("look")), agent: expiring, people: forks(2)},
}

func expiring(a *events.Agent) {
	a.Approval = &events.Approval{Policy: events.ApproveAlways, Expires: events.Duration(time.Minute)}
}

func asksOutcome(a *events.Agent) {
	a.Approval = &events.Approval{Policy: events.ApproveNever, OutcomeUnknown: events.AskHuman, Expires: events.Duration(time.Minute)}
}

func hastyAsking(a *events.Agent) {
	hasty(a)
	approveAlways(a)
}

// hasty agents end before a slow tool does.
func hasty(a *events.Agent) {
	a.Budget = &events.Budget{MaxWallTime: events.Duration(3 * time.Second)}
}

// apart has an actor of its own for the pool math, which does not come back.
func apart(s *scenario) {
	actors := 0
	for i := range s.Processes {
		p := &s.Processes[i]
		if !contains(p.Roles, roleActor) {
			continue
		}
		if actors++; actors == 1 {
			p.Pools = []string{"default", "web"}
		} else {
			p.Pools, p.Down = []string{"math"}, patience
		}
	}
}

// slowTimers come seconds after their time.
func slowTimers(s *scenario) { s.Faults.Delay, s.Faults.MaxDelay = 1, 20*time.Second }

// takes kills the processes of a role, or those that serve only one pool.
func takes(what string) func(context.Context, *person) {
	return func(ctx context.Context, p *person) {
		for i, spec := range p.w.scenario.Processes {
			if contains(spec.Roles, what) || slices.Equal(spec.Pools, []string{what}) {
				p.w.end(ctx, killSpec{Process: i})
			}
		}
	}
}

// losesWorker kills the process that runs the run's first call.
func losesWorker(ctx context.Context, p *person) {
	key := p.spec.ID + "/call_1_1"
	for ctx.Err() == nil && !p.w.ran.inWork(key) {
		sleep(ctx, time.Millisecond)
	}
	p.w.ran.kill(key)
}

// decidesOne decides on one of several calls only.
func decidesOne(ctx context.Context, p *person) {
	d := approved
	d.CallID, d.By = p.w.audit.view(p.spec.ID).undecided[0], "a person"
	p.put(ctx, d)
}

// decidesLate decides right after the deadline.
func decidesLate(ctx context.Context, p *person) {
	d := approved
	d.CallID, d.By = p.w.audit.view(p.spec.ID).undecided[0], "a person"
	sleep(ctx, time.Minute)
	p.put(ctx, d)
}

// firstOf are the first events of the types, as many of each as it is named.
func firstOf(types []events.Type) func(*events.Event) bool {
	left, found := slices.Clone(types), map[string]bool{}
	return func(e *events.Event) bool {
		if i := slices.Index(left, e.Type()); i >= 0 && !found[e.ID] {
			left, found[e.ID] = slices.Delete(left, i, i+1), true
		}
		return found[e.ID]
	}
}

// forks forks the run at its n-th event.
func forks(n uint64) func(context.Context, *person) {
	return then(awaits(n), func(ctx context.Context, p *person) {
		p.ask(ctx, func(g *control.Controller) error {
			_, err := g.Fork(ctx, "", p.spec.ID, forking.Request{At: n})
			return err
		})
	})
}
