package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// fullFor is how long one refusal for want of storage counts. Roles repeat what was
	// refused within seconds, so a stream that stays full refuses again before that.
	fullFor = 30 * time.Second
	// recoveredAfter is how long a stream must have refused nothing before it counts as
	// recovered: a stream that is nearly full stores small messages and refuses others.
	recoveredAfter = 5 * time.Second
	// brokenRetry is how long nothing is sent to a server that stores nothing any
	// more, before one append shows whether that is still so.
	brokenRetry = 5 * time.Second
	// nearlyFull is how many bytes below its limit a stream counts as full.
	nearlyFull = 64 << 10
)

// storageSign keeps which streams refused something for want of storage. It sends no
// requests.
type storageSign struct {
	// any says that there is a refusal.
	any atomic.Bool
	log *slog.Logger

	mu sync.Mutex
	// refusals are the last ones of streams that have stored nothing since.
	refusals map[string]refusal
	// broken says that the server stores nothing until it is started again, nil if it
	// does. It was found at that time, when the connection had broken so many times.
	broken error
	breaks uint64
	at     time.Time
}

// refusal is what a stream answered.
type refusal struct {
	at  time.Time
	err error
}

// note takes what storing something in a stream came to, and returns it. It logs
// when the first stream begins to refuse, and when the last one ends.
func (s *storageSign) note(stream string, err error) error {
	full := errors.Is(err, journal.ErrFull)
	if err != nil && !full || err == nil && !s.any.Load() {
		return err // it says nothing of the storage
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if full {
		if s.refusals == nil {
			s.refusals = make(map[string]refusal)
		}
		s.refusals[stream] = refusal{time.Now(), err}
	} else if r := s.refusals[stream]; time.Since(r.at) > recoveredAfter {
		delete(s.refusals, stream)
	}
	// Nothing may ever be stored again in a stream that refused something.
	maps.DeleteFunc(s.refusals, func(_ string, r refusal) bool { return time.Since(r.at) > fullFor })
	s.tell(err)
	return err
}

// tell logs a change. The lock is held.
func (s *storageSign) tell(reason error) {
	was, now := s.any.Load(), len(s.refusals) > 0
	s.any.Store(now)
	if !now {
		s.broken = nil
	}
	switch {
	case s.log == nil || was == now:
	case now:
		s.log.Error("nothing can be stored", "reason", reason)
	default:
		s.log.Info("what is sent is stored again")
	}
}

// last returns a refusal, nil if something was stored since or if it is of long ago.
// breaks is how often the connection has broken.
func (s *storageSign) last(breaks uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restarted(breaks)
	for _, r := range s.refusals {
		if time.Since(r.at) <= fullFor {
			return r.err
		}
	}
	return nil
}

// found notes that the server stores nothing any more, as a stream showed when the
// connection had broken so often.
func (s *storageSign) found(stream string, err error, breaks uint64) {
	_ = s.note(stream, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken, s.breaks, s.at = err, breaks, time.Now()
}

// brokenSince returns why the server stores nothing, if that was found after the time.
func (s *storageSign) brokenSince(sent time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.Before(sent) {
		return nil
	}
	return s.broken
}

// refuses returns why nothing is sent to a server that stores nothing any more, nil
// if there is none, or it is time to see whether that is still so.
func (s *storageSign) refuses(breaks uint64) error {
	if !s.any.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restarted(breaks)
	switch {
	case s.broken == nil:
	case time.Since(s.at) > brokenRetry:
		s.at = time.Now()
	default:
		return s.broken
	}
	return nil
}

// restarted forgets what a server refused if the connection broke since: it is another
// server, or was started again. The lock is held.
func (s *storageSign) restarted(breaks uint64) {
	if s.broken != nil && s.breaks != breaks {
		clear(s.refusals)
		s.tell(nil)
	}
}

// diskFull returns an error if nothing should be sent to be stored. It may let one
// message pass to a server that stored nothing, so call it for each message alone.
func (b *Bus) diskFull() error {
	if err := b.noRoom(); err != nil {
		return err
	}
	return b.full.refuses(b.Breaks())
}

// noRoom returns an error while the disk of a server in this process is full.
func (b *Bus) noRoom() error {
	if b.opts.Full == nil {
		return nil
	}
	if err := b.opts.Full(); err != nil {
		return api.Join(journal.ErrDiskFull, err)
	}
	return nil
}

// streamFull reports whether the stream is at its limit.
func streamFull(i *jetstream.StreamInfo) error {
	most := i.Config.MaxBytes
	if most <= 0 || i.State.Bytes+nearlyFull < uint64(most) {
		return nil
	}
	return fmt.Errorf("%w: stream %s has %d of %d bytes: `moorebus purge` frees space, `moorebus init --max-bytes` raises the limit",
		journal.ErrFull, i.Config.Name, i.State.Bytes, most)
}

// placeOf names what a subject is stored in, as far as signs need it: a stream of the
// log, a bucket, or the timers.
func placeOf(subject string) string {
	first, rest, _ := strings.Cut(subject, ".")
	second, _, _ := strings.Cut(rest, ".")
	if first == "timers" {
		return timerStream
	}
	return first + "." + second
}

const (
	headerExpectStream = "Nats-Expected-Stream"

	// answerSoon is how long an answer may take from the connection to who waits.
	answerSoon = 250 * time.Millisecond
)

// requestStored sends a message that is to be stored, see exchangeStored.
func (b *Bus) requestStored(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	in, err := b.Take(api.OneAnswer, msg.Subject)
	if err != nil {
		return nil, err
	}
	answer, err := b.exchangeStored(ctx, in, msg, limit)
	b.Give(in, err == nil)
	return answer, err
}

// exchangeStored sends a message that is to be stored and waits for its answer. A single
// server that cannot write to its disk answers everything else (measured on nats-server
// 2.15). So if no answer comes for a while, a probe asks whether the disk is the reason.
func (b *Bus) exchangeStored(ctx context.Context, in *api.Inbox, msg *nats.Msg, limit time.Duration) (*nats.Msg, error) {
	if b.Replicas > 1 {
		return b.Exchange(ctx, in, msg, limit)
	}
	breaks, sent := b.Breaks(), time.Now()
	answer, err := b.ExchangeOnce(ctx, in, msg, min(limit, unansweredAfter))
	for errors.Is(err, nats.ErrTimeout) && ctx.Err() == nil && time.Since(sent) < limit {
		full := b.full.brokenSince(sent)
		if full == nil && b.probing.TryLock() {
			full = b.probe(msg.Subject)
			b.probing.Unlock()
		}
		if full != nil && breaks == b.Breaks() {
			// An answer that came just before is not overtaken.
			if answer, err = in.Next(ctx, answerSoon); !errors.Is(err, nats.ErrTimeout) {
				return answer, err
			}
			b.full.found(placeOf(msg.Subject), full, breaks)
			return nil, api.Join(journal.ErrUnknownOutcome, full)
		}
		answer, err = in.Next(ctx, min(limit-time.Since(sent), unansweredAfter))
	}
	return answer, err
}

// probe sends a message that is never stored, and returns an error if the answer shows
// that nothing sent before it is stored any more. A stream takes messages one after
// another: if it refuses this one, the earlier ones were tried, and storing them failed.
// If nobody takes it, JetStream has ended, perhaps because the disk is full.
func (b *Bus) probe(subject string) error {
	msg := &nats.Msg{Subject: subject, Header: nats.Header{headerExpectStream: {"none"}}}
	answer, err := b.Request(context.Background(), unansweredAfter, msg)
	if errors.Is(err, nats.ErrNoResponders) {
		return b.noRoom()
	}
	var ack pubAck
	if err != nil || json.Unmarshal(answer.Data, &ack) != nil || ack.Error == nil || ack.Error.ErrCode != api.CodeOtherStream {
		return nil
	}
	return fmt.Errorf("%w, or it is broken: the server answers but stores nothing; see its log, free some space, and restart it", journal.ErrDiskFull)
}
