package natsbus

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

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
		r, err := b.newReader(q.stream, firstRecords)
		if err != nil {
			yield(journal.Record{}, err)
			return
		}
		defer r.close()
		for silent, tries := 0, 0; ; {
			if tries < orderedTries && b.ordersFor(&q) {
				tries++
				if errors.Is(b.readOrdered(ctx, &q, yield), errStopped) {
					return
				}
			}
			before := q.after
			more, err := r.page(ctx, q.request(r.room()), func(_ *nats.Msg, rec journal.Record) bool { return q.pass(rec, yield) })
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
				err = r.grow(q.wants())
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

// reader takes the answers to direct gets, page after page, on one subscription.
type reader struct {
	bus     *Bus
	stream  string
	subject string
	inbox   string
	pages   int
	sub     *nats.Subscription
	answers chan *nats.Msg
	denied  chan error
	// back tells that the connection came back: what was asked before is lost.
	back    chan nats.Status
	release func()
	// asking says that not all of a page has come.
	asking bool
}

// newReader returns a reader for pages of at most so many records.
func (b *Bus) newReader(stream string, records int) (*reader, error) {
	if r := b.readers.take(stream, records); r != nil {
		return r, nil
	}
	r := &reader{
		bus: b, inbox: b.conn.NewInbox() + ".",
		answers: make(chan *nats.Msg, records+pageSlack),
	}
	sub, err := b.conn.ChanSubscribe(r.inbox+"*", r.answers)
	if err != nil {
		return nil, classify(err)
	}
	r.sub = sub
	r.back = b.conn.StatusChanged(nats.CONNECTED)
	r.ready(stream)
	return r, nil
}

// ready lets the reader read a stream.
func (r *reader) ready(stream string) {
	r.stream, r.subject = stream, directSubject(stream)
	for len(r.back) > 0 {
		<-r.back
	}
	denied := make(chan error, 1)
	r.denied = denied
	r.release = r.bus.denied.watch(r.subject, func(err error) {
		select {
		case denied <- err:
		default:
		}
	})
}

func (r *reader) close() {
	r.release()
	if !r.bus.readers.give(r) {
		r.end()
	}
}

func (r *reader) end() {
	r.bus.conn.RemoveStatusListener(r.back)
	// It fails only when the connection is closed, and the subscription with it.
	_ = r.sub.Unsubscribe()
}

// room is how many records a page may have: what comes beyond would be dropped.
func (r *reader) room() int { return cap(r.answers) - pageSlack }

// grow makes room for large pages, if so many records do not fit into one.
func (r *reader) grow(records int) error {
	if r.room() >= records {
		return nil
	}
	larger, err := r.bus.newReader(r.stream, pageRecords)
	if err == nil {
		r.close()
		*r = *larger
	}
	return err
}

// page sends one request and hands its records to take. It returns how many more
// the stream has. Every page answers on a subject of its own, so that what
// comes late from a page given up is not taken for the next one's.
func (r *reader) page(ctx context.Context, request getRequest, take func(*nats.Msg, journal.Record) bool) (more uint64, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return 0, err
	}
	release, err := r.bus.turn(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	r.pages++
	reply := r.inbox + strconv.Itoa(r.pages)
	r.asking = true
	if err := r.bus.conn.PublishRequest(r.subject, reply, body); err != nil {
		return 0, err
	}
	timer := time.NewTimer(r.bus.opts.RequestTimeout)
	defer timer.Stop()
	var previous uint64
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case err := <-r.denied:
			return 0, err
		case <-timer.C:
			return 0, nats.ErrTimeout
		case <-r.back:
			return 0, errGap
		case msg := <-r.answers:
			if msg.Subject != reply {
				continue
			}
			release() // whoever takes the records may read, too
			if status := statusOf(msg); status != "" {
				r.asking = false
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
			timer.Reset(r.bus.opts.RequestTimeout)
		}
	}
}

// turn waits until a page may be asked for. release, which may be called more than
// once, lets the next one ask. A bus that was not opened, which only looks about, has
// no turns.
func (b *Bus) turn(ctx context.Context) (release func(), err error) {
	if b.asking == nil {
		return func() {}, nil
	}
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
