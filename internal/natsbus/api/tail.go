package api

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// tailBatch is how many records a tail has asked for and not received, and so, with
// pageBytes, what it may hold. Below half of it, it asks for more.
const tailBatch = 1024

// Tail brings the records that are stored on a subject after it was opened, through a
// consumer of its own in the server's memory. They are as trustworthy as deliveries. They
// wait in a channel until [Tail.Drain], in the order in which the connection received them
// among all its messages. Except for Ended, a tail is used by one goroutine at a time.
type Tail struct {
	ordered
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
	return c.openTail(ctx, stream, jetstream.ConsumerConfig{FilterSubject: subject, DeliverPolicy: jetstream.DeliverNewPolicy})
}

// OpenTailAfter is [Client.OpenTail] for all records after a sequence number.
func (c *Client) OpenTailAfter(ctx context.Context, stream, subject string, seq uint64) (*Tail, error) {
	return c.openTail(ctx, stream, jetstream.ConsumerConfig{
		FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: seq + 1,
	})
}

func (c *Client) openTail(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (*Tail, error) {
	t := &Tail{
		ordered: c.newOrdered(stream, tailBatch), breaks: c.Breaks(), ended: make(chan struct{}), refused: make(chan error, 1),
	}
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

// ask keeps enough records asked for.
func (t *Tail) ask() error {
	t.asked = time.Now()
	return t.request(tailBatch)
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
			if err := t.receive(msg, take); err != nil {
				return err
			}
		default:
			if t.open > 0 && time.Since(t.asked) > orderedExpiry+t.client.Timeout {
				return nats.ErrTimeout // not even the end of a request came
			}
			if t.open > tailBatch/2 {
				return nil
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

// newOrdered returns a consumer to be created, which asks for so many records at once.
func (c *Client) newOrdered(stream string, batch uint64) ordered {
	o := ordered{
		client: c, stream: stream, name: ReaderPrefix + rand.Text(), inbox: c.NC.NewInbox() + ".", batch: batch,
		msgs: make(chan *nats.Msg, 2*batch+pageSlack),
	}
	o.mark = "." + o.stream + "." + o.name + "."
	return o
}

// create makes the consumer, which cfg says where to begin and what to leave out.
func (o *ordered) create(ctx context.Context, cfg jetstream.ConsumerConfig) error {
	cfg.Name, cfg.AckPolicy, cfg.MaxDeliver = o.name, jetstream.AckNonePolicy, 1
	cfg.InactiveThreshold, cfg.Replicas, cfg.MemoryStorage = time.Minute, 1, true
	endpoint := "CONSUMER.CREATE." + o.stream + "." + o.name
	if cfg.FilterSubject != "" {
		endpoint += "." + cfg.FilterSubject
	}
	err := o.client.Do(ctx, endpoint, func(ctx context.Context) error {
		_, err := o.client.JS.CreateConsumer(ctx, o.stream, cfg)
		return err
	})
	o.made = !errors.Is(err, journal.ErrDenied)
	return err
}

// remove deletes the consumer, if it may have been made. Otherwise the server lets it go
// when it is not used for a minute.
func (o *ordered) remove() {
	if o.made {
		_ = o.client.NC.PublishRequest(Prefix+"CONSUMER.DELETE."+o.stream+"."+o.name, o.inbox+"end", nil)
	}
}
