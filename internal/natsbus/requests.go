package natsbus

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// oneAnswer is the room of an inbox for single answers: several servers may answer
	// where nobody leads.
	oneAnswer = 16
	// maxIdle bounds the inboxes of a size that are kept, and keptSize their size.
	maxIdle  = 1024
	keptSize = firstRecords + pageSlack
)

// requests sends requests over a connection and waits for their answers.
//
// It does not use the client library's requests for two reasons. A refused publish and a
// broken connection are told to the connection's handlers alone, so that a request of the
// library would time out; here it fails at once. And an inbox is used for one request
// after another, which spares each append a context, a timer and a channel (219
// allocations for each transition became 188, see BenchmarkAppend) and the server the
// search for new ways.
type requests struct {
	conn *nats.Conn

	mu   sync.Mutex
	idle map[int][]*inbox
	// waiters are told of refused publishes.
	waiters map[*waiter]struct{}
	// deaf is why no answer can come, while the connection lasts.
	deaf error
}

// waiter is told by fail when a publish that concerns it is refused. One that asks is also
// told when answers cannot come. fail must not block.
type waiter struct {
	concerns func(subject string) bool
	asks     bool
	fail     func(error)
}

// inbox is a subscription for the answers to one request at a time. Each request has a
// subject of its own in it: what comes late or twice is not taken for the answer to the
// next one.
type inbox struct {
	waiter
	sub     *nats.Subscription
	size    int
	answers chan *nats.Msg
	failed  chan error
	timer   *time.Timer
	// prefix is what its subjects begin with, number that of the last request, and own
	// the subject that is answered on.
	prefix string
	number uint64
	own    string
	// msg is an append's message, whose headers are filled in for each.
	msg            nats.Msg
	expect, filter []string

	mu sync.Mutex
	// waiting says that a request is under way, on the subject or on those of the entries.
	waiting bool
	subject string
	entries []journal.Entry
}

func newRequests(conn *nats.Conn) *requests {
	return &requests{conn: conn, idle: map[int][]*inbox{}, waiters: map[*waiter]struct{}{}}
}

// take returns an inbox with room for so many answers, for a request on the subject or on
// those of the entries. It has to be given back.
func (r *requests) take(size int, subject string, entries []journal.Entry) (in *inbox, err error) {
	r.mu.Lock()
	if r.deaf != nil {
		defer r.mu.Unlock()
		return nil, r.deaf
	}
	for in == nil && len(r.idle[size]) > 0 {
		last := len(r.idle[size]) - 1
		if kept := r.idle[size][last]; kept.sub.IsValid() && len(kept.failed) == 0 {
			in = kept
		} else {
			delete(r.waiters, &kept.waiter)
		}
		r.idle[size] = r.idle[size][:last]
	}
	r.mu.Unlock()
	if in == nil {
		if in, err = r.open(size); err != nil {
			return nil, err
		}
	}
	in.mu.Lock()
	in.waiting, in.subject, in.entries = true, subject, entries
	in.mu.Unlock()
	return in, nil
}

func (r *requests) open(size int) (*inbox, error) {
	in := &inbox{
		size: size, answers: make(chan *nats.Msg, size), failed: make(chan error, 1), timer: time.NewTimer(time.Hour),
		prefix: r.conn.NewInbox() + ".", expect: make([]string, 1), filter: make([]string, 1),
	}
	in.timer.Stop()
	in.msg.Header = nats.Header{headerExpectSeq: in.expect, headerExpectSubject: in.filter}
	in.waiter = waiter{in.concerned, true, func(err error) {
		select {
		case in.failed <- err:
		default: // there is a reason already
		}
	}}
	sub, err := r.conn.ChanSubscribe(in.prefix+"*", in.answers)
	if err != nil {
		return nil, err
	}
	in.sub = sub
	sub.SetClosedHandler(func(string) { in.fail(nats.ErrConnectionClosed) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiters[&in.waiter] = struct{}{}
	return in, nil
}

// give takes an inbox back. It is used again if its request was answered.
func (r *requests) give(in *inbox, answered bool) {
	in.mu.Lock()
	in.waiting, in.entries = false, nil
	answered = answered && len(in.failed) == 0
	in.mu.Unlock()
	in.msg.Data = nil
	r.mu.Lock()
	if answered = answered && in.size <= keptSize && len(r.idle[in.size]) < maxIdle; answered {
		r.idle[in.size] = append(r.idle[in.size], in)
	} else {
		delete(r.waiters, &in.waiter)
	}
	r.mu.Unlock()
	if !answered {
		// It fails only when the connection is closed, and the subscription with it.
		_ = in.sub.Unsubscribe()
	}
}

// concerned reports whether the request under way is one on the subject, or is any
// request if that is [anySubject].
func (in *inbox) concerned(subject string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.waiting && (subject == anySubject || in.subject == subject ||
		slices.ContainsFunc(in.entries, func(e journal.Entry) bool { return e.Subject.String() == subject }))
}

// send publishes a message that is answered in the inbox.
func (in *inbox) send(conn *nats.Conn, msg *nats.Msg) error {
	in.number++
	in.own = in.prefix + strconv.FormatUint(in.number, 36)
	msg.Reply = in.own
	err := conn.PublishMsg(msg)
	msg.Reply = ""
	return err
}

// next returns the next answer. It waits for limit at most.
func (in *inbox) next(ctx context.Context, limit time.Duration) (*nats.Msg, error) {
	in.timer.Reset(limit)
	defer in.timer.Stop()
	for {
		select {
		case msg := <-in.answers:
			if msg.Subject != in.own {
				continue // to an earlier request
			}
			if len(msg.Data) == 0 && statusOf(msg) == "503" {
				return nil, nats.ErrNoResponders
			}
			return msg, nil
		case err := <-in.failed:
			return nil, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-in.timer.C:
			return nil, nats.ErrTimeout
		}
	}
}

// exchange sends a message and waits in the inbox for its one answer.
func (r *requests) exchange(ctx context.Context, in *inbox, msg *nats.Msg, limit time.Duration) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := in.send(r.conn, msg); err != nil {
		return nil, err
	}
	return in.next(ctx, limit)
}

// anySubject stands for all subjects.
const anySubject = ""

// watch calls fail when a publish on the subject is refused, until release.
func (r *requests) watch(subject string, fail func(error)) (release func()) {
	return r.add(&waiter{func(s string) bool { return subject == anySubject || s == subject }, false, fail})
}

// watchRequest is watch for a request on many subjects, which is also told when answers
// cannot come.
func (r *requests) watchRequest(concerns func(subject string) bool, fail func(error)) (release func()) {
	return r.add(&waiter{func(s string) bool { return s == anySubject || concerns(s) }, true, fail})
}

func (r *requests) add(w *waiter) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiters[w] = struct{}{}
	if w.asks && r.deaf != nil {
		w.fail(r.deaf)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiters, w)
	}
}

// tell fails the waiters that the subject concerns, and reports whether there were any.
func (r *requests) tell(subject string, asking bool, err error) (found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.waiters {
		if (w.asks || !asking) && w.concerns(subject) {
			w.fail(err)
			found = true
		}
	}
	return found
}

// disconnected fails every request that is under way.
func (r *requests) disconnected() {
	r.mu.Lock()
	r.deaf = nil
	r.mu.Unlock()
	r.tell(anySubject, true, nats.ErrDisconnected)
}

// refused looks at an error of the connection and reports whether it was a publish that
// somebody waited for, or a subscription without which no answers come.
func (r *requests) refused(err error) bool {
	inboxes := cmp.Or(r.conn.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, ".")) + "."
	if subject, ok := deniedSubject(err, `subscription to "`); ok && strings.HasPrefix(subject, inboxes) {
		deaf := &deafError{inbox: subject}
		r.mu.Lock()
		r.deaf = deaf
		r.mu.Unlock()
		return r.tell(anySubject, true, deaf)
	}
	if subject, ok := deniedSubject(err, `publish to "`); ok {
		return r.tell(subject, false, &deniedError{subject: subject})
	}
	return false
}

// deniedSubject takes the subject that follows the mark out of the server's text,
// which is all that the client library passes on.
func deniedSubject(err error, mark string) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	text := err.Error()
	at := strings.Index(strings.ToLower(text), mark)
	if at < 0 {
		return "", false
	}
	subject, _, ok = strings.Cut(text[at+len(mark):], `"`)
	return subject, ok
}
