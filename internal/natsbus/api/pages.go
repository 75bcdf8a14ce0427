package api

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// Reading is one read of a stream.
type Reading struct {
	Stream, Subject string
	// Match, if not nil, reports which subjects are wanted, so that all of the stream
	// may be read where that is the shorter way.
	Match func(subject string) bool
	// After is the last record that was seen; the read may not end before UpTo.
	After, UpTo uint64
	// End is the stream's last record, as far as it is known.
	End uint64
	// All says that the stream is read as it lies, and sifted here. For each page of
	// a filter with wildcards the server looks through the names of all subjects and
	// through all blocks that it has read, so such a read of everything would take
	// time that grows with the square of the stream.
	All bool
	// Counted asks for one record, with which the server says how many there are, and
	// then for exactly those. Asked for more it would look for them through all the
	// blocks up to the stream's end, which for a run that ended long ago is long.
	Counted bool
	// from is After as it was in the beginning, pending and seen are how many records
	// are to come and have come.
	from, pending, seen uint64
}

// WholeShard reports whether a subject matches every event of a shard.
func WholeShard(subject string) bool {
	return strings.HasPrefix(subject, "moore.") && strings.HasSuffix(subject, ".*.*.*.*.*") && strings.Count(subject, ".") == 6
}

func (q *Reading) request(records int) GetRequest {
	request := GetRequest{Seq: q.After + 1, Batch: records, MaxBytes: pageBytes}
	if !q.All {
		request.NextFor = q.Subject
	}
	switch {
	case !q.Counted:
	case q.pending == 0:
		request.Batch = 1
	case q.from == 0 && q.seen == 1 && q.pending < uint64(records):
		// From the stream's beginning on the server counts what matches by the names of
		// subjects; from anywhere else it looks into blocks. So the first record comes
		// once more.
		request.Seq, request.Batch = 1, int(1+q.pending)
	default:
		request.Batch = min(records, int(q.pending))
	}
	return request
}

// wants is how many records the next pages may have.
func (q *Reading) wants() int {
	if q.Counted {
		return int(min(q.seen+q.pending, PageRecords))
	}
	return PageRecords
}

// widen makes the query read everything if enough of it is wanted, as the server
// counts what is pending.
func (q *Reading) widen(pending uint64) {
	if q.Match != nil && q.End > q.After && pending > (q.End-q.After)/sparse {
		q.All = true
	}
}

// pass yields a record that is wanted and not seen yet, and reports whether to go
// on.
func (q *Reading) pass(rec journal.Record, yield func(journal.Record, error) bool) bool {
	if rec.Seq <= q.After {
		return true
	}
	q.After = rec.Seq
	q.seen++
	return q.All && !q.Match(rec.Subject) || yield(rec, nil)
}

// ReadRun yields the records of a run. Those behind one that is known are asked for
// one by one if they are few, as they mostly are: a batch that begins within the
// stream makes the server look into many of its blocks, to count.
func (c *Client) ReadRun(ctx context.Context, q Reading) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if q.After > 0 {
			head, err := c.HeadOn(ctx, q.Stream, q.Subject)
			if errors.Is(err, journal.ErrNotFound) {
				if c.Replicas <= 1 || c.AsksLeader(q.Stream) { // else it may be a replica that lags
					yield(journal.Record{}, err)
				}
				return
			}
			if err == nil && head.Seq <= q.After {
				return
			}
			for n := 0; err == nil && n < FewRecords; n++ {
				var rec journal.Record
				if rec, err = c.next(ctx, q.Stream, q.Subject, q.After); err == nil {
					q.After = rec.Seq
					if !yield(rec, nil) || rec.Seq >= head.Seq {
						return
					}
				}
			}
		}
		// Whatever went wrong, a read tries again and says it.
		var err error
		q.UpTo, err = c.LeaderEnd(ctx, q.Stream, q.Subject)
		if errors.Is(err, journal.ErrNotFound) {
			return // it was purged, whatever a replica still has
		}
		if err != nil {
			yield(journal.Record{}, err)
			return
		}
		for rec, err := range c.Query(ctx, q) {
			if !yield(rec, err) {
				return
			}
		}
	}
}

// next returns the first record on the subject behind a sequence number.
func (c *Client) next(ctx context.Context, stream, subject string, after uint64) (journal.Record, error) {
	msg, err := c.get(ctx, stream, GetRequest{Seq: after + 1, NextFor: subject})
	if err != nil {
		return journal.Record{}, err
	}
	return RecordOf(msg)
}

// Query yields what a query asks for until the server says that there are no more.
// It does not believe so before it has seen the record upTo.
func (c *Client) Query(ctx context.Context, q Reading) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		q.from = q.After
		size := FirstRecords
		for silent, tries := 0, 0; ; {
			if tries < orderedTries && c.ordersFor(&q) {
				tries++
				if errors.Is(c.ReadOrdered(ctx, &q, yield), ErrStopped) {
					return
				}
			}
			before := q.After
			more, err := c.Page(ctx, q.Stream, size, q.request(size), func(_ *nats.Msg, rec journal.Record) bool { return q.pass(rec, yield) })
			switch {
			case errors.Is(err, ErrStopped):
				return
			case err == nil && more == 0 && q.After < q.UpTo:
				err = ErrLag
			case err == nil && more == 0:
				return
			case err == nil:
				q.pending = more
				q.widen(more)
				if q.wants() > size {
					size = PageRecords
				}
			}
			if err == nil {
				continue
			}
			if errors.Is(err, ErrLag) {
				// What the leader had may have been purged meanwhile.
				if end, asked := c.LeaderEnd(ctx, q.Stream, q.Subject); asked == nil || errors.Is(asked, journal.ErrNotFound) {
					q.UpTo = min(q.UpTo, end)
				}
			}
			silent++
			if q.After > before || errors.Is(err, ErrLag) {
				silent = 0
			}
			passing := IsAway(err) || errors.Is(err, ErrGap) || errors.Is(err, ErrLag)
			if ctx.Err() == nil && passing && silent < SilentPages && retry.Wait(ctx, ReadRetry) {
				continue
			}
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			yield(journal.Record{}, c.Explain(ctx, q.Stream, err))
			return
		}
	}
}

// ErrStopped says that the one who ranges over records wants no more.
var ErrStopped = errors.New("stopped")

// ErrGap says that a part of a page was lost on the way.
var ErrGap = errors.New("a part of the answer was lost")

// ErrLag says that a replica answered that does not have everything yet.
var ErrLag = errors.New("a replica lags behind")

// Page sends one request to a stream and hands the records of its answer to take. It
// returns how many more the stream has.
func (c *Client) Page(ctx context.Context, stream string, size int, request GetRequest, take func(*nats.Msg, journal.Record) bool) (more uint64, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return 0, err
	}
	release, err := c.turn(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	msg := &nats.Msg{Subject: DirectSubject(stream), Data: body}
	in, err := c.Take(size+pageSlack, msg.Subject)
	if err != nil {
		return 0, err
	}
	ended := false
	defer func() { c.Give(in, ended) }()
	if err := in.Send(c.NC, msg); err != nil {
		return 0, err
	}
	var previous uint64
	for {
		msg, err := in.Next(ctx, c.Timeout)
		if err != nil {
			return 0, err
		}
		release() // the receiver of the records may read, too
		if status := statusOf(msg); status != "" {
			ended = true
			return pageEnd(status, msg, previous)
		}
		rec, err := RecordOf(msg)
		if err != nil {
			return 0, err
		}
		if !follows(msg, previous) {
			return 0, ErrGap
		}
		previous = rec.Seq
		if !take(msg, rec) {
			return 0, ErrStopped
		}
	}
}

// turn waits until a page may be asked for. release, which may be called more than
// once, lets the next one ask.
func (c *Client) turn(ctx context.Context) (release func(), err error) {
	select {
	case c.asking <- struct{}{}:
		return sync.OnceFunc(func() { <-c.asking }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// follows reports whether a page's message comes right after the one before it:
// the server says in each what it sent before, 0 in the first.
func follows(msg *nats.Msg, previous uint64) bool {
	return Header(msg, headerPrevious) == strconv.FormatUint(previous, 10)
}

// pageEnd reads the message that ends a page, and returns how many records follow.
func pageEnd(status string, msg *nats.Msg, previous uint64) (more uint64, err error) {
	switch status {
	case "204":
		if !follows(msg, previous) {
			return 0, ErrGap
		}
		if pending := Header(msg, headerPending); pending != "" {
			more, err = strconv.ParseUint(pending, 10, 64)
		}
		return more, err
	case "404":
		return 0, nil
	case "503":
		return 0, nats.ErrNoResponders
	}
	return 0, statusError(status, msg.Header.Get("Description"))
}

// RecordsOn yields the records of a stream on the subject after the given sequence
// number until the server says that there are no more. It does not believe so
// before it has seen the record upTo.
func (c *Client) RecordsOn(ctx context.Context, stream, subject string, after, upTo uint64) iter.Seq2[journal.Record, error] {
	return c.Query(ctx, Reading{Stream: stream, Subject: subject, Match: func(string) bool { return true }, After: after, UpTo: upTo, All: WholeShard(subject)})
}
