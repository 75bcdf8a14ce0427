package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// orderedFrom is how many sequence numbers have to be ahead of a read for a consumer
	// of its own to pay: making and deleting one are requests, too.
	orderedFrom = 2 * PageRecords
	// orderedTries is how often a read makes one, in case that the first is lost.
	orderedTries = 3
	// orderedExpiry is how long a pull request stands, and orderedEmpty how many may end
	// one after another without a record.
	orderedExpiry = 30 * time.Second
	orderedEmpty  = 4
	// tailBatch is how many records a tail has asked for and not received, and so, with
	// pageBytes, what it may hold. Below half of it, it asks for more.
	tailBatch = 1024
	// ReaderPrefix begins the names of consumers to read with.
	ReaderPrefix = "read_"
)

// Tail brings the records that are stored on a subject after it was opened, or after some record,
// through a consumer of its own in the server's memory. They are as trustworthy as deliveries. They
// wait in a channel until [Tail.Drain], in the order in which the connection received them
// among all its messages. Except for Ended, a tail is used by one goroutine at a time.
type Tail struct {
	client              *Client
	stream, name, inbox string
	// batch is how many records are asked for at once.
	batch uint64
	// made says that the consumer may be there.
	made bool
	// mark is what the reply subjects of its deliveries contain.
	mark string
	msgs chan *nats.Msg
	// open is how many records were asked for and have not come, delivered the number that
	// the consumer gave the last one.
	open, delivered uint64
	// requests counts the pull requests, empty those in a row that brought nothing.
	requests, empty int

	sub    *nats.Subscription
	breaks uint64
	asked  time.Time
	ended  chan struct{}
	// refused gets why the server does not take the requests for records.
	refused chan error
	release func()
}

// OpenTail makes the consumer. The error is [journal.ErrDenied] if this user may not. The
// tail has to be closed.
func (c *Client) OpenTail(ctx context.Context, stream, subject string) (*Tail, error) {
	return c.openTail(ctx, stream, tailBatch, jetstream.ConsumerConfig{FilterSubject: subject, DeliverPolicy: jetstream.DeliverNewPolicy})
}

// OpenTailAfter is [Client.OpenTail] for all records after a sequence number.
func (c *Client) OpenTailAfter(ctx context.Context, stream, subject string, seq uint64) (*Tail, error) {
	return c.openTail(ctx, stream, tailBatch, jetstream.ConsumerConfig{
		FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: seq + 1,
	})
}

func (c *Client) openTail(ctx context.Context, stream string, batch uint64, cfg jetstream.ConsumerConfig) (*Tail, error) {
	t := &Tail{
		client: c, stream: stream, name: ReaderPrefix + rand.Text(), inbox: c.NC.NewInbox() + ".", batch: batch,
		msgs: make(chan *nats.Msg, 2*batch+pageSlack), breaks: c.Breaks(), ended: make(chan struct{}), refused: make(chan error, 1),
	}
	t.mark = "." + stream + "." + t.name + "."
	t.release = c.OnFailed(func(subject string) bool { return subject == t.pullSubject() }, func(err error) {
		select {
		case t.refused <- err:
		default:
		}
	})
	var err error
	if t.sub, err = c.NC.ChanSubscribe(t.inbox+"*", t.msgs); err != nil {
		t.release()
		return nil, err
	}
	t.sub.SetClosedHandler(func(string) { close(t.ended) })
	if err = t.create(ctx, cfg); err == nil {
		err = t.ask()
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Ended is closed when the tail or its connection is.
func (t *Tail) Ended() <-chan struct{} { return t.ended }

// Drain hands the records that have come to take, and asks for more. It does not block.
// After an error the tail brings nothing more.
func (t *Tail) Drain(take func(*nats.Msg, Delivered)) error {
	if t.client.Breaks() != t.breaks {
		return nats.ErrDisconnected // what was asked for is lost
	}
	for {
		select {
		case msg := <-t.msgs:
			err := t.receive(msg, take)
			if err == nil {
				err = t.ask()
			}
			if err != nil {
				return err
			}
		default:
			if t.open > 0 && time.Since(t.asked) > orderedExpiry+t.client.Timeout {
				return nats.ErrTimeout // not even the end of a request came
			}
			return t.ask()
		}
	}
}

// Next waits for a record, for limit at most, and then does what [Tail.Drain] does.
func (t *Tail) Next(ctx context.Context, limit time.Duration, take func(*nats.Msg, Delivered)) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case msg := <-t.msgs:
		if err := t.receive(msg, take); err != nil {
			return err
		}
	case err := <-t.refused:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	return t.Drain(take)
}

func (t *Tail) receive(msg *nats.Msg, take func(*nats.Msg, Delivered)) error {
	if !t.controls(msg) {
		from, err := t.accept(msg)
		if err == nil {
			take(msg, from)
		}
		return err
	}
	if msg.Header.Get("Status") == "408" { // the request expired
		missing, err := strconv.ParseUint(msg.Header.Get("Nats-Pending-Messages"), 10, 64)
		t.open -= min(t.open, missing)
		t.asked = time.Now()
		return err
	}
	return t.control(msg)
}

// Close ends the tail and removes its consumer.
func (t *Tail) Close() {
	t.release()
	t.remove()
	_ = t.sub.Unsubscribe() // fails only when the connection is closed
}

// create makes the consumer, which cfg says where to begin and what to leave out.
func (t *Tail) create(ctx context.Context, cfg jetstream.ConsumerConfig) error {
	cfg.Name, cfg.AckPolicy, cfg.MaxDeliver = t.name, jetstream.AckNonePolicy, 1
	cfg.InactiveThreshold, cfg.Replicas, cfg.MemoryStorage = time.Minute, 1, true
	endpoint := "CONSUMER.CREATE." + t.stream + "." + t.name
	if cfg.FilterSubject != "" {
		endpoint += "." + cfg.FilterSubject
	}
	err := t.client.Do(ctx, endpoint, func(ctx context.Context) error {
		_, err := t.client.JS.CreateConsumer(ctx, t.stream, cfg)
		return err
	})
	t.made = !errors.Is(err, journal.ErrDenied)
	return err
}

// remove deletes the consumer, if it may have been made. Otherwise the server lets it go
// when it is not used for a minute.
func (t *Tail) remove() {
	if t.made {
		_ = t.client.NC.PublishRequest(Prefix+"CONSUMER.DELETE."+t.stream+"."+t.name, t.inbox+"end", nil)
	}
}

func (t *Tail) pullSubject() string {
	return Prefix + "CONSUMER.MSG.NEXT." + t.stream + "." + t.name
}

// controls reports whether a message is the server's. A stored message keeps its own
// subject; only the server publishes on the inbox.
func (t *Tail) controls(msg *nats.Msg) bool { return strings.HasPrefix(msg.Subject, t.inbox) }

// ask asks for more, once half of what was asked for has come.
func (t *Tail) ask() error {
	if t.open > t.batch/2 {
		return nil
	}
	body, err := json.Marshal(struct {
		Batch    uint64        `json:"batch"`
		MaxBytes int           `json:"max_bytes"`
		Expires  time.Duration `json:"expires"`
	}{t.batch - t.open, pageBytes, orderedExpiry})
	if err != nil {
		return err
	}
	t.asked, t.open = time.Now(), t.batch
	t.requests++
	return t.client.NC.PublishRequest(t.pullSubject(), t.inbox+strconv.Itoa(t.requests), body)
}

// accept reads where a delivery is from. One of another consumer, or after a gap, is an
// error.
func (t *Tail) accept(msg *nats.Msg) (Delivered, error) {
	from, err := ParseReply(msg.Reply)
	if err != nil {
		return from, err
	}
	if !strings.Contains(msg.Reply, t.mark) || from.Number != t.delivered+1 {
		return from, ErrGap
	}
	t.delivered++
	t.empty = 0
	if t.open > 0 {
		t.open--
	}
	return from, nil
}

// control takes the end of a request, which may have brought less than it asked for.
func (t *Tail) control(msg *nats.Msg) error {
	status, reason := msg.Header.Get("Status"), msg.Header.Get("Description")
	t.empty++
	more := strings.EqualFold(reason, "Message Size Exceeds MaxBytes") || strings.EqualFold(reason, "Batch Completed")
	if status != "409" || !more || t.empty > orderedEmpty {
		return statusError(status, reason)
	}
	missing, err := strconv.ParseUint(msg.Header.Get("Nats-Pending-Messages"), 10, 64)
	if err != nil {
		return fmt.Errorf("the bus answers %s %s: %w", status, reason, err)
	}
	t.open -= min(t.open, missing)
	return nil
}

// ordersFor reports whether so much of a stream is read as it lies that a consumer
// pays, and this user may make one as far as is known.
func (c *Client) ordersFor(q *Reading) bool {
	return q.All && q.End > q.After && q.End-q.After >= c.OrderedFrom && !c.Unordered.Load()
}

// ReadOrdered yields what a query asks for through its own consumer in the server's
// memory, as far as that goes, and leaves the query behind the last record. The error is
// ErrStopped if nobody wants more; any other one only says why there was not more.
//
// That is about twice as fast as direct gets (see BenchmarkScan), which repeat in headers
// what a delivery has in its reply subject. But it needs the right to make consumers,
// which only the operator has. It is a short cut and proves nothing about the stream's
// end: what it brings has no gaps, whatever goes wrong ends it, and direct gets continue from
// there.
//
// The client library's ordered consumer is no choice. It takes a stored message without a
// body and with a header Status, which any publisher can make, for a control message,
// drops it, and then makes consumers without end to get it (TestForgedStatus).
func (c *Client) ReadOrdered(ctx context.Context, q *Reading, yield func(journal.Record, error) bool) error {
	err := c.readTail(ctx, q, yield)
	if errors.Is(err, journal.ErrDenied) {
		c.Unordered.Store(true)
		c.Log.Debug("the log is read by direct gets, since this user may not read it through a consumer", "reason", err)
	}
	return err
}

func (c *Client) readTail(ctx context.Context, q *Reading, yield func(journal.Record, error) bool) error {
	t, err := c.openTail(ctx, q.Stream, PageRecords, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: q.After + 1})
	if err != nil {
		return err
	}
	defer t.Close()
	var stopped error
	last := false
	for stopped == nil && !last && q.After < q.End && ctx.Err() == nil {
		before, began := q.After, time.Now()
		err := t.Next(ctx, c.Timeout, func(msg *nats.Msg, from Delivered) {
			if stopped != nil {
				return
			}
			if !q.pass(journal.Record{Subject: msg.Subject, Seq: from.Seq, Body: msg.Data, Stored: from.Stored}, yield) {
				stopped = ErrStopped
			}
			last = from.Pending == 0
		})
		switch {
		case err != nil && stopped == nil:
			return err
		case q.After == before && time.Since(began) >= c.Timeout:
			return nats.ErrTimeout
		}
	}
	return stopped
}
