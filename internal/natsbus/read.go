package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// firstRecords, pageRecords and pageBytes bound what the first and each later
	// request brings, and so what a reader holds in memory. The first is small since
	// most reads are.
	firstRecords = 256
	pageRecords  = 4096
	pageBytes    = 4 << 20
	// pageSlack is what comes with a page beside its records.
	pageSlack = 16
	// fewRecords is how many records of a run are asked for one by one.
	fewRecords = 16
	// sparse: where less than one in so many of a stream's records is wanted, the
	// server looks for them; else all are read.
	sparse = 8
	// silentPages is how many requests may stay without any answer before a read
	// fails.
	silentPages = 3
	readRetry   = 50 * time.Millisecond
	// pagesAtOnce is how many requests for a page may wait for their first answer at
	// once. A server works on those of one connection one after another: of the
	// reads of ten thousand runs that are woken together most would not be answered
	// in time, and begin anew.
	pagesAtOnce = 64

	headerSubject  = "Nats-Subject"
	headerSequence = "Nats-Sequence"
	headerTime     = "Nats-Time-Stamp"
	headerPrevious = "Nats-Last-Sequence"
	headerPending  = "Nats-Num-Pending"
)

// getRequest asks a stream for records without a consumer.
type getRequest struct {
	Seq       uint64   `json:"seq,omitempty"`
	NextFor   string   `json:"next_by_subj,omitempty"`
	LastFor   string   `json:"last_by_subj,omitempty"`
	MultiLast []string `json:"multi_last,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
}

// Read yields the run's records after the given sequence number.
func (b *Bus) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := journal.CheckRun(b.shards, run); err != nil {
			yield(journal.Record{}, err)
			return
		}
		for rec, err := range b.readRun(ctx, query{stream: events.StreamName(run.Shard), subject: run.Filter(), after: after, counted: true}) {
			if err != nil {
				err = fmt.Errorf("read run %s: %w", run.ID, err)
			}
			if !yield(rec, err) {
				return
			}
		}
	}
}

// Scan yields a shard's records that match, up to the one that was the last when
// the scan began.
func (b *Bus) Scan(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		end, err := b.Last(ctx, shard)
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("scan shard %d: %w", shard, err))
			return
		}
		if end <= after {
			return
		}
		upTo, err := b.leaderEnd(ctx, events.StreamName(shard), filter.Subject(shard))
		if errors.Is(err, journal.ErrNotFound) {
			return
		}
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("scan shard %d: %w", shard, err))
			return
		}
		q := query{stream: events.StreamName(shard), subject: filter.Subject(shard), match: filter.Match, after: after, upTo: upTo, end: end}
		q.all = wholeShard(q.subject)
		if b.replicas > 1 && !b.asksLeader() {
			// Only a read of everything shows whether a replica answers that lags.
			q.all, q.upTo = true, end
		}
		for rec, err := range b.read(ctx, q) {
			if err != nil {
				err = fmt.Errorf("scan shard %d: %w", shard, err)
			}
			if err == nil && rec.Seq > end || !yield(rec, err) {
				return
			}
		}
	}
}

// Last returns the sequence number of the shard's last record.
func (b *Bus) Last(ctx context.Context, shard int) (uint64, error) {
	if err := journal.CheckShard(b.shards, shard); err != nil {
		return 0, err
	}
	info, err := b.streamInfo(ctx, shard)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

// Head returns the run's last record.
func (b *Bus) Head(ctx context.Context, run events.Run) (journal.Record, error) {
	if err := journal.CheckRun(b.shards, run); err != nil {
		return journal.Record{}, err
	}
	rec, err := b.head(ctx, events.StreamName(run.Shard), run.Filter())
	if err != nil {
		return journal.Record{}, fmt.Errorf("head of run %s: %w", run.ID, err)
	}
	return rec, nil
}

// Newest returns the shard's last record that matches.
func (b *Bus) Newest(ctx context.Context, shard int, filter journal.Filter) (journal.Record, error) {
	if err := journal.CheckShard(b.shards, shard); err != nil {
		return journal.Record{}, err
	}
	rec, err := b.head(ctx, events.StreamName(shard), filter.Subject(shard))
	if err != nil {
		return journal.Record{}, fmt.Errorf("newest of %s: %w", filter.Subject(shard), err)
	}
	return rec, nil
}

// last returns the last message of a stream on the subject, which may have
// wildcards, or ErrNotFound.
func (b *Bus) last(ctx context.Context, stream, subject string) (journal.Record, error) {
	msg, err := b.lastMessage(ctx, stream, subject)
	if err != nil {
		return journal.Record{}, err
	}
	return recordOf(msg)
}

func (b *Bus) lastMessage(ctx context.Context, stream, subject string) (*nats.Msg, error) {
	return b.get(ctx, stream, getRequest{LastFor: subject})
}

// get asks for one message.
func (b *Bus) get(ctx context.Context, stream string, request getRequest) (*nats.Msg, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	return b.direct(ctx, stream, body)
}

// direct is get with the request as it is sent.
func (b *Bus) direct(ctx context.Context, stream string, body []byte) (*nats.Msg, error) {
	for try := 1; ; try++ {
		msg, err := b.request(ctx, &nats.Msg{Subject: directSubject(stream), Data: body})
		if errors.Is(err, nats.ErrNoResponders) && try < silentPages && pauseFor(ctx, readRetry) {
			continue
		}
		if err != nil {
			return nil, b.explain(ctx, stream, err)
		}
		if status := statusOf(msg); status != "" {
			return nil, statusError(status, msg.Header.Get("Description"))
		}
		return msg, nil
	}
}

func directSubject(stream string) string { return apiPrefix + "DIRECT.GET." + stream }

// explain turns "nobody answers" into ErrNotReady where the stream is missing.
func (b *Bus) explain(ctx context.Context, stream string, err error) error {
	if !errors.Is(err, nats.ErrNoResponders) {
		return classify(err)
	}
	var info streamInfo
	if asked := b.ask(ctx, "STREAM.INFO."+stream, nil, &info); asked == nil && info.Error != nil {
		return fmt.Errorf("stream %s: %w", stream, classify(info.Error))
	}
	return err
}

func statusError(status, description string) error {
	if status == "404" {
		return journal.ErrNotFound
	}
	return fmt.Errorf("the bus answers %s %s", status, description)
}

// header returns the last value of a header: the server adds its own behind those
// that a publisher may have put into the message.
func header(msg *nats.Msg, key string) string {
	values := msg.Header[key]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// statusOf returns the status of an answer that is no record, else "". A record
// may hold a Status header of its publisher's, but a status has no sequence number.
func statusOf(msg *nats.Msg) string {
	if header(msg, headerSequence) != "" {
		return ""
	}
	return msg.Header.Get("Status")
}

// recordOf reads a message as direct get and republish give it.
func recordOf(msg *nats.Msg) (journal.Record, error) {
	seq, err := strconv.ParseUint(header(msg, headerSequence), 10, 64)
	if err != nil {
		return journal.Record{}, fmt.Errorf("message on %s: sequence: %w", msg.Subject, err)
	}
	rec := journal.Record{Subject: header(msg, headerSubject), Seq: seq, Body: msg.Data}
	if text := header(msg, headerTime); text != "" {
		if rec.Stored, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return journal.Record{}, fmt.Errorf("message on %s: time: %w", msg.Subject, err)
		}
	}
	return rec, nil
}

// records yields the records of a stream on the subject after the given sequence
// number until the server says that there are no more. It does not believe so
// before it has seen the record upTo.
func (b *Bus) records(ctx context.Context, stream, subject string, after, upTo uint64) iter.Seq2[journal.Record, error] {
	return b.read(ctx, query{stream: stream, subject: subject, match: journal.Filter{}.Match, after: after, upTo: upTo, all: wholeShard(subject)})
}
