package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	headerExpectStream = "Nats-Expected-Stream"

	// answerSoon is how long an answer may take from the connection to who waits.
	answerSoon = 250 * time.Millisecond
)

// requestStored is request for a message that is to be stored, see exchangeStored.
func (b *Bus) requestStored(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	in, err := b.Take(api.OneAnswer, msg.Subject, nil)
	if err != nil {
		return nil, err
	}
	answer, err := b.exchangeStored(ctx, in, msg, limit)
	b.Give(in, err == nil)
	return answer, err
}

// exchangeStored is exchange for a message that is to be stored. One server that cannot
// write to its disk goes on answering everything but this (measured on nats-server 2.15),
// so after a while without an answer a probe asks whether it is such a one.
func (b *Bus) exchangeStored(ctx context.Context, in *api.Inbox, msg *nats.Msg, limit time.Duration) (*nats.Msg, error) {
	if b.Replicas > 1 {
		return b.Exchange(ctx, in, msg, limit)
	}
	breaks, sent := b.Breaks(), time.Now()
	answer, err := b.Exchange(ctx, in, msg, min(limit, unansweredAfter))
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
			return nil, api.Join(journal.ErrInDoubt, full)
		}
		answer, err = in.Next(ctx, min(limit-time.Since(sent), unansweredAfter))
	}
	return answer, err
}

// probe sends a message that is never stored, and returns an error if the answer shows
// that nothing sent before it is stored any more. A stream takes messages one after
// another: if it refuses this one, the earlier ones were tried, and storing them failed.
// Where nobody takes it, JetStream has ended, which may be for want of room.
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
	return fmt.Errorf("%w, or it is broken: the server answers but stores nothing; see its log, make room, and start it again", journal.ErrDiskFull)
}
