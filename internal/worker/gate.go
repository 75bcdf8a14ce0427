package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Gate holds deliveries back while what they need refuses to serve them: a
// worker takes nothing while it is shut, and one delivery of each inbox at a
// time when that is over, until somebody says that the gate may open. One that is
// in work for long holds the next one up for [ProbeInterval] only. What is in work
// goes on all the time.
//
// The zero value is open. A gate is safe for concurrent use, and its methods do
// not block. It is shared by the inboxes of a worker, and with whoever shuts it.
type Gate struct {
	mu      sync.Mutex
	until   time.Time
	probing bool
	// turns end what the inboxes do when the gate shuts for longer, or opens: nothing is
	// taken any more when Shut returns.
	turns map[*pullSession]context.CancelFunc
}

// Shut keeps the gate shut until a time. An earlier time than the one that it is
// shut to already changes nothing.
func (g *Gate) Shut(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.After(g.until) {
		g.until, g.probing = until, true
		g.change()
	}
}

// Open lets everything through again, once a time that was given to Shut has
// passed: what was begun before says nothing of what comes after.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.probing && !time.Now().Before(g.until) {
		g.probing = false
		g.change()
	}
}

// change ends all turns. The lock is held.
func (g *Gate) change() {
	for _, end := range g.turns {
		end()
	}
}

// turn returns how long the gate is still shut, whether it lets only one through
// after that, and a context that ends when either is no longer so, or by end.
func (g *Gate) turn(ctx context.Context, p *pullSession) (shut time.Duration, probing bool, turn context.Context, end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	turn, cancel := context.WithCancel(ctx)
	if g.turns == nil {
		g.turns = map[*pullSession]context.CancelFunc{}
	}
	g.turns[p] = cancel
	return time.Until(g.until), g.probing, turn, func() {
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.turns, p)
	}
}

// ProbeInterval is how long a probe may keep the next one waiting.
const ProbeInterval = 3 * time.Second

// takeFunc takes deliveries as [journal.Queue.Consume] does.
type takeFunc func(ctx context.Context, slots int, handle func(journal.Delivery)) error

// through runs take as the gate allows, with never more than slots deliveries in
// work. What the end of one take leaves in work goes on beside the next one.
func (g *Gate) through(ctx context.Context, slots int, take takeFunc, handle func(journal.Delivery)) error {
	if g == nil {
		return take(ctx, slots, handle)
	}
	p := &pullSession{slots: slots, take: take, handle: handle, freed: make(chan struct{}, 1)}
	for ctx.Err() == nil && p.failed() == nil {
		shut, probing, turn, end := g.turn(ctx, p)
		if shut > 0 {
			retry.Wait(turn, shut)
		} else {
			p.pull(turn, probing)
		}
		end()
	}
	p.takes.Wait()
	return p.failed()
}

// pullSession is the taking of one inbox's deliveries behind a gate: one take after
// another, of which only the last one still asks for deliveries.
type pullSession struct {
	slots  int
	take   takeFunc
	handle func(journal.Delivery)
	takes  sync.WaitGroup
	// freed has a token when a delivery's work has ended.
	freed chan struct{}

	mu     sync.Mutex
	inWork int
	errs   []error
}

// pull takes deliveries, one at a time while probing, until the turn is over or the take
// ends by itself. It also returns, so that the next call does better, when deliveries of
// earlier takes have ended and it could have more slots: at once if it has none or half
// of what it lacks is free, else at the next tick. A probe also ends at a tick if it is
// slow.
func (p *pullSession) pull(turn context.Context, probing bool) {
	want, own := p.slots, 0
	if probing {
		want = 1
	}
	slots := p.room(want, &own)
	ended := make(chan struct{})
	if slots > 0 {
		p.takes.Go(func() {
			defer close(ended)
			p.end(p.take(turn, slots, func(d journal.Delivery) {
				p.begin(&own)
				defer p.leave(&own)
				p.handle(d)
			}))
		})
	}
	slow := time.NewTicker(ProbeInterval)
	defer slow.Stop()
	for {
		select {
		case <-ended:
			return
		case <-turn.Done():
			return
		case <-p.freed:
			if free := p.room(want, &own) - slots; free > 0 && (slots <= 0 || free > (want-slots)/2) {
				return
			}
		case <-slow.C:
			if p.room(want, &own) > slots || probing && p.full(&own, slots) {
				return
			}
		}
	}
}

// room returns how many of the slots that a take wants are not in use by deliveries
// of earlier ones.
func (p *pullSession) room(want int, own *int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(want, p.slots-(p.inWork-*own))
}

// full reports whether a take asks for no delivery, since all its slots are used.
func (p *pullSession) full(own *int, slots int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *own >= slots
}

// begin and leave count a delivery of a take.
func (p *pullSession) begin(own *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*own++
	p.inWork++
}

func (p *pullSession) leave(own *int) {
	p.mu.Lock()
	*own--
	p.inWork--
	p.mu.Unlock()
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// end notes how a take ended.
func (p *pullSession) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

func (p *pullSession) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.errs...)
}
