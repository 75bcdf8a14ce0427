package natsbus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
)

// GroupCommit says whether appends of different runs that wait at the same moment
// are gathered into one atomic batch, see [journal.Group].
type GroupCommit int

// The values of [Options].GroupCommit.
const (
	// GroupCommitAuto gathers where the server is seen to flush each append to the
	// disk, since only there it pays.
	GroupCommitAuto GroupCommit = iota
	GroupCommitOn
	GroupCommitOff
)

// GroupCommitFor returns the value for a server of which it is known whether it
// flushes each append before it acknowledges it.
func GroupCommitFor(syncAlways bool) GroupCommit {
	if syncAlways {
		return GroupCommitOn
	}
	return GroupCommitOff
}

// ParseGroupCommit reads auto, on or off.
func ParseGroupCommit(text string) (GroupCommit, error) {
	for i, name := range [...]string{"auto", "on", "off"} {
		if text == name {
			return GroupCommit(i), nil
		}
	}
	return 0, fmt.Errorf("%q is not known; use auto, on or off", text)
}

// appender appends to one shard.
type appender struct {
	bus   *Bus
	shard int
	group *journal.Group
	pace  pace
}

var _ journal.Appender = (*appender)(nil)

func newAppenders(b *Bus) []*appender {
	all := make([]*appender, b.shards)
	for shard := range all {
		a := &appender{bus: b, shard: shard}
		a.group = journal.NewGroup(a)
		all[shard] = a
	}
	if b.opts.GroupCommit == GroupCommitAuto {
		trip := roundTrip(b.conn)
		for _, a := range all {
			a.pace.begin(trip)
		}
	}
	return all
}

// grouping reports whether appends are gathered.
func (a *appender) grouping() bool {
	switch a.bus.opts.GroupCommit {
	case GroupCommitOn:
		return true
	case GroupCommitOff:
		return false
	}
	return a.pace.flushes()
}

// Batch stores the appends of several runs as one atomic batch.
func (a *appender) Batch(all []journal.Pending) (uint64, error) {
	b := a.bus
	ctx, refuse := context.WithCancelCause(context.Background())
	defer refuse(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, b.opts.RequestTimeout, nats.ErrTimeout)
	defer cancel()
	defer b.denied.watchBatch(func(subject string) bool { return publishes(all, subject) }, refuse)()
	d := b.newDoubt(time.Now().Add(b.opts.RequestTimeout))
	for {
		ack, err := b.sendBatch(ctx, d.until(), all)
		if err == nil && ack.Error == nil {
			_ = b.full.note(nil)
			return ack.Seq, b.checkAck(a.shard, ack)
		}
		if err == nil {
			err = ack.Error
		}
		if !d.opens(err) {
			return 0, a.batchFailed(err, len(all))
		}
		last, err := d.settle(ctx, err, all...)
		if !errors.Is(err, errAgain) {
			return last, err
		}
	}
}

// batchFailed says what it means that a batch was not acknowledged.
func (a *appender) batchFailed(err error, appends int) error {
	var refused *apiError
	switch {
	case errors.As(err, &refused):
		a.bus.log.Debug("a batch was refused", "shard", a.shard, "appends", appends, "reason", refused)
		return err
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, journal.ErrDenied), errors.Is(err, errUncommitted):
		return err
	}
	return join(journal.ErrInDoubt, err)
}

// publishes reports whether one of the appends has an entry on the subject.
func publishes(all []journal.Pending, subject string) bool {
	for _, p := range all {
		for _, e := range p.Entries {
			if e.Subject.String() == subject {
				return true
			}
		}
	}
	return false
}

// errUncommitted says that a batch broke off before its last message.
var errUncommitted = errors.New("the batch was not sent")

// sendBatch publishes the batch and waits for the answer to its last message. A
// publish copies the message, so there is one for all.
func (b *Bus) sendBatch(ctx context.Context, deadline time.Time, all []journal.Pending) (*pubAck, error) {
	left := 0
	for _, p := range all {
		left += len(p.Entries)
	}
	expect, filter, number := make([]string, 1), make([]string, 1), make([]string, 1)
	msg := &nats.Msg{Header: nats.Header{
		headerBatchID: {nuid.Next()}, headerBatchSeq: number, headerExpectSeq: expect, headerExpectSubject: filter,
	}}
	n := 0
	for _, p := range all {
		expect[0], filter[0] = strconv.FormatUint(p.Last, 10), p.Run.Filter()
		for _, e := range p.Entries {
			n++
			number[0] = strconv.Itoa(n)
			msg.Subject, msg.Data = e.Subject.String(), e.Body
			if n == left {
				msg.Header[headerBatchCommit] = []string{"1"}
				ack, err := b.commit(ctx, deadline, msg)
				if errors.Is(err, journal.ErrDenied) {
					number[0] = strconv.Itoa(n + 1)
					b.abandon(msg, all)
				}
				return ack, err
			}
			if err := b.conn.PublishMsg(msg); err != nil {
				return nil, join(errUncommitted, err)
			}
		}
	}
	return nil, errUncommitted
}

// abandon makes the server forget a batch whose last message was refused, by one
// that leaves a gap: there may be so many unfinished ones and no more.
func (b *Bus) abandon(msg *nats.Msg, all []journal.Pending) {
	delete(msg.Header, headerBatchCommit)
	refused := msg.Subject
	msg.Data = nil
	for _, p := range all {
		if msg.Subject = p.Entries[0].Subject.String(); msg.Subject != refused {
			_ = b.conn.PublishMsg(msg) // else the server does so in 10 s
			return
		}
	}
}
