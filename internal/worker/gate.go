package worker

import (
	"context"
	"errors"
	"sync"
	"time"

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
	// turn ends when the gate shuts for longer, or opens, and every take with it:
	// nothing is taken any more when Shut returns.
	turn    context.Context
	endTurn context.CancelFunc
	takes   map[*stint]context.CancelFunc
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

// change wakes who waits for the gate. The lock is held.
func (g *Gate) change() {
	if g.turn != nil {
		g.endTurn()
		g.turn = nil
	}
	for _, stop := range g.takes {
		stop()
	}
}

// guard has a stint's take stopped at the end of the turn, which may be over, and
// until it is released.
func (g *Gate) guard(s *stint, turn context.Context, stop context.CancelFunc) (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.takes == nil {
		g.takes = map[*stint]context.CancelFunc{}
	}
	g.takes[s] = stop
	if turn.Err() != nil {
		stop()
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.takes, s)
	}
}

// look returns how long the gate is still shut, whether it lets only one through
// after that, and a context that ends when either is no longer so.
func (g *Gate) look() (shut time.Duration, probing bool, turn context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.turn == nil {
		g.turn, g.endTurn = context.WithCancel(context.Background())
	}
	return time.Until(g.until), g.probing, g.turn
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
	s := &stint{gate: g, slots: slots, take: take, handle: handle, left: make(chan struct{}, 1)}
	for ctx.Err() == nil && !s.failed() {
		shut, probing, turn := g.look()
		switch {
		case shut > 0:
			pause(ctx, shut, turn)
		case probing:
			s.probe(ctx, turn)
		default:
			s.run(ctx, turn, slots, nil)
		}
	}
	s.takes.Wait()
	return errors.Join(s.errs...)
}

// pause waits for a time, or for the end of the turn.
func pause(ctx context.Context, d time.Duration, turn context.Context) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-turn.Done():
	case <-ctx.Done():
	}
}

// stint is the taking of one inbox's deliveries behind a gate: one take after
// another, of which only the last one still asks for deliveries.
type stint struct {
	gate   *Gate
	slots  int
	take   takeFunc
	handle func(journal.Delivery)
	takes  sync.WaitGroup
	// left has a token when a delivery's work has ended while a take was short.
	left chan struct{}

	mu     sync.Mutex
	inWork int
	// short says that the last take has fewer slots than it wants, since deliveries
	// of earlier ones are in work.
	short bool
	errs  []error
}

// probe takes one delivery at a time; while that one is in work for long, the next
// call takes another one.
func (s *stint) probe(ctx, turn context.Context) {
	slow := time.NewTicker(ProbeInterval)
	defer slow.Stop()
	s.run(ctx, turn, 1, slow.C)
}

// run takes with as many slots as are wanted and free, until the turn is over,
// the taking ends by itself, or earlier takes have given up enough slots to begin
// again with more. At a tick of slow it also ends if all of its slots are in use;
// nil: it does not.
func (s *stint) run(ctx, turn context.Context, want int, slow <-chan time.Time) {
	own := 0
	slots := s.room(&own, want)
	if slots <= 0 {
		select {
		case <-s.left:
		case <-turn.Done():
		case <-ctx.Done():
		}
		return
	}
	taking, stop := context.WithCancel(ctx)
	defer stop()
	defer s.gate.guard(s, turn, stop)()
	ended := make(chan struct{})
	s.takes.Go(func() {
		defer close(ended)
		s.end(s.take(taking, slots, func(d journal.Delivery) {
			s.begin(&own)
			defer s.leave(&own)
			s.handle(d)
		}))
	})
	for {
		select {
		case <-ended:
			return
		case <-turn.Done():
			return
		case <-ctx.Done():
			return
		case <-slow:
			if s.full(&own, slots) {
				return
			}
		case <-s.left:
			// Half of what is missing is worth it to begin again.
			if more := s.room(&own, want) - slots; more > (want-slots)/2 {
				return
			}
		}
	}
}

// room returns how many of the slots that a take wants are not in use by deliveries
// of earlier ones. If it is fewer, the end of each delivery's work is told from then
// on.
func (s *stint) room(own *int, want int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots := min(want, s.slots-(s.inWork-*own))
	s.short = slots < want
	return slots
}

// full reports whether a take asks for no delivery, since all its slots are used.
func (s *stint) full(own *int, slots int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *own >= slots
}

func (s *stint) begin(own *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*own++
	s.inWork++
}

func (s *stint) leave(own *int) {
	s.mu.Lock()
	*own--
	s.inWork--
	short := s.short
	s.mu.Unlock()
	if !short {
		return
	}
	select {
	case s.left <- struct{}{}:
	default:
	}
}

// end notes how a take ended.
func (s *stint) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.errs = append(s.errs, err)
	}
}

func (s *stint) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.errs) > 0
}
