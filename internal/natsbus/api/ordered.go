package api

import (
	"context"
	"errors"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	// orderedFrom is how many sequence numbers have to be ahead of a read for a consumer
	// of its own to pay: making and deleting one are requests, too.
	orderedFrom = 2 * PageRecords
	// orderedTries is how often a read makes one, in case that the first is lost.
	orderedTries = 3
	// ReaderPrefix begins the names of consumers to read with.
	ReaderPrefix = "read_"
)

// ordersFor reports whether so much of a stream is read as it lies that a consumer
// pays, and this user may make one as far as is known.
func (c *Client) ordersFor(q *Reading) bool {
	return q.All && q.End > q.After && q.End-q.After >= c.OrderedFrom && !c.Unordered.Load()
}

// ReadOrdered yields what a query asks for through the client library's ordered
// consumer, as far as that goes, and leaves the query behind the last record. The error is
// ErrStopped if nobody wants more; any other one only says why there was not more.
//
// That is about twice as fast as direct gets (see BenchmarkScan), which repeat in headers
// what a delivery has in its reply subject. But it needs the right to make consumers,
// which only the operator has. It is a short cut and proves nothing about the stream's
// end: direct gets go on from where it ends.
func (c *Client) ReadOrdered(ctx context.Context, q *Reading, yield func(journal.Record, error) bool) error {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	name := ReaderPrefix + nuid.Next()
	defer c.OnRefused(Prefix+"CONSUMER.CREATE."+q.Stream+"."+name+"_1", refuse)()
	defer c.OnRefused(Prefix+"CONSUMER.MSG.NEXT."+q.Stream+"."+name+"_1", refuse)()
	err := c.ordered(ctx, q, name, yield)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, journal.ErrDenied) {
		c.Unordered.Store(true)
		c.Log.Debug("the log is read by direct gets, since this user may not read it through a consumer", "reason", err)
	}
	return err
}

func (c *Client) ordered(ctx context.Context, q *Reading, name string, yield func(journal.Record, error) bool) error {
	consumer, err := c.JS.OrderedConsumer(ctx, q.Stream, jetstream.OrderedConsumerConfig{
		NamePrefix: name, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: q.After + 1, InactiveThreshold: time.Minute, MaxResetAttempts: 1,
	})
	if err != nil {
		return err
	}
	msgs, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(PageRecords, pageBytes))
	if err != nil {
		return err
	}
	defer func() {
		msgs.Stop()
		if info := consumer.CachedInfo(); info != nil {
			_ = c.NC.PublishRequest(Prefix+"CONSUMER.DELETE."+q.Stream+"."+info.Name, c.NC.NewInbox(), nil) // or the server lets it go
		}
	}()
	for q.After < q.End {
		msg, err := msgs.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		from, err := ParseReply(msg.Reply())
		if err != nil {
			return err
		}
		if !q.pass(journal.Record{Subject: msg.Subject(), Seq: from.Seq, Body: msg.Data(), Stored: from.Stored}, yield) {
			return ErrStopped
		}
		if from.Pending == 0 {
			return nil
		}
	}
	return nil
}
