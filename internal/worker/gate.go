package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Gate holds deliveries back while the service that they need refuses to serve them. A
// worker pulls nothing while the gate is shut. After that it pulls one delivery of each
// inbox at a time, as a probe, until the gate is opened. A slow probe delays the next one
// by [ProbeInterval] only. Work in flight continues all the time.
//
// The zero value is open. A gate is safe for concurrent use, and its methods do not block.
type Gate struct {
	mu      sync.Mutex
	until   time.Time
	probing bool
	// turns end the current pull of each inbox when the gate shuts for longer, or opens.
	// Nothing is pulled any more when Shut returns.
	turns map[*pullSession]context.CancelFunc
}

// Shut keeps the gate shut until a time. If it is already shut until a later time, nothing
// changes.
func (g *Gate) Shut(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.After(g.until) {
		g.until, g.probing = until, true
		g.change()
	}
}

// Open lets everything through again, if the time that was given to Shut has passed. Before
// that it does nothing: a call that began earlier says nothing about later ones.
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

// turn returns how long the gate is still shut, whether it lets only one through after
// that, and a context that ends when either changes. The caller calls end after its turn.
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

// ProbeInterval is how long a slow probe delays the next one.
const ProbeInterval = 3 * time.Second

// consumeFunc takes deliveries as [journal.Queue.Consume] does.
type consumeFunc func(ctx context.Context, slots int, handle func(journal.Delivery)) error

// through runs consume as the gate allows, with never more than slots deliveries in
// work. Deliveries that are in flight when one pull ends continue during the next pull.
func (g *Gate) through(ctx context.Context, slots int, consume consumeFunc, handle func(journal.Delivery)) error {
	if g == nil {
		return consume(ctx, slots, handle)
	}
	p := &pullSession{slots: slots, consume: consume, handle: handle, freed: make(chan struct{}, 1)}
	for ctx.Err() == nil && p.failed() == nil {
		shut, probing, turn, end := g.turn(ctx, p)
		if shut > 0 {
			retry.Wait(turn, shut)
		} else {
			p.pull(turn, probing)
		}
		end()
	}
	p.pulls.Wait()
	return p.failed()
}

// pullSession pulls one inbox's deliveries behind a gate, by one call of consume after
// another. Only the last one still asks for deliveries.
type pullSession struct {
	slots   int
	consume consumeFunc
	handle  func(journal.Delivery)
	pulls   sync.WaitGroup
	// freed has a token when a delivery's work has ended.
	freed chan struct{}

	mu     sync.Mutex
	inWork int
	errs   []error
}

// pull consumes deliveries, one at a time while probing, until the turn is over or consume
// returns. It also returns when deliveries of earlier pulls have ended, so that the next
// pull gets more slots: at once if this one has none, or if half of the missing slots are
// free, else at the next tick. A slow probe ends at a tick too.
func (p *pullSession) pull(turn context.Context, probing bool) {
	want, own := p.slots, 0
	if probing {
		want = 1
	}
	slots := p.room(want, &own)
	ended := make(chan struct{})
	if slots > 0 {
		p.pulls.Go(func() {
			defer close(ended)
			p.addError(p.consume(turn, slots, func(d journal.Delivery) {
				p.enter(&own)
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

// room returns how many of the wanted slots are not used by deliveries of earlier pulls.
func (p *pullSession) room(want int, own *int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(want, p.slots-(p.inWork-*own))
}

// full reports whether a pull asks for no delivery, since all its slots are used.
func (p *pullSession) full(own *int, slots int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *own >= slots
}

// enter and leave count a delivery of a pull.
func (p *pullSession) enter(own *int) {
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

func (p *pullSession) addError(err error) {
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
