package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// fullFor is how long a refusal for want of storage is taken for true without
	// another one: a role announces itself again each second while that fails, and
	// what it cannot append it tries again as well.
	fullFor = 30 * time.Second
	// brokenRetry is how long nothing is sent to a server that stores nothing any
	// more, before one append shows whether that is still so.
	brokenRetry = 5 * time.Second
	// nearlyFull is how many bytes below its limit a stream counts as full.
	nearlyFull = 64 << 10

	headerExpectStream = "Nats-Expected-Stream"
	codeOtherStream    = 10060
)

// storageSign is the last refusal for want of storage. It costs nothing: no
// request is made for its sake.
type storageSign struct {
	// refused says that err is set.
	refused atomic.Bool

	mu  sync.Mutex
	at  time.Time
	err error
	// broken says that the server stores nothing until it is started again, as far as
	// was seen while the connection had broken so often.
	broken bool
	breaks uint64
	log    *slog.Logger
}

// note takes what storing something came to, and returns it. A change is logged.
func (s *storageSign) note(err error) error {
	full := errors.Is(err, journal.ErrFull)
	if err != nil && !full {
		return err // it says nothing of the storage
	}
	if !full && !s.refused.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.refused.Swap(full)
	s.at, s.broken = time.Now(), s.broken && full
	if !s.broken {
		s.err = err // else what was found out says more
	}
	switch {
	case s.log == nil || was == full:
	case full:
		s.log.Error("nothing can be stored", "reason", err)
	default:
		s.log.Info("what is sent is stored again")
	}
	return err
}

// last returns the refusal, nil if something was stored since or if it is of long
// ago.
func (s *storageSign) last() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) > fullFor && !s.broken {
		return nil
	}
	return s.err
}

// found notes that the server stores nothing any more, given how often the
// connection had broken then.
func (s *storageSign) found(err error, breaks uint64) {
	_ = s.note(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken, s.breaks = true, breaks
}

// refuses returns why nothing is sent to a server that stores nothing any more, nil
// if there is none, or it is time to see whether that is still so.
func (s *storageSign) refuses(breaks uint64) error {
	if !s.refused.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.broken:
		return nil
	case s.breaks != breaks:
		s.broken, s.at = false, time.Time{} // it is another server, or was started again
		return nil
	case time.Since(s.at) > brokenRetry:
		s.at = time.Now()
		return nil
	}
	return s.err
}

// diskFull returns an error if nothing should be sent to be stored.
func (b *Bus) diskFull() error {
	if b.opts.Full != nil {
		if err := b.opts.Full(); err != nil {
			return join(journal.ErrDiskFull, err)
		}
	}
	return b.full.refuses(b.breaks.Load())
}

// full reports whether the stream is at its limit.
func (i *streamInfo) full() error {
	most := i.Config.MaxBytes
	if most <= 0 || i.State.Bytes+nearlyFull < uint64(most) {
		return nil
	}
	return fmt.Errorf("%w: stream %s has %d of %d bytes: `moorebus purge` makes room, `moorebus init --max-bytes` raises the limit",
		journal.ErrFull, i.Config.Name, i.State.Bytes, most)
}

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
	answer, err := b.exchange(ctx, a, msg, min(limit, unansweredAfter))
	for errors.Is(err, nats.ErrTimeout) {
		if full := b.storesNothing(ctx, msg.Subject, breaks); full != nil {
			return nil, join(journal.ErrInDoubt, full)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil, err
		}
		answer, err = a.await(ctx, min(left, unansweredAfter))
	}
	return answer, err
}

// storesNothing returns an error if the server answers but did not answer a message
// that it was to store on the subject, sent when the connection had broken so often.
// A stream takes messages one after another: if it refuses one that was sent later,
// the earlier one was tried, and storing it failed.
func (b *Bus) storesNothing(ctx context.Context, subject string, breaks uint64) error {
	if err := b.diskFull(); err != nil {
		return err
	}
	probe := &nats.Msg{Subject: subject, Header: nats.Header{headerExpectStream: {"none"}}}
	answer, err := b.requestWithin(ctx, unansweredAfter, probe)
	if err != nil || breaks != b.breaks.Load() {
		return nil
	}
	var ack pubAck
	if json.Unmarshal(answer.Data, &ack) != nil || ack.Error == nil || ack.Error.ErrCode != codeOtherStream {
		return nil
	}
	err = fmt.Errorf("%w, or it is broken: the server answers but stores nothing; see its log, make room, and start it again", journal.ErrDiskFull)
	b.full.found(err, breaks)
	return err
}
