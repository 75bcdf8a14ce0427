// Package pull takes deliveries from JetStream's consumers, never more than it has free
// slots for.
//
// It sends its own pull requests. The client library's Consume, Messages and Fetch were
// tried, and lose four guarantees:
//   - The library takes every message without a body and with a header Status for a
//     control message. A publisher can store such a message. The library drops it, so it
//     is never acknowledged, and some of these statuses end the library's session. Here a
//     control message is one whose subject is the inbox (TestForgedStatus).
//   - A consumer that is missing after the server restarts is answered with 503 (no
//     responders), after which the library retries forever without an error. Here the
//     consumer is created again (TestConsumerLostInARestart).
//   - After a reconnect or missed heartbeats the library pulls again on the same inbox
//     while its old request may still stand. It drops the deliveries that exceed the
//     session, which come again only when the ack wait ends. Here they are handled in a
//     free slot or given back at once (TestDeliveriesWithoutASlot).
//   - A session of the library belongs to one consumer and holds its slots until it ends.
//     Each one subscribes anew. Here one loop divides the free slots among all consumers
//     and keeps their inboxes (BenchmarkConsume).
package pull

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/nats-io/nats.go"
)

const (
	// longExpiry is how long a request stands that takes no slot from another source, and
	// heartbeat how often the server shows that it still does.
	longExpiry, heartbeat = 30 * time.Second, 5 * time.Second
	// sharedExpiry is how long a request stands for slots that other sources may need.
	sharedExpiry = 200 * time.Millisecond
	// checkInterval is how often requests are checked for silent ones.
	checkInterval = time.Second
	// prepareBackoff is the pause after a consumer refused a request.
	prepareBackoff = 250 * time.Millisecond
	// drainTimeout bounds the wait for deliveries on their way when pulling ends.
	drainTimeout = 2 * time.Second
	// requestsPerSource is how many requests of one call of Run stand at one consumer at
	// a time. With several, one that is used up is replaced while the others still bring
	// deliveries, and slots that become free meanwhile are asked for together.
	requestsPerSource = 4
)

// puller is one call of Run. All of it but the handlers' goroutines belongs to the
// goroutine of loop, to which deliveries, free slots and timers come over channels. It
// keeps credits + running <= slots.
type puller struct {
	client  *api.Client
	slots   int
	sources []*source
	next    int
	handle  func(*nats.Msg)
	// work hands a delivery to a handler's goroutine that is idle. Its stack has grown
	// already, which would otherwise be copied anew for every delivery.
	work chan *nats.Msg

	// reserve is how many credits a source may hold for long while nothing comes. With
	// several sources the other slots are free to go where the work is.
	reserve int
	// turns says that there are so few slots that even small reserves would hold most of
	// them. Then the sources take turns: each is asked for what it has now. Only after an
	// entire round without deliveries does a request wait.
	turns bool
	// misses counts the requests in a row that brought nothing.
	misses int

	msgs    chan *nats.Msg
	bySub   map[*nats.Subscription]*request
	ready   chan prepared
	refused chan prepared
	status  chan nats.Status

	// credits is how many deliveries the requests may still bring, running how many are
	// being handled.
	credits, running int
	// finished counts handlers that ended since loop last looked; freed wakes it.
	finished atomic.Int64
	freed    chan struct{}
	handlers sync.WaitGroup
	helpers  sync.WaitGroup
}

type prepared struct {
	source *source
	err    error
}

// Run hands what the sources deliver to handle, on at most so many slots at once, until
// ctx ends. handle runs in a goroutine that handles nothing else meanwhile. Run returns when every handler has. The
// error is that of a source's first Prepare, or says that the server refuses the requests of a
// source and has never answered one. Later refusals are logged, and the source is tried again.
func Run(ctx context.Context, client *api.Client, sources []Source, slots int, handle func(*nats.Msg)) error {
	p := newPuller(client, sources, slots, handle)
	p.status = client.NC.StatusChanged(nats.CONNECTED)
	defer client.NC.RemoveStatusListener(p.status)
	for _, s := range p.sources {
		defer client.OnRefused(s.endpoint, func(err error) { p.refuse(s, err) })()
	}
	preparing, cancel := context.WithCancel(ctx)
	defer p.helpers.Wait()
	defer cancel()
	for _, s := range p.sources {
		p.prepare(preparing, s)
	}
	err := p.loop(preparing)
	p.drain()
	close(p.work)
	p.handlers.Wait()
	return err
}

func newPuller(client *api.Client, sources []Source, slots int, handle func(*nats.Msg)) *puller {
	n := len(sources)
	p := &puller{
		client: client, slots: slots, handle: handle, work: make(chan *nats.Msg), reserve: slots,
		msgs: make(chan *nats.Msg, slots+16*requestsPerSource*n+64), bySub: map[*nats.Subscription]*request{},
		ready: make(chan prepared, n), refused: make(chan prepared, n), freed: make(chan struct{}, 1),
	}
	if n > 1 {
		p.reserve = slots / (4 * n)
		p.turns = p.reserve == 0
	}
	for _, s := range sources {
		p.sources = append(p.sources, &source{
			Source: s, endpoint: api.Prefix + "CONSUMER.MSG.NEXT." + s.Stream + "." + s.Consumer, want: max(1, p.reserve),
		})
	}
	return p
}

func (p *puller) refuse(s *source, err error) {
	select {
	case p.refused <- prepared{s, err}:
	default: // there are reasons already
	}
}

// failed returns the error if it ends the pulling. Otherwise the log has it, once.
func (p *puller) failed(s *source, known bool, err error) error {
	if !known {
		return err
	}
	if !s.warned {
		s.warned = true
		p.client.Log.Warn("deliveries of a consumer stay away; it will be tried again", "stream", s.Stream, "consumer", s.Consumer, "reason", err)
	}
	return nil
}

func (p *puller) loop(ctx context.Context) error {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		p.fill()
		select {
		case <-ctx.Done():
			return nil
		case not := <-p.refused:
			if err := p.failed(not.source, not.source.answered, not.err); err != nil {
				return err
			}
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

// prepared notes that a source is ready, or prepares it once more.
func (p *puller) prepared(ctx context.Context, made prepared) error {
	s := made.source
	s.preparing = false
	if s.ready = made.err == nil; s.ready {
		s.known = true
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := p.failed(s, s.known, made.err); err != nil {
		return err
	}
	p.prepare(ctx, s)
	return nil
}

// receiveWaiting takes what has come already, so that the slots it frees are asked for
// together.
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

// receive takes a delivery or a control message. A stored message keeps its own subject,
// whatever headers its publisher gave it; only the server publishes on the inbox.
func (p *puller) receive(ctx context.Context, msg *nats.Msg) {
	r := p.bySub[msg.Sub]
	if r == nil {
		return
	}
	r.heard = time.Now()
	r.source.answered, r.source.warned = true, false
	if msg.Subject == r.sub.Subject {
		p.control(ctx, r, msg)
		return
	}
	p.misses = 0
	if r.left > 0 {
		r.left--
		r.brought++
		r.source.credits--
		p.credits--
		if r.left == 0 {
			r.source.want = min(p.slots, 2*r.source.want)
		}
	}
	p.start(msg)
}

// start runs the handler in a free slot. Without one, which only an abandoned request can
// bring about, the delivery goes back at once.
func (p *puller) start(msg *nats.Msg) {
	p.running -= int(p.finished.Swap(0))
	if p.running >= p.slots {
		if err := p.client.NC.Publish(msg.Reply, []byte("-NAK")); err != nil {
			p.client.Log.Warn("a delivery cannot be given back", "reason", err)
		}
		return
	}
	p.running++
	select {
	case p.work <- msg:
	default:
		p.handlers.Go(func() { p.handleAll(msg) })
	}
}

// handleAll handles a delivery, then those that come over work.
func (p *puller) handleAll(msg *nats.Msg) {
	for more := true; more; msg, more = <-p.work {
		p.handleOne(msg)
	}
}

// handleOne gives its slot back even if handle ends the goroutine (runtime.Goexit).
func (p *puller) handleOne(msg *nats.Msg) {
	defer p.finish()
	p.handle(msg)
}

func (p *puller) finish() {
	p.finished.Add(1)
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// control takes what the server says about a request.
func (p *puller) control(ctx context.Context, r *request, msg *nats.Msg) {
	status := msg.Header.Get("Status")
	if status == "100" || r.abandoned {
		return
	}
	idle := r.brought == 0
	p.release(r)
	s := r.source
	switch status {
	case "404", "408": // it brought all that there was
		if idle {
			s.want = max(1, p.reserve)
			p.misses++
		}
	default: // for example 503: the consumer is missing, or the server is just starting
		p.client.Log.Debug("a pull request was ended", "stream", s.Stream, "consumer", s.Consumer,
			"status", status, "description", msg.Header.Get("Description"))
		p.prepare(ctx, s)
	}
}

// prepare makes sure in the background that the source's consumer is there.
func (p *puller) prepare(ctx context.Context, s *source) {
	again := s.known
	s.ready = false
	if s.preparing {
		return
	}
	s.preparing = true
	p.helpers.Go(func() {
		if again && !retry.Wait(ctx, prepareBackoff) {
			return
		}
		err := s.Prepare(ctx)
		select {
		case p.ready <- prepared{s, err}:
		case <-ctx.Done():
		}
	})
}

// drain ends all requests and starts the handlers of what was on its way, for which there
// are slots.
func (p *puller) drain() {
	for sub := range p.bySub {
		if sub.Drain() != nil {
			p.unsubscribe(sub)
		}
	}
	if p.client.NC.IsConnected() {
		if err := p.client.NC.FlushTimeout(drainTimeout); err != nil {
			p.client.Log.Debug("deliveries on their way come again later", "reason", err)
		}
	}
	for {
		select {
		case msg := <-p.msgs:
			if r := p.bySub[msg.Sub]; r != nil && msg.Subject != r.sub.Subject {
				p.start(msg)
			}
		default:
			return
		}
	}
}
