package runlog

import (
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// KeepFor is how long a delivery is kept at most, counted from before its record was appended.
const KeepFor = 2 * time.Second

// Kept is a delivery that a worker does not acknowledge yet, although nothing is due under it.
// It is responsible for all work of its state until a newer event wakes that state. So while
// it is kept, an event that leads to the state need wake nobody: if the process dies, the kept
// delivery goes to another worker of the state, which finds what is due.
type Kept struct {
	// Ended is closed when there is no reason to keep the delivery any longer.
	Ended chan struct{}
	ended bool
	woken woken
	until time.Time
	// sole reports whether no other process can have the delivery.
	sole func() bool
	// open says that an event which wakes nobody may be stored without that this is known.
	open bool
}

// woken is an event that wakes a state, appended by a process that follows it up itself.
type woken struct {
	n, seq uint64
	to     events.State
	id     string
	sent   time.Time
}

// Keep keeps a delivery of the record, if this process appended it a moment ago and has
// followed it up ([Draft.Followed]). n and id are those of its event. most is less than the ack
// wait, so that nobody else gets the delivery meanwhile; sole reports whether no other process
// can have it already. The run is locked.
func (r *Run) Keep(seq uint64, most time.Duration, sole func() bool) (k *Kept, n uint64, id string) {
	w := r.woken
	until := w.sent.Add(min(KeepFor, most))
	if r.kept != nil || w.seq != seq || r.mem.Control.Wake[w.to] != w.n || r.Terminal() || !time.Now().Before(until) {
		return nil, 0, ""
	}
	r.kept = &Kept{Ended: make(chan struct{}), woken: w, until: until, sole: sole}
	return r.kept, w.n, w.id
}

// Left is how long the delivery may still be kept.
func (k *Kept) Left() time.Duration { return time.Until(k.until) }

// LetGo says that a delivery is not kept any longer. It reports whether the log may hold an
// event that wakes nobody and that the memory lacks. The run is locked.
func (r *Run) LetGo(k *Kept) (open bool) {
	if r.kept == k {
		r.kept = nil
	}
	return k != nil && k.open
}

// EndKept has a kept delivery looked at, which does what is due. The run is locked.
func (r *Run) EndKept() {
	if k := r.kept; k != nil && !k.ended {
		k.ended = true
		close(k.Ended)
	}
}

// keeps reports whether a kept delivery is responsible for what an event that leads to the
// state makes due.
func (r *Run) keeps(mem *reducer.Memory, to events.State) bool {
	k := r.kept
	return k != nil && !k.ended && k.woken.to == to && mem.Control.Wake[to] == k.woken.n && !mem.Control.Paused &&
		time.Now().Before(k.until) && k.sole()
}

// KeepsWake reports whether the delivery of event n is kept. The run is locked.
func (r *Run) KeepsWake(n uint64) bool { return r.kept != nil && r.kept.woken.n == n }
