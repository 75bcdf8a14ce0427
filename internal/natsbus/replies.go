package natsbus

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// maxAnswers is how many answers an inbox has room for: more than as many servers give.
const maxAnswers = 16

// maxIdleReplies is how many inboxes for answers are kept that no request uses.
const maxIdleReplies = 1024

// replies are the inboxes that answers to requests come to. Each serves one request
// at a time, and many one after another, so that a request takes neither a context of
// its own, nor a timer, nor a channel. Each request has a subject of its own in the
// inbox, since servers may answer twice: several where nobody leads, and an append
// again where a leader comes after another one. What comes for an earlier request is
// nobody's. An inbox whose answer did not come is given up.
type replies struct {
	conn *nats.Conn

	mu   sync.Mutex
	idle []*reply
	all  map[*reply]struct{}
}

// reply is one inbox.
type reply struct {
	sub     *nats.Subscription
	answers chan *nats.Msg
	// prefix is what its subjects begin with, number that of the last request, and
	// own the subject that it is answered on.
	prefix string
	number uint64
	own    string
	// failed gets why no answer will come.
	failed chan error
	timer  *time.Timer
	// msg is an append's message, whose headers are filled in for each.
	msg            nats.Msg
	expect, filter []string

	mu sync.Mutex
	// waiting says that a request is under way, on the subject or on those of the
	// entries.
	waiting bool
	subject string
	entries []journal.Entry
}

func newReplies(conn *nats.Conn) *replies {
	return &replies{conn: conn, all: make(map[*reply]struct{})}
}

// take returns an inbox for one request, on the subject or on those of the entries.
// It is to be given back.
func (r *replies) take(subject string, entries []journal.Entry) (*reply, error) {
	a := r.idleOne()
	if a == nil {
		var err error
		if a, err = r.open(); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	a.waiting, a.subject, a.entries = true, subject, entries
	a.mu.Unlock()
	return a, nil
}

func (r *replies) idleOne() *reply {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := len(r.idle); n > 0; n-- {
		a := r.idle[n-1]
		r.idle = r.idle[:n-1]
		if len(a.failed) == 0 {
			return a
		}
		delete(r.all, a) // its subscription is over
	}
	return nil
}

// newReply returns an inbox that nothing comes to yet.
func newReply() *reply {
	a := &reply{
		answers: make(chan *nats.Msg, maxAnswers), failed: make(chan error, 1), timer: time.NewTimer(time.Hour),
		expect: make([]string, 1), filter: make([]string, 1),
	}
	a.timer.Stop()
	a.msg.Header = nats.Header{headerExpectSeq: a.expect, headerExpectSubject: a.filter}
	return a
}

// open makes an inbox.
func (r *replies) open() (*reply, error) {
	a := newReply()
	a.prefix = r.conn.NewInbox() + "."
	sub, err := r.conn.ChanSubscribe(a.prefix+"*", a.answers)
	if err != nil {
		return nil, err
	}
	a.sub = sub
	sub.SetClosedHandler(func(string) { a.over(nats.ErrConnectionClosed) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[a] = struct{}{}
	return a, nil
}

// give takes an inbox back. It is used again if the one answer to its request came.
func (r *replies) give(a *reply, answered bool) {
	a.mu.Lock()
	a.waiting, a.entries = false, nil
	answered = answered && len(a.failed) == 0
	a.mu.Unlock()
	a.msg.Data = nil
	r.mu.Lock()
	if answered = answered && len(r.idle) < maxIdleReplies; answered {
		r.idle = append(r.idle, a)
	} else {
		delete(r.all, a)
	}
	r.mu.Unlock()
	if !answered {
		// It fails only when the connection is closed, and the subscription with it.
		_ = a.sub.Unsubscribe()
	}
}

// fail ends the wait of the requests on the subject, or of all if that is
// [anySubject], and reports whether there were any.
func (r *replies) fail(err error, subject string) (found bool) {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for a := range r.all {
		a.mu.Lock()
		if a.waiting && (subject == anySubject || a.on(subject)) {
			a.over(err)
			found = true
		}
		a.mu.Unlock()
	}
	return found
}

// on reports whether the request is one on the subject. The lock is held.
func (a *reply) on(subject string) bool {
	return a.subject == subject || slices.ContainsFunc(a.entries, func(e journal.Entry) bool { return e.Subject.String() == subject })
}

// over says that no answer will come. It does not block.
func (a *reply) over(err error) {
	select {
	case a.failed <- err:
	default: // there is a reason already
	}
}

// next returns the subject that the next request is to be answered on.
func (a *reply) next() string {
	a.number++
	a.own = a.prefix + strconv.FormatUint(a.number, 36)
	return a.own
}

// await returns the answer. It waits for limit at most.
func (a *reply) await(ctx context.Context, limit time.Duration) (*nats.Msg, error) {
	a.timer.Reset(limit)
	defer a.timer.Stop()
	for {
		select {
		case msg := <-a.answers:
			if msg.Subject != a.own {
				continue // to an earlier request
			}
			if len(msg.Data) == 0 && statusOf(msg) == "503" {
				return nil, nats.ErrNoResponders
			}
			return msg, nil
		case err := <-a.failed:
			return nil, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-a.timer.C:
			return nil, nats.ErrTimeout
		}
	}
}
