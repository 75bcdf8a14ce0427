package sim

import (
	"context"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/forking"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/refusal"
)

// mostForks bounds the runs that people fork in one scenario.
const mostForks = 5

// populate runs a person for each run of the scenario and each fork in the log. A fork may be there although
// the one who made it got no answer.
func (w *world) populate(ctx context.Context) {
	living, left := 0, make(chan struct{})
	lives := func(live func(ctx context.Context)) {
		living++
		go func() {
			live(ctx)
			left <- struct{}{}
		}()
	}
	join := func(p *person) {
		w.people[p.spec.ID] = p
		lives(p.live)
	}
	for i := range w.scenario.Runs {
		join(newPerson(w, &w.scenario.Runs[i]))
	}
	for i := range w.scenario.Schedules {
		o := newOwner(w, &w.scenario.Schedules[i])
		w.owners = append(w.owners, o)
		lives(o.live)
	}
	for _, r := range w.receivers {
		lives(r.live)
	}
	for {
		for _, f := range w.audit.fresh() {
			chance := simtest.Chance(w.scenario.Seed, "fork", f.parent, f.at, len(w.people))
			p := newPerson(w, w.people[f.parent].spec.fork(f.id, uint64(chance*(1<<53))))
			p.forked = true
			join(p)
		}
		if living == 0 {
			return
		}
		select {
		case <-left:
			living--
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// fork forks the person's run at one of its events.
func (p *person) fork(ctx context.Context, patch string) {
	v := p.w.audit.view(p.spec.ID)
	if v.n == 0 || !p.w.mayFork() {
		return
	}
	req := forking.Request{At: 1 + p.rand.Uint64N(v.n), Patch: []byte(patch)}
	p.ask(ctx, func(g *control.Controller) error {
		_, err := g.Fork(ctx, "", p.spec.ID, req)
		if is(err, nobodyUp...) {
			return errLater
		}
		return err
	}, refusal.CodeRunEnded, refusal.CodeRunPoisoned, refusal.CodeApprovalOpen)
}

func (w *world) mayFork() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forks++
	return w.forks <= mostForks
}

// timed checks that a run which has not ended has its timer.
func (p *person) timed() {
	v := p.w.audit.view(p.spec.ID)
	if v.n == 0 || v.terminal || p.w.journal.HasTimer(p.w.placed(p.spec.ID), "run") {
		return
	}
	if v = p.w.audit.view(p.spec.ID); !v.terminal {
		p.w.audit.violate(p.spec.ID, "timer", "the run is in %s at event %d and has no timer", v.state, v.n)
	}
}
