package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/tool/builtin"
)

// points are where the publisher of an event dies. For an event that people
// asked for, the acknowledgement is the answer that they get.
var points = []string{simtest.BeforeAppend, simtest.AfterAppend, simtest.BeforeAck, simtest.AfterAck}

// timedPoints are those of a publisher that sets or takes back a timer as well.
var timedPoints = slices.Concat(points, []string{simtest.BeforeTimer, simtest.AfterTimer})

// TestLiveness plays every case of the table "Who continues a run when a process
// dies" once without a crash, and once for each point with a crash there: the
// run must end the same, and whoever the table names must have carried it on.
func TestLiveness(t *testing.T) {
	for _, c := range livenessCases {
		t.Run(c.title(), func(t *testing.T) {
			t.Parallel()
			calm := c.play(t, "")
			require.Nil(t, calm.w.audit.violation())
			require.True(t, c.follows == "" || c.led || calm.w.followed[string(c.follows)] > 0, "nothing was decided without a delivery: %v", calm.types())
			require.True(t, !c.led || calm.w.audit.led > 0, "nothing was led")
			require.NotNil(t, calm.target, "without a crash there is no %s in %s: %v", c.event, c.from, calm.types())
			for i, point := range c.dies() {
				if testing.Short() && i > 0 {
					break // one way to die is enough for a first look
				}
				t.Run(strings.ReplaceAll(point, "-", "_"), func(t *testing.T) {
					played := c.play(t, point)
					require.Nil(t, played.w.audit.violation(), "%v", played.types())
					require.True(t, played.struck, "the point was not reached: %v", played.types())
					require.Equal(t, calm.end(), played.end(), "%v", played.types())
					played.requireCarrier(t)
					played.requireOnTime(t)
				})
			}
		})
	}
}

func (c *livenessCase) dies() []string {
	if c.points != nil {
		return c.points
	}
	return points
}

// title names a sub-test after its event.
func (c *livenessCase) title() string {
	if c.name == "" {
		return string(c.event)
	}
	return string(c.event) + " " + c.name
}

// played is a case that is being played, or was.
type played struct {
	*livenessCase
	w     *world
	point string

	mu sync.Mutex
	// seen counts the events of the case's kind that were stored.
	seen int
	// publisher appended the target; cause is the event under whose delivery it
	// did, or tried to.
	publisher *simtest.Process
	target    *events.Event
	cause     string
	struck    bool
}

// play plays the case with a crash at a point, or without one.
func (c *livenessCase) play(t *testing.T, point string) *played {
	t.Helper()
	p := &played{livenessCase: c, point: point}
	spec := c.scenario()
	err := bubble(t, func() {
		p.w = newWorld(spec)
		p.w.aim, p.w.answering = p.strikes, p.hears
		p.w.audit.calm = p.w.audit.calm && point == "" && !c.loses
		if len(c.lost) > 0 {
			p.w.loses = firstOf(c.lost)
		}
		p.w.run(func(ctx context.Context) {
			person := newPerson(p.w, &spec.Runs[0])
			person.alone = true // the case says what is sent together
			person.start(ctx)
			if c.people != nil {
				c.people(ctx, person)
			}
			person.await(ctx, func(v view) bool { return v.terminal })
			p.awaitFork(ctx)
			p.awaitTimers(ctx)
		})
	})
	require.NoError(t, err)
	return p
}

// scenario is two processes of each role, or two with every role, and one run.
func (c *livenessCase) scenario() *scenario {
	s := &scenario{Seed: 1, Shards: 1, AckWait: 15 * time.Second, Stall: stall}
	roles := []string{rolePlanner, roleActor, roleObserver, roleGateway, roleSubagent}
	for _, role := range roles {
		for range 2 {
			s.Processes = append(s.Processes, processSpec{Roles: []string{role}, Concurrency: 4, Down: time.Minute})
		}
	}
	if c.follows != "" {
		all := processSpec{Roles: roles, Shared: true, Follows: true, Leads: c.led, Concurrency: 4, Down: time.Minute}
		s.Processes, s.Led = []processSpec{all, all}, c.led
	}
	a := events.DefaultAgent()
	a.Name, a.Mode, a.LLM.Provider = "liveness", events.ModeTask, "scripted"
	a.Config.ReflectEveryNSteps = 0
	a.Blacklist = []string{"forbidden"}
	for _, def := range toolDefinitions {
		a.Tools = append(a.Tools, def.Name)
	}
	a.Tools = append(a.Tools, builtin.MemoryNames()...)
	for _, t := range agentTools {
		a.Tools = append(a.Tools, t.Definition().Name)
	}
	script := append(c.script, scriptEntry{"text": lastWords}, scriptEntry{"text": lastWords}, scriptEntry{"text": lastWords})
	var err error
	if a.LLM.Script, err = json.Marshal(script); err != nil {
		panic(err)
	}
	if c.agent != nil {
		c.agent(&a)
	}
	s.Runs = []runSpec{{ID: "00000000-0000-7000-8000-000000000001", Agent: a, Chance: 1}}
	if c.change != nil {
		c.change(s)
	}
	return s
}

// isTarget reports whether an event is of the case's kind.
func (p *played) isTarget(e *events.Event) bool {
	return e != nil && e.Type() == p.event && e.From == p.from
}

// strikes decides on crash points.
func (p *played) strikes(at simtest.Moment) bool {
	e, _ := p.w.audit.machine.Codec().Decode(at.Record.Body) // poison is no target
	p.mu.Lock()
	defer p.mu.Unlock()
	hit := false
	switch {
	case at.Record.Body == nil:
		hit = p.atTimer(at)
	case e == nil: // poison is what the delivery brought
		hit = string(at.Record.Body) == poisonBody && p.target != nil && p.publisher == at.Process
	case at.Point == simtest.BeforeAppend:
		hit = p.isTarget(e) && p.seen+1 == max(p.nth, 1)
		if hit && !p.struck {
			p.cause = e.Cause
		}
	case at.Point == simtest.AfterAppend && p.isTarget(e):
		p.seen++
		if hit = p.seen == max(p.nth, 1); hit {
			p.publisher, p.target = at.Process, e
			if !p.struck {
				p.cause = e.Cause
			}
		}
	case at.Point == simtest.BeforeAck, at.Point == simtest.AfterAck:
		hit = !p.asked && !p.timer && p.target != nil && p.publisher == at.Process && e.ID == p.cause
	}
	hit = hit && !p.struck && p.point == at.Point
	p.struck = p.struck || hit
	return hit
}

// atTimer decides on the crash points of timers. Who starts a run sets its timer
// before the first event, anybody else after the event.
func (p *played) atTimer(at simtest.Moment) bool {
	acked := at.Point == simtest.BeforeAck || at.Point == simtest.AfterAck
	switch {
	case p.from == events.Idle:
		return !acked && p.target == nil && p.isFirst() == (at.Run.ID == p.w.scenario.Runs[0].ID)
	case p.timer:
		return p.target != nil && p.publisher == at.Process
	}
	return !acked && p.target != nil
}

// run is the run that the case is about: the one that was started, or its fork.
func (p *played) run() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.target != nil {
		return p.target.Run
	}
	return p.w.scenario.Runs[0].ID
}

// awaitFork waits for the end of the run, if it is a fork.
func (p *played) awaitFork(ctx context.Context) {
	newPerson(p.w, &runSpec{ID: p.run(), Agent: p.w.scenario.Runs[0].Agent}).await(ctx, func(v view) bool { return v.terminal })
}

// awaitTimers waits until the runs that have ended have no timer any more.
func (p *played) awaitTimers(ctx context.Context) {
	left := func() bool {
		return slices.ContainsFunc([]string{p.run(), p.w.scenario.Runs[0].ID}, func(id string) bool {
			run := p.w.placed(id)
			return p.w.audit.view(id).terminal &&
				slices.ContainsFunc(ports.TimerKinds(), func(kind string) bool { return p.w.journal.HasTimer(run, kind) })
		})
	}
	for give := time.Now().Add(4 * stall); left() && time.Now().Before(give) && ctx.Err() == nil; {
		sleep(ctx, time.Second)
	}
	if left() {
		p.w.audit.violate(p.run(), "timer", "a run has ended and still has a timer")
	}
}

// requireOnTime checks that what a deadline brought about came at it, or within a minute.
func (p *played) requireOnTime(t *testing.T) {
	t.Helper()
	deadline, from := 3*time.Second, events.TypeStart // hasty
	if p.event == events.TypeApprovalExpired {
		deadline, from = time.Minute, events.TypeHumanApprovalRequired // expiring
	} else if p.row == rowClientLate {
		deadline, from = time.Minute, events.TypeLLMToolCall // ofClient
		if p.from == events.ParallelActing {
			from = events.TypeLLMParallelToolCalls
		}
	} else if p.event != events.TypeBudgetExceeded {
		return
	}
	if !p.timer || p.target == nil {
		return
	}
	all := p.events()
	at := slices.IndexFunc(all, func(e *events.Event) bool { return e.Type() == from })
	require.GreaterOrEqual(t, at, 0)
	late := p.target.Time.Sub(all[at].Time) - deadline
	require.GreaterOrEqual(t, late, time.Duration(0), "too early")
	require.Less(t, late, time.Minute)
}

// hears lets a gateway die with its answer to people, or right after it.
func (p *played) hears(at *process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.struck || !p.asked || p.target == nil || p.publisher != at.sim {
		return true
	}
	if p.point != simtest.BeforeAck && p.point != simtest.AfterAck {
		return true
	}
	p.struck = true
	at.sim.Kill()
	return p.point == simtest.AfterAck
}

// events are the run's, in order.
func (p *played) events() []*events.Event {
	run := p.run()
	p.w.audit.mu.Lock()
	defer p.w.audit.mu.Unlock()
	var all []*events.Event
	for _, rec := range p.w.audit.records {
		if e, err := p.w.audit.machine.Codec().Decode(rec.Body); err == nil && e.Run == run {
			all = append(all, e)
		}
	}
	return all
}

func (p *played) types() []string {
	var all []string
	for _, e := range p.events() {
		all = append(all, fmt.Sprintf("%d %s (%s)", e.N, e.Type(), e.Source))
	}
	return all
}

// end is how the run ended.
func (p *played) end() string {
	v, first := p.w.audit.view(p.run()), p.w.audit.view(p.w.scenario.Runs[0].ID)
	return fmt.Sprintf("%s, error %q, answer %q; first run: %s, %v", v.state, v.outcome.Code, v.answer, first.state, first.called)
}

// requireCarrier checks under whose delivery the next event was appended.
func (p *played) requireCarrier(t *testing.T) {
	t.Helper()
	all := p.events()
	byID := map[string]*events.Event{}
	for _, e := range all {
		byID[e.ID] = e
	}
	if p.point == simtest.BeforeAppend {
		p.requireAgain(t, all)
		return
	}
	at := slices.IndexFunc(all, func(e *events.Event) bool { return e.N > p.target.N })
	if p.then == nobody {
		require.Negative(t, at, "%v", p.types())
		return
	}
	require.Positive(t, at, "nobody carried on: %v", p.types())
	next := all[at]
	switch p.then {
	case people:
		require.Contains(t, next.Source, "/"+roleGateway+"/", "%v", p.types())
	case itself:
		require.Equal(t, p.target.ID, next.Cause, "%v", p.types())
	case held:
		require.Equal(t, p.cause, next.Cause, "%v", p.types())
	case another:
		require.True(t, ofAnother(all, next.Cause), "%v", p.types())
	default:
		require.Contains(t, strings.Split(p.then, ", "), string(byID[next.Cause].Type()), "%v", p.types())
	}
}

// requireAgain checks who appended the event that was not: the same delivery
// again, or people who asked again.
func (p *played) requireAgain(t *testing.T, all []*events.Event) {
	t.Helper()
	require.NotNil(t, p.target, "nobody did it again: %v", p.types())
	if p.asked || p.timer {
		require.Contains(t, p.target.Source, "/"+roleGateway+"/")
		return
	}
	for _, e := range all {
		if e.Cause == p.cause && (e.ID == p.target.ID || e.Type() == events.TypeLLMAttemptFailed) {
			return
		}
	}
	t.Errorf("no event was appended under the delivery that came again: %v", p.types())
}

// await waits until the run is seen as wanted.
func (p *person) await(ctx context.Context, wanted func(view) bool) {
	for ctx.Err() == nil && !wanted(p.w.audit.view(p.spec.ID)) {
		sleep(ctx, 100*time.Millisecond)
	}
	if v := p.w.audit.view(p.spec.ID); !wanted(v) {
		p.w.audit.violate(p.spec.ID, "end", "waited in vain; the run is in %s at event %d", v.state, v.n)
	}
}

func (p *person) awaitState(ctx context.Context, s events.State) {
	p.await(ctx, func(v view) bool { return v.state == s })
}
