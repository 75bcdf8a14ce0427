package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Crew are the workers of a process that go on with runs together. A delivery to Planning then leads
// its run through the states that they serve: what one worker appends wakes nobody, and the next one
// does what it asks for, under the same delivery. The delivery is acknowledged when nothing is due
// under it anymore. Until then it is responsible for the run in every state. If it comes again, its
// worker goes on from the head of the run.
//
// The zero value is an empty crew. It is safe for concurrent use. Its workers share a Store.
type Crew struct {
	mu      sync.RWMutex
	members map[place]*Worker
}

// place is where an event goes.
type place struct {
	state events.State
	pool  string
}

const (
	// leadFor is how long a run keeps its slot while others may be waiting for one.
	leadFor = time.Second
	// longStep is how long the work of another state may keep the slot of a delivery to Planning.
	longStep = time.Second
)

// errNotHere says that no worker of this process serves the state in which a run is.
var errNotHere = errors.New("no worker of this process serves the run's state")

// join adds a worker. One that takes no deliveries any more stays: it ends what is led to it.
func (c *Crew) join(w *Worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members == nil {
		c.members = map[place]*Worker{}
	}
	for _, inbox := range w.cfg.Inboxes {
		for _, state := range inbox.States {
			c.members[place{state, inbox.Pool}] = w
		}
	}
}

// at returns who works on what goes there; nil: nobody of the crew.
func (c *Crew) at(to place) *Worker {
	if c == nil {
		return nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.members[to]
}

// placeOf is where an effect's deliveries go.
func placeOf(mem *reducer.Memory, e effects.Effect) place {
	if call := mem.Call(e.CallID); e.Kind == effects.KindTool && call != nil {
		return place{e.State, call.Pool}
	}
	return place{e.State, events.DefaultPool}
}

// leads reports whether the delivery goes on by itself with what an event asks for. It does so only
// as the last delivery that went to Planning or to the run's state, and not if work would then wait that
// could be done by another process: see [Crew].
func (j *delivery) leads(mem *reducer.Memory, e *events.Event, to events.Subject) bool {
	switch {
	case j.lead == nil || j.lead.ended.Load() || j.n != mem.Control.Wake[events.Planning] || j.n != mem.Control.Wake[mem.State] || mem.Control.Paused:
		return false
	case !j.w.table.CarriesWakes(mem) || j.w.table.Terminal(to.To) || to.To == events.ParallelActing || to.Pool == events.AgentsPool:
		return false
	case j.lead.w.full() && time.Since(j.lead.began) > leadFor:
		return false
	}
	next := j.w.cfg.Crew.at(place{to.To, to.Pool})
	return next != nil && next.goesOn() && (next.cfg.Leads == nil || next.cfg.Leads(mem, e.Data))
}

// goesOn reports whether the worker still takes work, and has a slot. Half of the slots are kept for its
// own deliveries, which would else wait here while another process could do the work.
func (w *Worker) goesOn() bool {
	return w.taking.Load() && len(w.working) < (cap(w.working)+1)/2
}

// full reports whether deliveries may be waiting for a slot.
func (w *Worker) full() bool { return int(w.inHand.Load()) >= w.cfg.Concurrency }

// lead is what a delivery to Planning and the parts of its work have in common.
type lead struct {
	w     *Worker
	began time.Time
	// left is closed when the delivery leaves its slot. ended says that it leads no further.
	left  chan struct{}
	ended atomic.Bool
}

// leading makes the delivery lead its run, if it may.
func (j *delivery) leading() bool {
	if j.w.cfg.Crew == nil || !j.w.cfg.Store.Agreed() || !j.w.taking.Load() || j.subject.To != events.Planning {
		return false
	}
	j.run.Lock()
	defer j.run.Unlock()
	if !j.w.table.CarriesWakes(j.run.Memory()) {
		return false
	}
	j.lead = &lead{w: j.w, began: time.Now(), left: make(chan struct{})}
	return true
}

// workOn works on a delivery that may lead its run. It returns when the delivery has its verdict, or
// leaves its slot.
func (j *delivery) workOn(ctx context.Context, held *extender, out *unslotted) {
	ended := make(chan struct{})
	started := out.start(func() {
		defer close(ended)
		defer j.release(held)
		j.conclude(ctx, j.work(ctx))
		j.lead.end()
	})
	if !started { // without a verdict it comes again
		j.release(held)
		return
	}
	select {
	case <-ended:
	case <-j.lead.left:
	}
}

// leave gives the slot of the delivery back, unless too many have done so. After the work in hand it
// leads no further: it may not begin what needs the slot.
func (l *lead) leave() {
	select {
	case l.w.waiting <- struct{}{}:
		if l.ended.CompareAndSwap(false, true) {
			close(l.left)
		} else {
			<-l.w.waiting // it ended meanwhile
		}
	default:
	}
}

// end ends what leave began.
func (l *lead) end() {
	if !l.ended.CompareAndSwap(false, true) {
		<-l.w.waiting
	}
}

// outrun returns [errElsewhere] if another holder of the delivery that leads the run was faster: the
// run has gone on, and the delivery leads it still. The run is locked.
func (j *delivery) outrun() error {
	if j.lead != nil && slices.ContainsFunc(j.run.Effects(), func(e effects.Effect) bool { return e.State != "" && e.Wake == j.n && !e.Held }) {
		return errElsewhere
	}
	return nil
}

// part returns the delivery as the worker of the effect's state has it. The delivery leads the run,
// or led it before it came again.
func (j *delivery) part(e effects.Effect) (*delivery, error) {
	j.run.Lock()
	defer j.run.Unlock()
	mem := j.run.Memory()
	if e.State == "" || j.borrowed || !j.w.table.CarriesWakes(mem) || e.State == j.subject.To && mem.Control.Armed <= j.n {
		return j, nil
	}
	on := *j
	if on.cause = mem.Control.LastID; e.State == j.subject.To {
		return &on, nil
	}
	to := placeOf(mem, e)
	if on.w = j.w.cfg.Crew.at(to); on.w == nil {
		return nil, errNotHere
	}
	on.subject.To, on.subject.Pool = to.state, to.pool
	return &on, nil
}

// keepSlot bounds how long the work of another state keeps the slot of the delivery that leads the
// run. The caller calls stop after the work.
func (j *delivery) keepSlot() (stop func()) {
	if j.lead == nil || j.w == j.lead.w {
		return func() {}
	}
	timer := time.AfterFunc(longStep, j.lead.leave)
	return func() { timer.Stop() }
}

// handOver has somebody else go on with a run whose state this process does not serve. Until that
// happened the delivery comes again.
func (w *Worker) handOver(ctx context.Context, j *delivery) {
	if w.cfg.HandOver == nil {
		return
	}
	if err := w.cfg.HandOver(ctx, j.run.ID, j.n); err != nil {
		w.cfg.Logger.Warn("a run cannot be handed over yet", "run", j.run.ID.ID, "reason", err)
	}
}
