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
	// pageRecords and pageBytes bound what one request brings, and so what a
	// reader holds in memory.
	pageRecords = 256
	pageBytes   = 4 << 20
	// silentPages is how many requests may stay without any answer before a read
	// fails.
	silentPages = 3
	readRetry   = 50 * time.Millisecond

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
		upTo, err := b.leaderEnd(ctx, events.StreamName(run.Shard), run.Filter())
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("read run %s: %w", run.ID, err))
			return
		}
		for rec, err := range b.records(ctx, events.StreamName(run.Shard), run.Filter(), after, upTo) {
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
		if err != nil {
			yield(journal.Record{}, fmt.Errorf("scan shard %d: %w", shard, err))
			return
		}
		for rec, err := range b.records(ctx, events.StreamName(shard), filter.Subject(shard), after, upTo) {
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
	body, err := json.Marshal(getRequest{LastFor: subject})
	if err != nil {
		return nil, err
	}
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
	return b.recordsBy(ctx, stream, subject, after, upTo, pageRecords)
}

// recordsBy is records with so many in a request.
func (b *Bus) recordsBy(ctx context.Context, stream, subject string, after, upTo uint64, page int) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		r, err := b.newReader(stream)
		if err != nil {
			yield(journal.Record{}, err)
			return
		}
		defer r.close()
		for silent := 0; ; {
			before := after
			more, err := r.page(ctx, getRequest{Seq: after + 1, NextFor: subject, Batch: page, MaxBytes: pageBytes}, func(_ *nats.Msg, rec journal.Record) bool {
				if rec.Seq <= after {
					return true
				}
				after = rec.Seq
				return yield(rec, nil)
			})
			switch {
			case errors.Is(err, errStopped):
				return
			case err == nil && !more && after < upTo:
				err = errLag
			case err == nil && !more:
				return
			case err == nil:
				continue
			}
			if errors.Is(err, errLag) {
				// What the leader had may have been purged meanwhile.
				if end, asked := b.leaderEnd(ctx, stream, subject); asked == nil {
					upTo = min(upTo, end)
				}
			}
			silent++
			if after > before || errors.Is(err, errLag) {
				silent = 0
			}
			passing := isAway(err) || errors.Is(err, errGap) || errors.Is(err, errLag)
			if ctx.Err() == nil && passing && silent < silentPages && pauseFor(ctx, readRetry) {
				continue
			}
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			yield(journal.Record{}, b.explain(ctx, stream, err))
			return
		}
	}
}

// errStopped says that the one who ranges over records wants no more.
var errStopped = errors.New("stopped")

// errGap says that a part of a page was lost on the way.
var errGap = errors.New("a part of the answer was lost")

// errLag says that a replica answered that does not have everything yet.
var errLag = errors.New("a replica lags behind")

// reader takes the answers to direct gets, page after page, on one subscription.
type reader struct {
	bus     *Bus
	subject string
	inbox   string
	pages   int
	sub     *nats.Subscription
	answers chan *nats.Msg
	denied  chan error
	// back tells that the connection came back: what was asked before is lost.
	back    chan nats.Status
	release func()
}

func (b *Bus) newReader(stream string) (*reader, error) {
	r := &reader{
		bus: b, subject: directSubject(stream), inbox: b.conn.NewInbox() + ".",
		answers: make(chan *nats.Msg, max(pageRecords, maxLast)+16), denied: make(chan error, 1),
	}
	sub, err := b.conn.ChanSubscribe(r.inbox+"*", r.answers)
	if err != nil {
		return nil, classify(err)
	}
	r.sub = sub
	r.back = b.conn.StatusChanged(nats.CONNECTED)
	r.release = b.denied.watch(r.subject, func(err error) {
		select {
		case r.denied <- err:
		default:
		}
	})
	return r, nil
}

func (r *reader) close() {
	r.release()
	r.bus.conn.RemoveStatusListener(r.back)
	// It fails only when the connection is closed, and the subscription with it.
	_ = r.sub.Unsubscribe()
}

// page sends one request and hands its records to take. It reports whether the
// stream has more. Every page answers on a subject of its own, so that what
// comes late from a page given up is not taken for the next one's.
func (r *reader) page(ctx context.Context, request getRequest, take func(*nats.Msg, journal.Record) bool) (more bool, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return false, err
	}
	r.pages++
	reply := r.inbox + strconv.Itoa(r.pages)
	if err := r.bus.conn.PublishRequest(r.subject, reply, body); err != nil {
		return false, err
	}
	timer := time.NewTimer(r.bus.opts.RequestTimeout)
	defer timer.Stop()
	var previous uint64
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case err := <-r.denied:
			return false, err
		case <-timer.C:
			return false, nats.ErrTimeout
		case <-r.back:
			return false, errGap
		case msg := <-r.answers:
			if msg.Subject != reply {
				continue
			}
			if status := statusOf(msg); status != "" {
				return pageEnd(status, msg, previous)
			}
			rec, err := recordOf(msg)
			if err != nil {
				return false, err
			}
			if !follows(msg, previous) {
				return false, errGap
			}
			previous = rec.Seq
			if !take(msg, rec) {
				return false, errStopped
			}
			timer.Reset(r.bus.opts.RequestTimeout)
		}
	}
}

// follows reports whether a page's message comes right after the one before it:
// the server says in each what it sent before, 0 in the first.
func follows(msg *nats.Msg, previous uint64) bool {
	return header(msg, headerPrevious) == strconv.FormatUint(previous, 10)
}

// pageEnd reads the message that ends a page.
func pageEnd(status string, msg *nats.Msg, previous uint64) (more bool, err error) {
	switch status {
	case "204":
		if !follows(msg, previous) {
			return false, errGap
		}
		pending := header(msg, headerPending)
		return pending != "" && pending != "0", nil
	case "404":
		return false, nil
	case "503":
		return false, nats.ErrNoResponders
	}
	return false, statusError(status, msg.Header.Get("Description"))
}
