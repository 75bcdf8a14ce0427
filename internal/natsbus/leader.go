package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

// codeNoMessage is the server's code for "no message found".
const codeNoMessage = 10037

// leaderLast returns the stream's last message on the subject as its leader has
// it, or ErrNotFound. A direct get may be answered by a replica that lags.
func (b *Bus) leaderLast(ctx context.Context, stream, subject string) (journal.Record, error) {
	request, err := json.Marshal(getRequest{LastFor: subject})
	if err != nil {
		return journal.Record{}, err
	}
	var answer struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
		Error *apiError `json:"error"`
	}
	if err := b.ask(ctx, "STREAM.MSG.GET."+stream, request, &answer); err != nil {
		return journal.Record{}, err
	}
	if answer.Error != nil && answer.Error.ErrCode == codeNoMessage {
		return journal.Record{}, journal.ErrNotFound
	}
	if answer.Error != nil {
		return journal.Record{}, fmt.Errorf("stream %s: %w", stream, classify(answer.Error))
	}
	m := answer.Message
	return journal.Record{Subject: m.Subject, Seq: m.Seq, Body: m.Data, Stored: m.Time}, nil
}

// leaderEnd returns the sequence number up to which a read must come before it
// may end: what the leader has on the subject, or ErrNotFound where it has nothing,
// which a replica that lags behind a purge may still have. Where there is one
// server, who answers is the leader, and nothing needs to be asked: 0.
func (b *Bus) leaderEnd(ctx context.Context, stream, subject string) (uint64, error) {
	if !b.asksLeader() {
		return 0, nil
	}
	rec, err := b.leaderLast(ctx, stream, subject)
	if b.mayNotAsk(stream, err) {
		return 0, nil
	}
	return rec.Seq, err
}

// head returns the last record on the subject, the leader's if it can be asked.
func (b *Bus) head(ctx context.Context, stream, subject string) (journal.Record, error) {
	if b.asksLeader() {
		rec, err := b.leaderLast(ctx, stream, subject)
		if !b.mayNotAsk(stream, err) {
			return rec, err
		}
	}
	return b.last(ctx, stream, subject)
}

func (b *Bus) asksLeader() bool { return b.replicas > 1 && !b.leaderless.Load() }

// mayNotAsk reports whether the bus refused the question. Reads are then as good
// as the replica that answers them, which conditional appends make up for.
func (b *Bus) mayNotAsk(stream string, err error) bool {
	if !errors.Is(err, journal.ErrDenied) {
		return false
	}
	if !b.leaderless.Swap(true) {
		b.log.Warn("reads may lag behind: allow this user to publish on " + apiPrefix + "STREAM.MSG.GET." + stream)
	}
	return true
}
