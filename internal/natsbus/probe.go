package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// answerSoon is how long an answer may take from the connection to who waits.
	answerSoon = 250 * time.Millisecond

	headerExpectStream = "Nats-Expected-Stream"
	codeOtherStream    = 10060
)

// requestStored is request for a message that is to be stored, see exchangeStored.
func (b *Bus) requestStored(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	a, err := b.reply(msg.Subject, nil)
	if err != nil {
		return b.requestApart(ctx, limit, msg)
	}
	answer, err := b.exchangeStored(ctx, a, msg, limit)
	b.replies.give(a, err == nil)
	return answer, err
}

// exchangeStored is exchange for a message that is to be stored. One server that
// cannot write to its disk goes on answering everything but this, so after a while
// without an answer it is asked whether it is such a one.
func (b *Bus) exchangeStored(ctx context.Context, a *reply, msg *nats.Msg, limit time.Duration) (*nats.Msg, error) {
	if b.replicas > 1 || a.sub == nil {
		return b.exchange(ctx, a, msg, limit)
	}
	breaks, deadline := b.breaks.Load(), time.Now().Add(limit)
	wait := min(limit, unansweredAfter)
	answer, err := b.exchange(ctx, a, msg, wait)
	sent := time.Now().Add(-wait) // or earlier
	for errors.Is(err, nats.ErrTimeout) && ctx.Err() == nil {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, err
		}
		full := b.storesNothing(ctx, msg.Subject, sent, min(left, unansweredAfter))
		if full != nil && breaks == b.breaks.Load() {
			// An answer that came just before is not overtaken.
			if answer, err = a.await(ctx, answerSoon); !errors.Is(err, nats.ErrTimeout) {
				return answer, err
			}
			b.full.found(placeOf(msg.Subject), full, breaks)
			return nil, join(journal.ErrInDoubt, full)
		}
		answer, err = a.await(ctx, min(time.Until(deadline), unansweredAfter))
	}
	return answer, err
}

// probes are the probes under way: one for each place at most, however many messages
// wait for their answers there.
type probes struct {
	mu  sync.Mutex
	all map[string]*probe
}

// probe finds out whether the server stores nothing in a place.
type probe struct {
	// began is a time before the probe was sent.
	began time.Time
	// done is closed when err is known.
	done chan struct{}
	err  error
}

// storesNothing returns an error if the server answers but did not answer a message
// on the subject that it was to store, and that was on its way at the time of sent. It
// is nil if that is not known after the limit.
func (b *Bus) storesNothing(ctx context.Context, subject string, sent time.Time, limit time.Duration) error {
	p := b.probe(subject)
	if p.began.Before(sent) {
		return nil // it may have overtaken the message
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.err
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// probe returns the probe under way for the subject's place, else a new one.
func (b *Bus) probe(subject string) *probe {
	place := placeOf(subject)
	b.probes.mu.Lock()
	defer b.probes.mu.Unlock()
	if p := b.probes.all[place]; p != nil {
		return p
	}
	p := &probe{began: time.Now(), done: make(chan struct{})}
	if b.probes.all == nil {
		b.probes.all = make(map[string]*probe)
	}
	b.probes.all[place] = p
	go func() {
		p.err = b.tryStoring(subject)
		b.probes.mu.Lock()
		delete(b.probes.all, place)
		b.probes.mu.Unlock()
		close(p.done)
	}()
	return p
}

// tryStoring sends a message that is never stored, and returns an error if the answer
// shows that nothing sent before it is stored any more. A stream takes messages one
// after another: if it refuses this one, the earlier ones were tried, and storing them
// failed. Where nobody takes it, JetStream has ended, which may be for want of room.
func (b *Bus) tryStoring(subject string) error {
	msg := &nats.Msg{Subject: subject, Header: nats.Header{headerExpectStream: {"none"}}}
	answer, err := b.requestWithin(context.Background(), unansweredAfter, msg)
	if errors.Is(err, nats.ErrNoResponders) {
		return b.noRoom()
	}
	var ack pubAck
	if err != nil || json.Unmarshal(answer.Data, &ack) != nil || ack.Error == nil || ack.Error.ErrCode != codeOtherStream {
		return nil
	}
	return fmt.Errorf("%w, or it is broken: the server answers but stores nothing; see its log, make room, and start it again", journal.ErrDiskFull)
}
