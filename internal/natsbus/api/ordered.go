package api

import (
	"context"
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
	// ReaderPrefix begins the names of consumers to read with.
	ReaderPrefix = "read_"
)

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
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	o := c.newOrdered(q.Stream, PageRecords)
	defer c.OnFailed(func(subject string) bool { return subject == o.pullSubject() }, fail)()
	err := o.read(ctx, q, yield)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, journal.ErrDenied) {
		c.Unordered.Store(true)
		c.Log.Debug("the log is read by direct gets, since this user may not read it through a consumer", "reason", err)
	}
	return err
}

// ordered is a consumer of a reader's own, pulled in order.
type ordered struct {
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
}

func (o *ordered) pullSubject() string {
	return Prefix + "CONSUMER.MSG.NEXT." + o.stream + "." + o.name
}

func (o *ordered) read(ctx context.Context, q *Reading, yield func(journal.Record, error) bool) error {
	conn := o.client.NC
	sub, err := conn.ChanSubscribe(o.inbox+"*", o.msgs)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is closed
	err = o.create(ctx, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: q.After + 1})
	defer o.remove()
	for err == nil && q.After < q.End && ctx.Err() == nil {
		var msg *nats.Msg
		if err = o.request(q.End - q.After); err != nil {
			return err
		}
		if msg, err = o.next(ctx); err != nil {
			return err
		}
		if o.controls(msg) {
			err = o.control(msg)
			continue
		}
		from, err := o.accept(msg)
		if err != nil {
			return err
		}
		if !q.pass(journal.Record{Subject: msg.Subject, Seq: from.Seq, Body: msg.Data, Stored: from.Stored}, yield) {
			return ErrStopped
		}
		if from.Pending == 0 {
			return nil
		}
	}
	return err
}

// controls reports whether a message is the server's. A stored message keeps its own
// subject; only the server publishes on the inbox.
func (o *ordered) controls(msg *nats.Msg) bool { return strings.HasPrefix(msg.Subject, o.inbox) }

// request asks for more, of the so many sequence numbers ahead, once half of what was
// asked for has come.
func (o *ordered) request(ahead uint64) error {
	if o.open > o.batch/2 || o.open >= ahead {
		return nil
	}
	batch := min(ahead-o.open, o.batch)
	body, err := json.Marshal(struct {
		Batch    uint64        `json:"batch"`
		MaxBytes int           `json:"max_bytes"`
		Expires  time.Duration `json:"expires"`
	}{batch, pageBytes, orderedExpiry})
	if err != nil {
		return err
	}
	o.requests++
	o.open += batch
	return o.client.NC.PublishRequest(o.pullSubject(), o.inbox+strconv.Itoa(o.requests), body)
}

func (o *ordered) next(ctx context.Context) (*nats.Msg, error) {
	select {
	case msg := <-o.msgs:
		return msg, nil
	default: // no timer is needed
	}
	timer := time.NewTimer(o.client.Timeout)
	defer timer.Stop()
	select {
	case msg := <-o.msgs:
		return msg, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-timer.C:
		return nil, nats.ErrTimeout
	}
}

// accept reads where a delivery is from. One of another consumer, or after a gap, is an
// error.
func (o *ordered) accept(msg *nats.Msg) (Delivered, error) {
	from, err := ParseReply(msg.Reply)
	if err != nil {
		return from, err
	}
	if !strings.Contains(msg.Reply, o.mark) || from.Number != o.delivered+1 {
		return from, ErrGap
	}
	o.delivered++
	o.empty = 0
	if o.open > 0 {
		o.open--
	}
	return from, nil
}

// control takes the end of a request, which may have brought less than it asked for.
func (o *ordered) control(msg *nats.Msg) error {
	status, reason := msg.Header.Get("Status"), msg.Header.Get("Description")
	o.empty++
	more := strings.EqualFold(reason, "Message Size Exceeds MaxBytes") || strings.EqualFold(reason, "Batch Completed")
	if status != "409" || !more || o.empty > orderedEmpty {
		return statusError(status, reason)
	}
	missing, err := strconv.ParseUint(msg.Header.Get("Nats-Pending-Messages"), 10, 64)
	if err != nil {
		return fmt.Errorf("the bus answers %s %s: %w", status, reason, err)
	}
	o.open -= min(o.open, missing)
	return nil
}
