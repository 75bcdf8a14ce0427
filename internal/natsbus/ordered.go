package natsbus

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
	orderedFrom = 2 * pageRecords
	// orderedTries is how often a read makes one, in case that the first is lost.
	orderedTries = 3
	// readerPrefix begins the names of consumers to read with.
	readerPrefix = "read_"
)

// ordersFor reports whether so much of a stream is read as it lies that a consumer
// pays, and this user may make one as far as is known.
func (b *Bus) ordersFor(q *query) bool {
	return q.all && q.end > q.after && q.end-q.after >= b.orderedLeast && !b.unordered.Load()
}

// readOrdered yields what a query asks for through the client library's ordered
// consumer, as far as that goes, and leaves the query behind the last record. The error is
// errStopped if nobody wants more; any other one only says why there was not more.
//
// That is about twice as fast as direct gets (see BenchmarkScan), which repeat in headers
// what a delivery has in its reply subject. But it needs the right to make consumers,
// which only the operator has. It is a short cut and proves nothing about the stream's
// end: direct gets go on from where it ends.
func (b *Bus) readOrdered(ctx context.Context, q *query, yield func(journal.Record, error) bool) error {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	name := readerPrefix + nuid.Next()
	defer b.requests.watch(apiPrefix+"CONSUMER.CREATE."+q.stream+"."+name+"_1", refuse)()
	defer b.requests.watch(apiPrefix+"CONSUMER.MSG.NEXT."+q.stream+"."+name+"_1", refuse)()
	err := b.ordered(ctx, q, name, yield)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, journal.ErrDenied) {
		b.unordered.Store(true)
		b.log.Debug("the log is read by direct gets, since this user may not read it through a consumer", "reason", err)
	}
	return err
}

func (b *Bus) ordered(ctx context.Context, q *query, name string, yield func(journal.Record, error) bool) error {
	consumer, err := b.js.OrderedConsumer(ctx, q.stream, jetstream.OrderedConsumerConfig{
		NamePrefix: name, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: q.after + 1, InactiveThreshold: time.Minute, MaxResetAttempts: 1,
	})
	if err != nil {
		return err
	}
	msgs, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(pageRecords, pageBytes))
	if err != nil {
		return err
	}
	defer func() {
		msgs.Stop()
		if info := consumer.CachedInfo(); info != nil {
			_ = b.conn.PublishRequest(apiPrefix+"CONSUMER.DELETE."+q.stream+"."+info.Name, b.conn.NewInbox(), nil) // or the server lets it go
		}
	}()
	for q.after < q.end {
		msg, err := msgs.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		from, err := parseReply(msg.Reply())
		if err != nil {
			return err
		}
		if !q.pass(journal.Record{Subject: msg.Subject(), Seq: from.seq, Body: msg.Data(), Stored: from.stored}, yield) {
			return errStopped
		}
		if from.pending == 0 {
			return nil
		}
	}
	return nil
}
