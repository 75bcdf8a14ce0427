package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// query is one read of a stream.
type query struct {
	stream, subject string
	// match, if not nil, reports which subjects are wanted, so that all of the stream
	// may be read where that is the shorter way.
	match func(subject string) bool
	// after is the last record that was seen; the read may not end before upTo.
	after, upTo uint64
	// end is the stream's last record, as far as it is known.
	end uint64
	// all says that the stream is read as it lies, and sifted here. For each page of
	// a filter with wildcards the server looks through the names of all subjects and
	// through all blocks that it has read, so such a read of everything would take
	// time that grows with the square of the stream.
	all bool
	// counted asks for one record, with which the server says how many there are, and
	// then for exactly those. Asked for more it would look for them through all the
	// blocks up to the stream's end, which for a run that ended long ago is long.
	counted bool
	// from is after as it was in the beginning, pending and seen are how many records
	// are to come and have come.
	from, pending, seen uint64
}

// wholeShard reports whether a subject matches every event of a shard.
func wholeShard(subject string) bool {
	return strings.HasPrefix(subject, "moore.") && strings.HasSuffix(subject, ".*.*.*.*.*") && strings.Count(subject, ".") == 6
}

// request asks for the next page.
func (q *query) request(records int) getRequest {
	request := getRequest{Seq: q.after + 1, Batch: records, MaxBytes: pageBytes}
	if !q.all {
		request.NextFor = q.subject
	}
	switch {
	case !q.counted:
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
func (q *query) wants() int {
	if q.counted {
		return int(min(q.seen+q.pending, pageRecords))
	}
	return pageRecords
}

// widen makes the query read everything if enough of it is wanted, as the server
// counts what is pending.
func (q *query) widen(pending uint64) {
	if q.match != nil && q.end > q.after && pending > (q.end-q.after)/sparse {
		q.all = true
	}
}

// pass yields a record that is wanted and not seen yet, and reports whether to go
// on.
func (q *query) pass(rec journal.Record, yield func(journal.Record, error) bool) bool {
	if rec.Seq <= q.after {
		return true
	}
	q.after = rec.Seq
	q.seen++
	return q.all && !q.match(rec.Subject) || yield(rec, nil)
}

// readRun yields the records of a run. Those behind one that is known are asked for
// one by one if they are few, as they mostly are: a batch that begins within the
// stream makes the server look into many of its blocks, to count.
func (b *Bus) readRun(ctx context.Context, q query) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if q.after > 0 {
			head, err := b.head(ctx, q.stream, q.subject)
			if errors.Is(err, journal.ErrNotFound) {
				if b.replicas <= 1 || b.asksLeader() { // else it may be a replica that lags
					yield(journal.Record{}, err)
				}
				return
			}
			if err == nil && head.Seq <= q.after {
				return
			}
			for n := 0; err == nil && n < fewRecords; n++ {
				var rec journal.Record
				if rec, err = b.next(ctx, q.stream, q.subject, q.after); err == nil {
					q.after = rec.Seq
					if !yield(rec, nil) || rec.Seq >= head.Seq {
						return
					}
				}
			}
		}
		// Whatever went wrong, a read tries again and says it.
		var err error
		q.upTo, err = b.leaderEnd(ctx, q.stream, q.subject)
		if errors.Is(err, journal.ErrNotFound) {
			return // it was purged, whatever a replica still has
		}
		if err != nil {
			yield(journal.Record{}, err)
			return
		}
		for rec, err := range b.read(ctx, q) {
			if !yield(rec, err) {
				return
			}
		}
	}
}

// next returns the first record on the subject after the given sequence number.
func (b *Bus) next(ctx context.Context, stream, subject string, after uint64) (journal.Record, error) {
	msg, err := b.get(ctx, stream, getRequest{Seq: after + 1, NextFor: subject})
	if err != nil {
		return journal.Record{}, err
	}
	return recordOf(msg)
}

// read yields what a query asks for until the server says that there are no more.
// It does not believe so before it has seen the record upTo.
func (b *Bus) read(ctx context.Context, q query) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		q.from = q.after
		size := firstRecords
		for silent, tries := 0, 0; ; {
			if tries < orderedTries && b.ordersFor(&q) {
				tries++
				if errors.Is(b.readOrdered(ctx, &q, yield), errStopped) {
					return
				}
			}
			before := q.after
			more, err := b.page(ctx, q.stream, size, q.request(size), func(_ *nats.Msg, rec journal.Record) bool { return q.pass(rec, yield) })
			switch {
			case errors.Is(err, errStopped):
				return
			case err == nil && more == 0 && q.after < q.upTo:
				err = errLag
			case err == nil && more == 0:
				return
			case err == nil:
				q.pending = more
				q.widen(more)
				if q.wants() > size {
					size = pageRecords
				}
			}
			if err == nil {
				continue
			}
			if errors.Is(err, errLag) {
				// What the leader had may have been purged meanwhile.
				if end, asked := b.leaderEnd(ctx, q.stream, q.subject); asked == nil || errors.Is(asked, journal.ErrNotFound) {
					q.upTo = min(q.upTo, end)
				}
			}
			silent++
			if q.after > before || errors.Is(err, errLag) {
				silent = 0
			}
			passing := isAway(err) || errors.Is(err, errGap) || errors.Is(err, errLag)
			if ctx.Err() == nil && passing && silent < silentPages && pauseFor(ctx, readRetry) {
				continue
			}
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			yield(journal.Record{}, b.explain(ctx, q.stream, err))
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

// page sends one request to a stream and hands the records of its answer to take. It
// returns how many more the stream has.
func (b *Bus) page(ctx context.Context, stream string, size int, request getRequest, take func(*nats.Msg, journal.Record) bool) (more uint64, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return 0, err
	}
	release, err := b.turn(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	msg := &nats.Msg{Subject: directSubject(stream), Data: body}
	in, err := b.requests.take(size+pageSlack, msg.Subject, nil)
	if err != nil {
		return 0, err
	}
	ended := false
	defer func() { b.requests.give(in, ended) }()
	if err := in.send(b.conn, msg); err != nil {
		return 0, err
	}
	var previous uint64
	for {
		msg, err := in.next(ctx, b.opts.RequestTimeout)
		if err != nil {
			return 0, err
		}
		release() // whoever takes the records may read, too
		if status := statusOf(msg); status != "" {
			ended = true
			return pageEnd(status, msg, previous)
		}
		rec, err := recordOf(msg)
		if err != nil {
			return 0, err
		}
		if !follows(msg, previous) {
			return 0, errGap
		}
		previous = rec.Seq
		if !take(msg, rec) {
			return 0, errStopped
		}
	}
}

// turn waits until a page may be asked for. release, which may be called more than
// once, lets the next one ask.
func (b *Bus) turn(ctx context.Context) (release func(), err error) {
	select {
	case b.asking <- struct{}{}:
		return sync.OnceFunc(func() { <-b.asking }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// follows reports whether a page's message comes right after the one before it:
// the server says in each what it sent before, 0 in the first.
func follows(msg *nats.Msg, previous uint64) bool {
	return header(msg, headerPrevious) == strconv.FormatUint(previous, 10)
}

// pageEnd reads the message that ends a page, and returns how many records follow.
func pageEnd(status string, msg *nats.Msg, previous uint64) (more uint64, err error) {
	switch status {
	case "204":
		if !follows(msg, previous) {
			return 0, errGap
		}
		if pending := header(msg, headerPending); pending != "" {
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
