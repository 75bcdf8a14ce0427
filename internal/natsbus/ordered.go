package natsbus

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
	"github.com/nats-io/nuid"
)

const (
	// orderedFrom is how many sequence numbers have to be ahead of a read for a consumer
	// of its own to pay: making and deleting one are requests, too.
	orderedFrom = 2 * pageRecords
	// orderedTries is how often a read makes one, in case that the first is lost.
	orderedTries = 3
	// orderedExpiry is how long a pull stands, orderedUnused how long the server keeps a
	// consumer that nobody asks.
	orderedExpiry, orderedUnused = 30 * time.Second, time.Minute
	// orderedBarren is how many pulls may end one after another without a record.
	orderedBarren = 4
)

// orderedPull asks a consumer for records.
type orderedPull struct {
	Batch    uint64        `json:"batch"`
	MaxBytes int           `json:"max_bytes"`
	Expires  time.Duration `json:"expires"`
}

// ordered reads a stream as it lies through an ephemeral consumer in the server's
// memory, which takes no acknowledgements. That is about twice as fast as direct
// gets, which repeat in headers what a delivery has in its reply subject; but it
// needs the right to make consumers, which only the operator has.
//
// It is a short cut and proves nothing about the stream's end: what it brings is a
// part without gaps, and whatever goes wrong ends it. Direct gets go on from there.
type ordered struct {
	bus          *Bus
	stream, name string
	inbox        string
	sub          *nats.Subscription
	msgs         chan *nats.Msg
	failed       chan error
	back         chan nats.Status
	release      func()
	// made says that there may be a consumer to delete.
	made bool

	// prefix is what stands before the numbers in a delivery's reply subject.
	prefix string
	// due is how many records were asked for and have not come; delivered is the
	// number that the consumer gave the last one.
	due, delivered uint64
	// pulls counts the requests, barren those that ended since the last record.
	pulls, barren int
}

// ordersFor reports whether so much of a stream is read as it lies that a consumer
// pays, and this user may make one as far as is known.
func (b *Bus) ordersFor(q *query) bool {
	return q.all && q.end > q.after && q.end-q.after >= b.orderedLeast && !b.unordered.Load()
}

// readOrdered yields what a query asks for through a consumer, as far as that goes,
// and leaves the query behind the last record. The error is errStopped if nobody wants
// more; any other one only says why there was not more.
func (b *Bus) readOrdered(ctx context.Context, q *query, yield func(journal.Record, error) bool) (err error) {
	defer func() {
		if errors.Is(err, journal.ErrDenied) {
			b.unordered.Store(true)
			b.log.Debug("the log is read by direct gets, since this user may not read it through a consumer", "reason", err)
		}
	}()
	o, err := b.newOrdered(ctx, q)
	if err != nil {
		return err
	}
	defer o.close()
	for q.after < q.end && ctx.Err() == nil {
		if err := o.pull(q.end - q.after); err != nil {
			return err
		}
		msg, err := o.next(ctx)
		if err != nil {
			return err
		}
		rec, pending, err := o.take(msg)
		if err != nil {
			return err
		}
		if rec.Seq == 0 {
			continue
		}
		if !q.pass(rec, yield) {
			return errStopped
		}
		if pending == 0 {
			return nil
		}
	}
	return ctx.Err()
}

// newOrdered makes the consumer for what lies behind q.after.
func (b *Bus) newOrdered(ctx context.Context, q *query) (*ordered, error) {
	o := &ordered{
		bus: b, stream: q.stream, name: readerName(), inbox: b.conn.NewInbox() + ".",
		msgs: make(chan *nats.Msg, 2*pageRecords+pageSlack), failed: make(chan error, 1),
	}
	sub, err := b.conn.ChanSubscribe(o.inbox+"*", o.msgs)
	if err != nil {
		return nil, err
	}
	o.sub, o.back = sub, b.conn.StatusChanged(nats.CONNECTED)
	o.release = b.denied.watchRequest(o.pullSubject(), func(err error) {
		select {
		case o.failed <- err:
		default:
		}
	})
	err = o.create(ctx, q.after+1)
	if o.made = !errors.Is(err, journal.ErrDenied); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// readerName is short, since it comes with each delivery.
func readerName() string { return readerPrefix + nuid.Next()[nuidShared:] }

const (
	readerPrefix = "read_"
	// nuidShared is how much of their ids all of a process have in common.
	nuidShared = 12
)

func (o *ordered) pullSubject() string {
	return apiPrefix + "CONSUMER.MSG.NEXT." + o.stream + "." + o.name
}

func (o *ordered) create(ctx context.Context, from uint64) error {
	body, err := json.Marshal(struct {
		Stream string                   `json:"stream_name"`
		Config jetstream.ConsumerConfig `json:"config"`
		Action string                   `json:"action"`
	}{o.stream, jetstream.ConsumerConfig{
		Name: o.name, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, AckPolicy: jetstream.AckNonePolicy,
		MaxDeliver: 1, InactiveThreshold: orderedUnused, Replicas: 1, MemoryStorage: true,
	}, "create"})
	if err != nil {
		return err
	}
	var answer consumerInfo
	if err := o.bus.ask(ctx, "CONSUMER.CREATE."+o.stream+"."+o.name, body, &answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return classify(answer.Error)
	}
	return nil
}

// close deletes the consumer, and does not wait for that: one that is not deleted is
// let go by the server.
func (o *ordered) close() {
	o.release()
	o.bus.conn.RemoveStatusListener(o.back)
	// Both fail only when the connection is closed.
	_ = o.sub.Unsubscribe()
	if !o.made {
		return
	}
	_ = o.bus.conn.PublishRequest(apiPrefix+"CONSUMER.DELETE."+o.stream+"."+o.name, o.inbox+"end", nil)
}

// pull asks for more, of the so many sequence numbers ahead, if half of what was
// asked for has come.
func (o *ordered) pull(ahead uint64) error {
	if o.due > pageRecords/2 || o.due >= ahead {
		return nil
	}
	batch := min(ahead-o.due, pageRecords)
	body, err := json.Marshal(orderedPull{batch, pageBytes, orderedExpiry})
	if err != nil {
		return err
	}
	o.pulls++
	o.due += batch
	return o.bus.conn.PublishRequest(o.pullSubject(), o.inbox+strconv.Itoa(o.pulls), body)
}

// next returns what the server sends next.
func (o *ordered) next(ctx context.Context) (*nats.Msg, error) {
	select {
	case msg := <-o.msgs:
		return msg, nil
	default:
	}
	timer := time.NewTimer(o.bus.opts.RequestTimeout)
	defer timer.Stop()
	select {
	case msg := <-o.msgs:
		return msg, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case err := <-o.failed:
		return nil, err
	case <-o.back:
		return nil, errGap
	case <-timer.C:
		return nil, nats.ErrTimeout
	}
}

// take reads a delivery, and how many the consumer has after it; or the end of a
// pull, which is no record.
func (o *ordered) take(msg *nats.Msg) (rec journal.Record, pending uint64, err error) {
	if strings.HasPrefix(msg.Subject, o.inbox) {
		return rec, 0, o.ended(msg)
	}
	if o.prefix == "" {
		mark := "." + o.stream + "." + o.name + "."
		if before, _, found := strings.Cut(msg.Reply, mark); found {
			o.prefix = before + mark
		}
	}
	numbers, ok := replyNumbers(msg.Reply, o.prefix)
	if !ok {
		return rec, 0, fmt.Errorf("reply subject %q is not that of a delivery", msg.Reply)
	}
	if numbers[2] != o.delivered+1 {
		return rec, 0, errGap
	}
	o.delivered++
	o.barren = 0
	if o.due > 0 {
		o.due--
	}
	return journal.Record{Subject: msg.Subject, Seq: numbers[1], Body: msg.Data, Stored: time.Unix(0, int64(numbers[3])).UTC()}, numbers[4], nil
}

// replyNumbers reads what follows the prefix in a delivery's reply subject: how often
// it was delivered, its sequence number, the consumer's, its time in nanoseconds, and
// how many are pending.
func replyNumbers(reply, prefix string) (numbers [5]uint64, ok bool) {
	if prefix == "" || !strings.HasPrefix(reply, prefix) {
		return numbers, false
	}
	at := len(prefix)
	for i := range numbers {
		began := at
		for ; at < len(reply) && '0' <= reply[at] && reply[at] <= '9'; at++ {
			numbers[i] = numbers[i]*10 + uint64(reply[at]-'0')
		}
		if at == began || at-began > 19 || at < len(reply) && reply[at] != '.' || at == len(reply) && i < len(numbers)-1 {
			return numbers, false
		}
		at++
	}
	return numbers, true
}

// ended takes the end of a pull, which may have brought less than it asked for. One
// that has brought all has ended if the server says so or not.
func (o *ordered) ended(msg *nats.Msg) error {
	status, reason := msg.Header.Get("Status"), msg.Header.Get("Description")
	o.barren++
	full := strings.EqualFold(reason, "Message Size Exceeds MaxBytes") || strings.EqualFold(reason, "Batch Completed")
	if status != "409" || !full || o.barren > orderedBarren {
		return fmt.Errorf("the bus answers %s %s", status, reason)
	}
	missing, err := strconv.ParseUint(msg.Header.Get("Nats-Pending-Messages"), 10, 64)
	if err != nil {
		return fmt.Errorf("the bus answers %s %s: %w", status, reason, err)
	}
	o.due -= min(o.due, missing)
	return nil
}
