package natsbus

import (
	"context"
	"encoding/json"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// pullsPerSource is how many pull requests of one process stand at one consumer
// at a time. With several, one that is used up is replaced while the others
// still bring deliveries; slots that become free meanwhile are asked for
// together.
const pullsPerSource = 4

// source is one consumer of one stream, as the puller sees it.
type source struct {
	stream, consumer string
	// prepare returns when the consumer is there; its error is final.
	prepare func(context.Context) error
	// endpoint is where its pull requests go.
	endpoint string
	release  func()

	pulls []*pull
	// credits is what its requests may still bring.
	credits int
	// want is how many credits it may hold: all slots if it is the only source,
	// else few while nothing comes and more as it proves busy.
	want int
	// grant is what it is about to be asked for.
	grant int
	// ready says that the consumer is there.
	ready bool
	// preparing says that somebody sees to it.
	preparing bool

	// pace, if not nil, is told how closely records were stored; lastSeq and
	// lastStored are the one that was delivered last.
	pace       *pace
	lastSeq    uint64
	lastStored time.Time
}

// note looks at when a delivered record was stored.
func (s *source) note(msg *nats.Msg, rec journal.Record) {
	if s.pace == nil {
		return
	}
	if rec.Seq == s.lastSeq+1 {
		// The records of a batch are flushed together.
		if batched := msg.Header[headerBatchSeq]; len(batched) == 0 || batched[0] == "1" {
			s.pace.stored(rec.Stored.Sub(s.lastStored))
		}
	}
	s.lastSeq, s.lastStored = rec.Seq, rec.Stored
}

func newSource(stream, consumer string, prepare func(context.Context) error) *source {
	return &source{
		stream: stream, consumer: consumer, prepare: prepare,
		endpoint: apiPrefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
	}
}

// pull is a pull request and the inbox that its deliveries come to: the inbox is
// used for one request at a time, since a delivery does not tell its request.
type pull struct {
	source *source
	sub    *nats.Subscription
	// left is what the request may still bring; 0: there is no request.
	left int
	// brought counts what it brought.
	brought int
	// seen is when something was heard on it, and patience for how long it may be
	// silent before it is given up.
	seen     time.Time
	patience time.Duration
	// stale says that the request was given up, but may still bring something.
	stale bool
}

// idlePull returns an inbox without a request, or nil.
func (s *source) idlePull() *pull {
	for _, p := range s.pulls {
		if p.left == 0 {
			return p
		}
	}
	return nil
}

// full reports whether every inbox has its request.
func (s *source) full() bool { return len(s.pulls) >= pullsPerSource && s.idlePull() == nil }

type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires,omitempty"`
	NoWait    bool          `json:"no_wait,omitempty"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

func (p *puller) newPull(s *source) (*pull, error) {
	sub, err := p.bus.conn.ChanSubscribe(p.bus.conn.NewInbox(), p.msgs)
	if err != nil {
		return nil, classify(err)
	}
	q := &pull{source: s, sub: sub}
	p.bySub[sub] = q
	s.pulls = append(s.pulls, q)
	return q, nil
}

// request asks the source for n deliveries.
func (p *puller) request(s *source, n int) error {
	q := s.idlePull()
	if q == nil {
		var err error
		if q, err = p.newPull(s); err != nil {
			return err
		}
	}
	expiry, heartbeat := p.terms(s, n)
	ask := pullRequest{Batch: n, Expires: expiry, Heartbeat: heartbeat, NoWait: expiry == 0}
	body, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	if err := p.bus.conn.PublishRequest(s.endpoint, q.sub.Subject, body); err != nil {
		return err
	}
	q.left, q.brought, q.seen = n, 0, time.Now()
	q.patience = expiry + p.bus.opts.RequestTimeout
	if heartbeat > 0 {
		q.patience = 2*heartbeat + pullCheck
	}
	s.credits += n
	p.credits += n
	return nil
}

// end takes back what the request may still have brought.
func (p *puller) end(q *pull) {
	q.source.credits -= q.left
	p.credits -= q.left
	q.left = 0
}

// abandon gives a request up whose fate is unknown. Its inbox stays open for a
// while: what still comes is handled if there is a slot, else given back.
func (p *puller) abandon(q *pull) {
	p.end(q)
	q.stale = true
	q.seen = time.Now()
	for i, other := range q.source.pulls {
		if other == q {
			q.source.pulls = append(q.source.pulls[:i], q.source.pulls[i+1:]...)
			break
		}
	}
}
