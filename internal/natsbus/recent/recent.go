// Package recent has records at hand that other processes just stored.
//
// A role in its own process is woken by some edges of the log and writes others. It
// reads what lies between them, one record for each delivery, from the server. Where it
// reads many records of one edge, a [Reader] has the server send all of that edge, which
// costs less than a third of a read for each record. It learns the edges from what is read,
// so it needs to know neither roles nor graphs.
//
// What it has is as trustworthy as a delivery: it comes from a consumer of the stream. It
// may be incomplete at any time. The caller then reads.
//
// With several processes of a role, each is sent all records of the edge and uses its
// share. If that is too small, the edge is not followed for a while. Nor is anything if the
// user may not create consumers.
package recent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// busy is how many records of an edge are read within a second before it is followed.
	busy = 64
	// sample is the number of received records after which the share of used ones is checked, and
	// worth the least share, in percent, for which following pays.
	sample, worth = 1024, 40
	// firstPause is how long an edge is not followed after it did not pay. Each further
	// time the pause is twice as long, up to longestPause.
	firstPause, longestPause = time.Minute, 16 * time.Minute
	// idle is how long nothing may come before an edge is not followed any more.
	idle = 30 * time.Second
	// tick is how often an edge is looked after that nothing is read of.
	tick = 250 * time.Millisecond
	// maxRecords and maxBytes bound what is kept, over all edges.
	maxRecords, maxBytes = 4096, 16 << 20
)

// Reader keeps recent records of the edges that are read often. It is safe for concurrent
// use. What it started ends with the connection.
type Reader struct {
	client *api.Client

	mu    sync.Mutex
	edges map[place]*edge
	// byStream has the edges that are followed.
	byStream map[string][]*edge
	kept     map[position]kept
	// order has the positions of the last records that came, oldest first from first%len
	// on. Some are no longer kept.
	order       [maxRecords]position
	first, last uint64
	bytes       int
}

// place is an edge of a stream, as a filter of subjects.
type place struct{ stream, subject string }

type position struct {
	stream string
	seq    uint64
}

type kept struct {
	msg  *nats.Msg
	from api.Delivered
	edge *edge
}

// edge is an edge of which something was read.
type edge struct {
	place
	// reads counts what was read since the time counted.
	reads   int
	counted time.Time
	// following says that a goroutine cares for the edge; tail is nil until it brings
	// records.
	following bool
	tail      *api.Tail
	// came and used count records since the share was checked; heard is when one last came.
	came, used int
	heard      time.Time
	// failed is why the tail brings nothing more.
	failed error
	// pause is how long the edge is left alone when it does not pay, until when it is now.
	pause time.Duration
	until time.Time
}

// NewReader returns a reader over the client.
func NewReader(client *api.Client) *Reader {
	return &Reader{client: client, edges: map[place]*edge{}, byStream: map[string][]*edge{}, kept: map[position]kept{}}
}

// Take returns a record of a stream, once, if it is at hand. It does not block.
func (r *Reader) Take(stream string, seq uint64) (*nats.Msg, api.Delivered, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.byStream[stream] {
		if r.drain(e) != nil {
			return nil, api.Delivered{}, false // its goroutine sees the error, too
		}
	}
	at := position{stream, seq}
	k, ok := r.kept[at]
	if ok {
		k.edge.used++
		r.drop(at, k)
	}
	return k.msg, k.from, ok
}

// Missed says that a record of an edge was read that was not at hand. subject is the
// filter of the edge.
func (r *Reader) Missed(stream, subject string) {
	if r.client.Unordered.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at, now := place{stream, subject}, time.Now()
	e := r.edges[at]
	if e == nil {
		e = &edge{place: at, pause: firstPause}
		r.edges[at] = e
	}
	if now.Sub(e.counted) > time.Second {
		e.reads, e.counted = 0, now
	}
	if e.reads++; e.reads >= busy && !e.following && now.After(e.until) {
		e.following = true
		go r.follow(e)
	}
}

// follow keeps an edge at hand as long as that pays.
func (r *Reader) follow(e *edge) {
	tail, err := r.client.OpenTail(context.Background(), e.stream, e.subject)
	if errors.Is(err, journal.ErrDenied) {
		r.client.Unordered.Store(true)
	}
	if err == nil {
		r.begin(e, tail)
		err = r.look(e)
		tail.Close()
	} else {
		r.leave(e)
	}
	r.client.Log.Debug("records are read one by one", "stream", e.stream, "subject", e.subject, "reason", err)
	r.end(e)
}

func (r *Reader) begin(e *edge, tail *api.Tail) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.tail, e.came, e.used, e.heard, e.failed = tail, 0, 0, time.Now(), nil
	r.byStream[e.stream] = append(r.byStream[e.stream], e)
}

// leave lets an edge alone for a while that cannot be followed.
func (r *Reader) leave(e *edge) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.until = time.Now().Add(firstPause)
}

// look returns why an edge is not to be followed any more.
func (r *Reader) look(e *edge) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-e.tail.Ended():
			return nats.ErrConnectionClosed
		case now := <-ticker.C:
			r.mu.Lock()
			err := r.drain(e)
			if err == nil {
				err = e.judge(now)
			}
			r.mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
}

var (
	errUnused = errors.New("too few of the records that came were used")
	errIdle   = errors.New("no records came")
)

// judge returns why an edge is not worth following.
func (e *edge) judge(now time.Time) error {
	switch {
	case now.Sub(e.heard) > idle:
		return errIdle
	case e.came < sample:
		return nil
	case 100*e.used < worth*e.came:
		e.until = now.Add(e.pause)
		e.pause = min(2*e.pause, longestPause)
		return errUnused
	}
	e.came, e.used, e.pause = 0, 0, firstPause
	return nil
}

// end forgets what is kept of an edge: its stream may have lost it.
func (r *Reader) end(e *edge) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.following, e.tail, e.reads = false, nil, 0
	var others []*edge
	for _, other := range r.byStream[e.stream] {
		if other != e {
			others = append(others, other)
		}
	}
	r.byStream[e.stream] = others
	for at, k := range r.kept {
		if k.edge == e {
			r.drop(at, k)
		}
	}
}

// drain keeps what has come of an edge.
func (r *Reader) drain(e *edge) error {
	if e.failed == nil {
		e.failed = e.tail.Drain(func(msg *nats.Msg, from api.Delivered) {
			e.came++
			e.heard = time.Now()
			r.keep(position{e.stream, from.Seq}, kept{msg, from, e})
		})
	}
	return e.failed
}

func (r *Reader) keep(at position, k kept) {
	r.bytes += size(k)
	for r.first < r.last && (r.last-r.first == maxRecords || r.bytes > maxBytes) {
		oldest := r.order[r.first%maxRecords]
		if old, ok := r.kept[oldest]; ok {
			r.drop(oldest, old)
		}
		r.first++
	}
	r.kept[at] = k
	r.order[r.last%maxRecords] = at
	r.last++
}

func (r *Reader) drop(at position, k kept) {
	delete(r.kept, at)
	r.bytes -= size(k)
}

func size(k kept) int { return len(k.msg.Data) + len(k.msg.Subject) }
