package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// FirstRecords, PageRecords and pageBytes bound what the first and each later
	// request brings, and so what a reader holds in memory. The first is small since
	// most reads are.
	FirstRecords = 256
	PageRecords  = 4096
	pageBytes    = 4 << 20
	// pageSlack is how many messages a page has in addition to its records.
	pageSlack = 16
	// FewRecords is how many records of a run are asked for one by one.
	FewRecords = 16
	// sparse: where less than one in so many of a stream's records is wanted, the
	// server looks for them; else all are read.
	sparse = 8
	// SilentPages is how many requests may stay without any answer before a read
	// fails.
	SilentPages = 3
	ReadRetry   = 50 * time.Millisecond
	// PagesAtOnce is how many requests for a page may wait for their first answer at
	// once. A server works on those of one connection one after another: of the
	// reads of ten thousand runs that are woken together most would not be answered
	// in time, and begin anew.
	PagesAtOnce = 64

	// HeaderExpectSeq and HeaderExpectSubject are the condition of an append.
	HeaderExpectSeq     = "Nats-Expected-Last-Subject-Sequence"
	HeaderExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

	headerSubject  = "Nats-Subject"
	HeaderSequence = "Nats-Sequence"
	headerTime     = "Nats-Time-Stamp"
	headerPrevious = "Nats-Last-Sequence"
	headerPending  = "Nats-Num-Pending"
)

// GetRequest asks a stream for records without a consumer.
type GetRequest struct {
	Seq       uint64   `json:"seq,omitempty"`
	NextFor   string   `json:"next_by_subj,omitempty"`
	LastFor   string   `json:"last_by_subj,omitempty"`
	MultiLast []string `json:"multi_last,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
}

// LastOn returns the last message of a stream on the subject, which may have
// wildcards, or ErrNotFound.
func (c *Client) LastOn(ctx context.Context, stream, subject string) (journal.Record, error) {
	msg, err := c.LastMessage(ctx, stream, subject)
	if err != nil {
		return journal.Record{}, err
	}
	return RecordOf(msg)
}

func (c *Client) LastMessage(ctx context.Context, stream, subject string) (*nats.Msg, error) {
	return c.get(ctx, stream, GetRequest{LastFor: subject})
}

// NextOn returns the first message of a stream from a sequence number on whose subject
// matches, or ErrNotFound.
func (c *Client) NextOn(ctx context.Context, stream, subject string, from uint64) (journal.Record, error) {
	msg, err := c.get(ctx, stream, GetRequest{Seq: from, NextFor: subject})
	if err != nil {
		return journal.Record{}, err
	}
	return RecordOf(msg)
}

func (c *Client) get(ctx context.Context, stream string, request GetRequest) (*nats.Msg, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	return c.Direct(ctx, stream, body)
}

// Direct is get with the request as it is sent.
func (c *Client) Direct(ctx context.Context, stream string, body []byte) (*nats.Msg, error) {
	for try := 1; ; try++ {
		msg, err := c.Request(ctx, 0, &nats.Msg{Subject: DirectSubject(stream), Data: body})
		if errors.Is(err, nats.ErrNoResponders) && try < SilentPages && retry.Wait(ctx, ReadRetry) {
			continue
		}
		if err != nil {
			return nil, c.Explain(ctx, stream, err)
		}
		if status := statusOf(msg); status != "" {
			return nil, statusError(status, msg.Header.Get("Description"))
		}
		return msg, nil
	}
}

func DirectSubject(stream string) string { return Prefix + "DIRECT.GET." + stream }

// Explain turns "nobody answers" into ErrNotReady where the stream is missing.
func (c *Client) Explain(ctx context.Context, stream string, err error) error {
	if !errors.Is(err, nats.ErrNoResponders) {
		return Classify(err)
	}
	if _, asked := c.Stream(ctx, stream); errors.Is(asked, journal.ErrNotReady) && !errors.Is(asked, nats.ErrNoResponders) {
		return asked
	}
	return err
}

func statusError(status, description string) error {
	if status == "404" {
		return journal.ErrNotFound
	}
	return fmt.Errorf("the bus answers %s %s", status, description)
}

// Header returns the last value of a header: the server adds its own behind those
// that a publisher may have put into the message.
func Header(msg *nats.Msg, key string) string {
	values := msg.Header[key]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// statusOf returns the status of an answer that is no record, else "". A record
// may hold a Status header of its publisher's, but a status has no sequence number.
func statusOf(msg *nats.Msg) string {
	if Header(msg, HeaderSequence) != "" {
		return ""
	}
	return msg.Header.Get("Status")
}

// RecordOf reads a message as direct get and republish give it.
func RecordOf(msg *nats.Msg) (journal.Record, error) {
	seq, err := strconv.ParseUint(Header(msg, HeaderSequence), 10, 64)
	if err != nil {
		return journal.Record{}, fmt.Errorf("message on %s: sequence: %w", msg.Subject, err)
	}
	rec := journal.Record{Subject: Header(msg, headerSubject), Seq: seq, Body: msg.Data}
	if text := Header(msg, headerTime); text != "" {
		if rec.Stored, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return journal.Record{}, fmt.Errorf("message on %s: time: %w", msg.Subject, err)
		}
	}
	return rec, nil
}

// LeaderLast returns the stream's last message on the subject as its leader has
// it, or ErrNotFound. A direct get may be answered by a replica that lags.
func (c *Client) LeaderLast(ctx context.Context, stream, subject string) (journal.Record, error) {
	var answer struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err := c.Ask(ctx, 0, "STREAM.MSG.GET."+stream, GetRequest{LastFor: subject}, &answer)
	if code, ok := Code(err); ok && code == CodeNoMessage {
		return journal.Record{}, journal.ErrNotFound
	}
	if err != nil {
		return journal.Record{}, fmt.Errorf("stream %s: %w", stream, err)
	}
	m := answer.Message
	return journal.Record{Subject: m.Subject, Seq: m.Seq, Body: m.Data, Stored: m.Time}, nil
}

// LeaderEnd returns the sequence number up to which a read must come before it
// may end: what the leader has on the subject, or ErrNotFound where it has nothing,
// which a replica that lags behind a purge may still have. Where there is one
// server, who answers is the leader, and nothing needs to be asked: 0.
func (c *Client) LeaderEnd(ctx context.Context, stream, subject string) (uint64, error) {
	if !c.AsksLeader(stream) {
		return 0, nil
	}
	rec, err := c.LeaderLast(ctx, stream, subject)
	if c.mayNotAsk(stream, err) {
		return 0, nil
	}
	return rec.Seq, err
}

// HeadOn returns the last record on the subject, the leader's if it can be asked.
func (c *Client) HeadOn(ctx context.Context, stream, subject string) (journal.Record, error) {
	if c.AsksLeader(stream) {
		rec, err := c.LeaderLast(ctx, stream, subject)
		if !c.mayNotAsk(stream, err) {
			return rec, err
		}
	}
	return c.LastOn(ctx, stream, subject)
}

// AsksLeader reports whether the stream's leader is asked: a replica may lag, and as far
// as is known this user may.
func (c *Client) AsksLeader(stream string) bool {
	_, refused := c.leaderless.Load(stream)
	return c.Replicas > 1 && !refused
}

// mayNotAsk reports whether the bus refused the question. Reads are then as good
// as the replica that answers them, which conditional appends make up for.
func (c *Client) mayNotAsk(stream string, err error) bool {
	if !errors.Is(err, journal.ErrDenied) {
		return false
	}
	if _, known := c.leaderless.Swap(stream, true); !known {
		c.Log.Warn("reads may lag behind: allow this user to publish on " + Prefix + "STREAM.MSG.GET." + stream)
	}
	return true
}
