package natsbus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// pullCheck is how often requests are looked over for silent ones.
	pullCheck = time.Second
	// pullBackoff is the pause after a consumer refused a request.
	pullBackoff = 250 * time.Millisecond
	// shareExpiry is how long a request stands for slots that other sources may
	// need as well.
	shareExpiry = 200 * time.Millisecond
	// drainTimeout bounds the wait for deliveries that are on their way when
	// consuming ends.
	drainTimeout = 2 * time.Second
)

// puller is one call of Consume. All of it but the handlers' goroutines belongs
// to the goroutine of run: deliveries, free slots and timers come to it over
// channels, and it alone decides what is asked for. It keeps
// credits + running <= slots.
type puller struct {
	bus     *Bus
	slots   int
	sources []*source
	next    int

	// reserve is what a source may hold for long while nothing comes. With
	// several sources the other slots are free to go where there is something.
	reserve int
	// turns says that the slots are so few that even small reserves would bind
	// most of them. Then the sources take turns: each is asked for what it has
	// now, and only after a whole round of misses are they waited for.
	turns  bool
	misses int

	msgs    chan *nats.Msg
	bySub   map[*nats.Subscription]*pull
	ready   chan prepared
	refused chan error
	status  chan nats.Status

	credits int
	running int
	// finished counts handlers that ended since run last looked; freed wakes it.
	finished atomic.Int64
	freed    chan struct{}
	handlers handlers
	helpers  sync.WaitGroup
}

type prepared struct {
	source *source
	err    error
}

func newPuller(b *Bus, sources []*source, slots int, handle func(journal.Delivery)) *puller {
	p := &puller{
		bus: b, slots: slots, sources: sources,
		bySub: make(map[*nats.Subscription]*pull), freed: make(chan struct{}, 1),
		refused: make(chan error, 1), status: b.conn.StatusChanged(nats.CONNECTED),
	}
	p.handlers = newHandlers(handle, p.finish)
	for _, s := range sources {
		s.release = b.denied.watch(s.endpoint, p.refuse)
	}
	n := len(p.sources)
	p.ready = make(chan prepared, n)
	p.msgs = make(chan *nats.Msg, slots+16*pullsPerSource*n+64)
	p.reserve = slots
	if n > 1 {
		p.reserve = slots / (4 * n)
		p.turns = p.reserve == 0
	}
	for _, s := range p.sources {
		s.want = max(1, p.reserve)
	}
	return p
}

func (p *puller) refuse(err error) {
	select {
	case p.refused <- err:
	default:
	}
}

func (p *puller) close() {
	p.bus.conn.RemoveStatusListener(p.status)
	for _, s := range p.sources {
		s.release()
	}
}

// run pulls until the context ends, then drains and waits for the handlers.
func (p *puller) run(ctx context.Context) error {
	helping, cancel := context.WithCancel(ctx)
	defer p.helpers.Wait()
	defer cancel()
	for _, s := range p.sources {
		p.prepare(helping, s)
	}
	err := p.loop(helping)
	p.drain()
	p.handlers.wait()
	return err
}

// loop returns nil when the context ended, or a final error.
func (p *puller) loop(ctx context.Context) error {
	ticker := time.NewTicker(pullCheck)
	defer ticker.Stop()
	for {
		p.fill()
		select {
		case <-ctx.Done():
			return nil
		case err := <-p.refused:
			return fmt.Errorf("consume: %w", err)
		case made := <-p.ready:
			if err := p.prepared(ctx, made); err != nil {
				return err
			}
		case <-p.status:
			p.reconnected()
		case <-ticker.C:
			p.check()
		case <-p.freed:
		case msg := <-p.msgs:
			p.receive(ctx, msg)
			p.receiveWaiting(ctx)
		}
		p.running -= int(p.finished.Swap(0))
	}
}

// receiveWaiting takes what has come already, so that the slots it frees are
// asked for together.
func (p *puller) receiveWaiting(ctx context.Context) {
	for range 64 {
		select {
		case msg := <-p.msgs:
			p.receive(ctx, msg)
		default:
			return
		}
	}
}

// fill asks for as many deliveries as there are free slots.
func (p *puller) fill() {
	free := p.slots - p.running - p.credits
	if free <= 0 {
		return
	}
	if p.polling() {
		if s := p.neediest(); s != nil {
			s.grant = free
		}
	} else {
		p.share(free)
	}
	for _, s := range p.sources {
		if s.grant == 0 {
			continue
		}
		if err := p.request(s, s.grant); err != nil {
			// The connection is closed, or its buffer full while it is away: the
			// next tick tries again.
			p.bus.log.Debug("pull request", "error", err)
		}
		s.grant = 0
	}
}

// polling reports whether sources are asked for what they have at this moment.
func (p *puller) polling() bool { return p.turns && p.misses < len(p.sources) }

// share divides the free slots so that the sources hold equally many credits, as
// far as they want them. No source gets a second one while another has none,
// else one that goes quiet could hold what another waits for.
func (p *puller) share(free int) {
	if len(p.sources) == 1 {
		if s := p.neediest(); s != nil {
			s.grant = free
		}
		return
	}
	for ; free > 0; free-- {
		s := p.neediest()
		if s == nil {
			return
		}
		s.grant++
	}
}

// neediest returns the source with the fewest credits of those that may ask, in
// turn where they have equally few.
func (p *puller) neediest() *source {
	var found *source
	n := len(p.sources)
	for i := range n {
		s := p.sources[(p.next+i)%n]
		if !s.ready || s.credits+s.grant >= p.limit(s) || s.full() {
			continue
		}
		if found == nil || s.credits+s.grant < found.credits+found.grant {
			found = s
		}
	}
	p.next = (p.next + 1) % n
	return found
}

// limit is how many credits a source may hold.
func (p *puller) limit(s *source) int {
	if p.turns {
		return p.slots
	}
	return s.want
}

// terms says for how long a request for n stands and how often the server shows
// that it does; zero: it does not wait at all.
func (p *puller) terms(s *source, n int) (expiry, heartbeat time.Duration) {
	switch {
	case p.polling():
		return 0, 0
	case p.turns || s.credits+n > p.reserve:
		return shareExpiry, 0
	}
	long := p.bus.opts.PullExpiry
	return long, min(p.bus.opts.Heartbeat, long/2)
}

func (p *puller) receive(ctx context.Context, msg *nats.Msg) {
	q := p.bySub[msg.Sub]
	if q == nil {
		return
	}
	q.seen = time.Now()
	if msg.Subject == q.sub.Subject {
		p.statusMessage(ctx, q, msg)
		return
	}
	p.misses = 0
	if q.left > 0 {
		q.left--
		q.brought++
		q.source.credits--
		p.credits--
		if q.left == 0 {
			q.source.want = min(p.slots, 2*q.source.want)
		}
	}
	p.start(q.source, msg)
}

// start runs the handler in a free slot. Without one, which only a request that
// was given up can bring about, the delivery goes back at once.
func (p *puller) start(s *source, msg *nats.Msg) {
	d, err := newDelivery(p.bus.conn, msg)
	if err != nil {
		p.bus.log.Warn("a delivery cannot be read", "error", err)
		return
	}
	s.note(msg, d.rec)
	p.running -= int(p.finished.Swap(0))
	if p.running >= p.slots {
		if err := d.Retry(0); err != nil {
			p.bus.log.Warn("a delivery cannot be given back", "error", err)
		}
		return
	}
	p.running++
	p.handlers.start(d)
}

func (p *puller) finish() {
	p.finished.Add(1)
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// statusMessage takes what the server says about a request.
func (p *puller) statusMessage(ctx context.Context, q *pull, msg *nats.Msg) {
	status := msg.Header.Get("Status")
	if status == "100" {
		return
	}
	if q.stale {
		return
	}
	idle := q.brought == 0
	p.end(q)
	s := q.source
	switch status {
	case "404", "408":
		if idle {
			s.want = max(1, p.reserve)
			p.misses++
		}
	case "503":
		// The consumer is gone, or the server is just starting.
		p.prepare(ctx, s)
	default:
		p.bus.log.Debug("a pull request was ended", "stream", s.stream, "consumer", s.consumer,
			"status", status, "description", msg.Header.Get("Description"))
		p.prepare(ctx, s)
	}
}

// prepare makes sure in the background that the source's consumer is there.
func (p *puller) prepare(ctx context.Context, s *source) {
	again := s.ready
	s.ready = false
	if s.preparing {
		return
	}
	s.preparing = true
	p.helpers.Add(1)
	go func() {
		defer p.helpers.Done()
		if again && !pauseFor(ctx, pullBackoff) {
			return
		}
		err := s.prepare(ctx)
		select {
		case p.ready <- prepared{s, err}:
		case <-ctx.Done():
		}
	}()
}

func (p *puller) prepared(ctx context.Context, made prepared) error {
	made.source.preparing = false
	if made.err == nil {
		made.source.ready = true
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("consume: %w", made.err)
}

// reconnected gives all requests up: a server that started again knows nothing
// of them.
func (p *puller) reconnected() {
	for _, s := range p.sources {
		for len(s.pulls) > 0 {
			p.abandon(s.pulls[0])
		}
	}
}

// check gives up requests that are silent for too long and forgets inboxes of
// those that were given up long ago.
func (p *puller) check() {
	now := time.Now()
	for sub, q := range p.bySub {
		silent := now.Sub(q.seen)
		switch {
		case q.stale && silent > p.bus.opts.PullExpiry+p.bus.opts.RequestTimeout:
			delete(p.bySub, sub)
			p.forget(sub)
		case !q.stale && q.left > 0 && silent > q.patience:
			p.abandon(q)
		}
	}
}

func (p *puller) forget(sub *nats.Subscription) {
	if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		p.bus.log.Debug("unsubscribe", "error", err)
	}
}

// drain ends all requests and starts the handlers of what was on its way: every
// one of those has its slot.
func (p *puller) drain() {
	for sub := range p.bySub {
		if sub.Drain() != nil {
			p.forget(sub)
		}
	}
	if p.bus.conn.IsConnected() {
		if err := p.bus.conn.FlushTimeout(drainTimeout); err != nil {
			p.bus.log.Debug("deliveries on their way come again later", "error", err)
		}
	}
	for {
		select {
		case msg := <-p.msgs:
			if q := p.bySub[msg.Sub]; q != nil && msg.Subject != q.sub.Subject {
				p.start(q.source, msg)
			}
		default:
			return
		}
	}
}
