package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// OneAnswer is the capacity of an inbox for single answers: several servers may answer
	// if none leads.
	OneAnswer = 16
	// maxIdle bounds the inboxes for single answers that are kept, maxIdlePages those for
	// pages up to the size keptSize.
	maxIdle      = 1024
	maxIdlePages = 64
	keptSize     = FirstRecords + pageSlack
)

// waiter's fail is called when a publish that concerns it is refused. If it asks, fail is also
// called when answers cannot come. fail must not block.
type waiter struct {
	concerns func(subject string) bool
	asks     bool
	fail     func(error)
}

// Inbox is a subscription for the answers to one request at a time. Each request has its
// own subject in it: a late or repeated answer is not taken for the answer to the next
// request. Requests that are answered once ([Client.ExchangeOnce]) share one.
type Inbox struct {
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
	// once is the subject of requests that are answered once at most, before the last answer
	// to one.
	once   string
	before []byte
	// Msg is an append's message, whose headers Expect and Filter are filled in for each.
	Msg            nats.Msg
	Expect, Filter []string

	mu sync.Mutex
	// waiting says that a request on the subject is in flight.
	waiting bool
	subject string
}

// Take returns an inbox for so many answers, for a request on the subject. It must be given
// back.
func (c *Client) Take(size int, subject string) (in *Inbox, err error) {
	c.mu.Lock()
	if c.deaf != nil {
		defer c.mu.Unlock()
		return nil, c.deaf
	}
	for in == nil && len(c.idle[size]) > 0 {
		last := len(c.idle[size]) - 1
		if kept := c.idle[size][last]; kept.sub.IsValid() && len(kept.failed) == 0 {
			in = kept
		} else {
			delete(c.waiters, &kept.waiter)
		}
		c.idle[size] = c.idle[size][:last]
	}
	c.mu.Unlock()
	if in == nil {
		if in, err = c.open(size); err != nil {
			return nil, err
		}
	}
	in.mu.Lock()
	in.waiting, in.subject = true, subject
	in.mu.Unlock()
	return in, nil
}

func (c *Client) open(size int) (*Inbox, error) {
	in := &Inbox{
		size: size, answers: make(chan *nats.Msg, size), failed: make(chan error, 1), timer: time.NewTimer(time.Hour),
		prefix: c.NC.NewInbox() + ".", Expect: make([]string, 1), Filter: make([]string, 1),
	}
	in.timer.Stop()
	in.once = in.prefix + "A" // no number in base 36
	in.Msg.Header = nats.Header{HeaderExpectSeq: in.Expect, HeaderExpectSubject: in.Filter}
	in.waiter = waiter{in.concerned, true, func(err error) {
		select {
		case in.failed <- err:
		default: // there is a reason already
		}
	}}
	sub, err := c.NC.ChanSubscribe(in.prefix+"*", in.answers)
	if err != nil {
		return nil, err
	}
	in.sub = sub
	sub.SetClosedHandler(func(string) { in.fail(nats.ErrConnectionClosed) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters[&in.waiter] = struct{}{}
	return in, nil
}

// Give takes an inbox back. It is used again if its request was answered.
func (c *Client) Give(in *Inbox, answered bool) {
	in.mu.Lock()
	in.waiting = false
	answered = answered && len(in.failed) == 0
	in.mu.Unlock()
	in.Msg.Data = nil
	most := maxIdlePages
	if in.size == OneAnswer {
		most = maxIdle
	}
	c.mu.Lock()
	if answered = answered && in.size <= keptSize && len(c.idle[in.size]) < most; answered {
		c.idle[in.size] = append(c.idle[in.size], in)
	} else {
		delete(c.waiters, &in.waiter)
	}
	c.mu.Unlock()
	if !answered {
		// It fails only when the connection is closed, and the subscription with it.
		_ = in.sub.Unsubscribe()
	}
}

// concerned reports whether the request in flight is one on the subject, or is any
// request if that is [AnySubject].
func (in *Inbox) concerned(subject string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.waiting && (subject == AnySubject || in.subject == subject)
}

// Send publishes a message that is answered in the inbox.
func (in *Inbox) Send(conn *nats.Conn, msg *nats.Msg) error {
	in.number++
	return in.send(conn, msg, in.prefix+strconv.FormatUint(in.number, 36))
}

func (in *Inbox) send(conn *nats.Conn, msg *nats.Msg, reply string) error {
	in.own, msg.Reply = reply, reply
	err := conn.PublishMsg(msg)
	msg.Reply = ""
	return err
}

// Next returns the next answer. It waits for limit at most.
func (in *Inbox) Next(ctx context.Context, limit time.Duration) (*nats.Msg, error) {
	in.timer.Reset(limit)
	defer in.timer.Stop()
	for {
		select {
		case msg := <-in.answers:
			if msg.Subject != in.own || in.own == in.once && in.repeated(msg.Data) {
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

// repeated reports whether the answer is the one before it once more. Two messages that were
// stored have two sequence numbers, so their acknowledgements differ.
func (in *Inbox) repeated(answer []byte) bool {
	if bytes.HasPrefix(answer, []byte(`{"stream"`)) && bytes.Equal(answer, in.before) {
		return true
	}
	in.before = append(in.before[:0], answer...)
	return false
}

// Exchange sends a message and waits in the inbox for its one answer.
func (c *Client) Exchange(ctx context.Context, in *Inbox, msg *nats.Msg, limit time.Duration) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := in.Send(c.NC, msg); err != nil {
		return nil, err
	}
	return in.Next(ctx, limit)
}

// ExchangeOnce is Exchange for a request that one server answers, and only once. An inbox is used
// again only after its answer, so all such requests of an inbox have one subject. The server then
// need not find out for each answer who hears it.
func (c *Client) ExchangeOnce(ctx context.Context, in *Inbox, msg *nats.Msg, limit time.Duration) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := in.send(c.NC, msg, in.once); err != nil {
		return nil, err
	}
	return in.Next(ctx, limit)
}

// AnySubject stands for all subjects.
const AnySubject = ""

// OnRefused calls fail when a publish on the subject is refused, until release.
func (c *Client) OnRefused(subject string, fail func(error)) (release func()) {
	return c.add(&waiter{func(s string) bool { return subject == AnySubject || s == subject }, false, fail})
}

// OnFailed is OnRefused for a request on many subjects. It is also called when answers cannot
// come.
func (c *Client) OnFailed(concerns func(subject string) bool, fail func(error)) (release func()) {
	return c.add(&waiter{func(s string) bool { return s == AnySubject || concerns(s) }, true, fail})
}

func (c *Client) add(w *waiter) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters[w] = struct{}{}
	if w.asks && c.deaf != nil {
		w.fail(c.deaf)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiters, w)
	}
}

// tell fails the waiters that the subject concerns, and reports whether there were any.
func (c *Client) tell(subject string, asking bool, err error) (found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.waiters {
		if (w.asks || !asking) && w.concerns(subject) {
			w.fail(err)
			found = true
		}
	}
	return found
}

// disconnected fails every request that is in flight.
func (c *Client) disconnected() {
	c.mu.Lock()
	c.deaf = nil
	c.mu.Unlock()
	c.tell(AnySubject, true, nats.ErrDisconnected)
}

// refused checks an error of the connection and reports whether it was a publish that
// somebody waited for, or a subscription without which no answers come.
func (c *Client) refused(err error) bool {
	inboxes := cmp.Or(c.NC.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, ".")) + "."
	if subject, ok := deniedSubject(err, `subscription to "`); ok && strings.HasPrefix(subject, inboxes) {
		deaf := &deafError{inbox: subject}
		c.mu.Lock()
		c.deaf = deaf
		c.mu.Unlock()
		return c.tell(AnySubject, true, deaf)
	}
	if subject, ok := deniedSubject(err, `publish to "`); ok {
		return c.tell(subject, false, &DeniedError{subject})
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
