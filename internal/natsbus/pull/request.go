package pull

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/nats-io/nats.go"
)

// Source is a consumer to pull from.
type Source struct {
	Stream, Consumer string
	// Prepare returns when the consumer is there. It is called before the first request and
	// after each that the server refused. Its error ends the pulling, unless the source was
	// ready before: then Prepare is called again.
	Prepare func(context.Context) error
}

type source struct {
	Source
	// endpoint is where its requests go.
	endpoint string
	requests []*request
	// credits is how many deliveries its requests may still bring.
	credits int
	// want is how many credits it may hold. It doubles with each request that is used up
	// and falls to the reserve with one that brings nothing.
	want int
	// grant is how many it is about to be asked for.
	grant int
	// ready says that the consumer is there, preparing that Prepare is running.
	ready, preparing bool
	// answered says that the server has answered a request: whatever it refuses after that may
	// be permitted again, and ends nothing. known says that the consumer was there once.
	answered, known bool
	// warned says that the log has the reason why nothing comes.
	warned bool
}

// request is a pull request and its inbox. The inbox is used for one request at a time,
// since a delivery does not name its request.
type request struct {
	source *source
	sub    *nats.Subscription
	// left is how many deliveries it may still bring; 0: no request stands.
	left    int
	brought int
	// heard is when something last came, and silence how long nothing may come before
	// the request is abandoned.
	heard   time.Time
	silence time.Duration
	// abandoned says that it counts no more, but may still bring something.
	abandoned bool
}

func (s *source) idle() *request {
	for _, r := range s.requests {
		if r.left == 0 {
			return r
		}
	}
	return nil
}

// full reports whether no further request may be sent.
func (s *source) full() bool { return len(s.requests) >= requestsPerSource && s.idle() == nil }

// fill asks for as many deliveries as there are free slots.
func (p *puller) fill() {
	free := p.slots - p.running - p.credits
	if free <= 0 {
		return
	}
	p.share(free)
	for _, s := range p.sources {
		if s.grant == 0 {
			continue
		}
		if err := p.request(s, s.grant); err != nil {
			// The connection is closed, or it is away and its buffer is full. The next
			// tick tries again.
			p.client.Log.Debug("pull request", "reason", err)
		}
		s.grant = 0
	}
}

// polling reports whether sources are asked for what they have at this moment.
func (p *puller) polling() bool { return p.turns && p.misses < len(p.sources) }

// share grants the free slots to the sources so that they hold equally many credits, as
// far as they want them. A source alone, or one that has the turn, gets all.
func (p *puller) share(free int) {
	if len(p.sources) == 1 || p.polling() {
		if s := p.fewestCredits(); s != nil {
			s.grant = free
		}
		return
	}
	for ; free > 0; free-- {
		s := p.fewestCredits()
		if s == nil {
			return
		}
		s.grant++
	}
}

// fewestCredits returns the source with the fewest credits of those that may ask for more,
// in turn where they have equally many, or nil.
func (p *puller) fewestCredits() *source {
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

// terms says how long a request for n stands and how often the server shows that it does.
// Without an expiry it brings only what is there.
func (p *puller) terms(s *source, n int) (expiry, beat time.Duration) {
	switch {
	case p.polling():
		return 0, 0
	case p.turns || s.credits+n > p.reserve:
		return sharedExpiry, 0
	}
	return longExpiry, heartbeat
}

func (p *puller) request(s *source, n int) error {
	r := s.idle()
	if r == nil {
		sub, err := p.client.NC.ChanSubscribe(p.client.NC.NewInbox(), p.msgs)
		if err != nil {
			return api.Classify(err)
		}
		r = &request{source: s, sub: sub}
		p.bySub[sub] = r
		s.requests = append(s.requests, r)
	}
	expiry, beat := p.terms(s, n)
	body, err := json.Marshal(struct {
		Batch     int           `json:"batch"`
		Expires   time.Duration `json:"expires,omitempty"`
		NoWait    bool          `json:"no_wait,omitempty"`
		Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
	}{n, expiry, expiry == 0, beat})
	if err != nil {
		return err
	}
	if err := p.client.NC.PublishRequest(s.endpoint, r.sub.Subject, body); err != nil {
		return err
	}
	r.left, r.brought, r.heard = n, 0, time.Now()
	r.silence = expiry + p.client.Timeout
	if beat > 0 {
		r.silence = 2*beat + checkInterval
	}
	s.credits += n
	p.credits += n
	return nil
}

// release takes back what the request may still have brought.
func (p *puller) release(r *request) {
	r.source.credits -= r.left
	p.credits -= r.left
	r.left = 0
}

// abandon takes a request, whose fate is unknown, out of the count. Its inbox stays open
// for a while: what still comes is handled if there is a slot, else given back.
func (p *puller) abandon(r *request) {
	p.release(r)
	r.abandoned = true
	r.heard = time.Now()
	r.source.requests = slices.DeleteFunc(r.source.requests, func(other *request) bool { return other == r })
}

// reconnected abandons all requests: a server that was restarted knows nothing of them.
func (p *puller) reconnected() {
	for _, r := range p.bySub {
		if !r.abandoned {
			p.abandon(r)
		}
	}
}

// check abandons requests that are silent for too long and closes the inboxes of those
// that were abandoned long ago.
func (p *puller) check() {
	now := time.Now()
	for sub, r := range p.bySub {
		silent := now.Sub(r.heard)
		switch {
		case r.abandoned && silent > longExpiry+p.client.Timeout:
			delete(p.bySub, sub)
			p.unsubscribe(sub)
		case !r.abandoned && r.left > 0 && silent > r.silence:
			p.abandon(r)
		}
	}
}

func (p *puller) unsubscribe(sub *nats.Subscription) {
	if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		p.client.Log.Debug("unsubscribe", "reason", err)
	}
}
