package natsbus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/groupcommit"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// GroupCommit says whether appends of different runs that wait at the same moment
// are gathered into one atomic batch, see package groupcommit.
type GroupCommit int

// The values of [Options].GroupCommit.
const (
	// GroupCommitAuto gathers if the log says that the server flushes each append to
	// its disk (see [InitOptions].Sync), since only there it pays.
	GroupCommitAuto GroupCommit = iota
	GroupCommitOn
	GroupCommitOff
)

// ParseGroupCommit reads auto, on or off.
func ParseGroupCommit(text string) (GroupCommit, error) {
	for i, name := range [...]string{"auto", "on", "off"} {
		if text == name {
			return GroupCommit(i), nil
		}
	}
	return 0, fmt.Errorf("%q is not known; use auto, on or off", text)
}

// leastBatch is how many waiting appends go as one batch. For each batch the server makes a
// folder with three files and flushes them, which takes as long as about fifteen appends,
// whatever a flush takes.
const leastBatch = 16

type appender struct {
	bus   *Bus
	shard int
	// place is the stream, as signs name it.
	place string
	group *groupcommit.Group
}

var _ groupcommit.Appender = (*appender)(nil)

func newAppenders(b *Bus) []*appender {
	all := make([]*appender, b.shards)
	for shard := range all {
		a := &appender{bus: b, shard: shard, place: placeOf(streamSubjects(shard))}
		a.group = groupcommit.New(a, leastBatch)
		all[shard] = a
	}
	return all
}

// grouping reports whether this process uses group commit, given what the log says about
// its server. If the log does not say it, the answer is no: on a server that does not flush,
// a batch costs several milliseconds.
func (b *Bus) grouping(sync Sync) bool {
	switch b.opts.GroupCommit {
	case GroupCommitOn:
		return true
	case GroupCommitOff:
		return false
	}
	if sync == SyncUnknown {
		b.Log.Debug("group commit is off: the log does not say whether its server flushes each append; run `moorebus init --monitor URL`, or use --group-commit")
	}
	return sync == SyncAlways
}

// Gather implements [ports.Archive].
func (b *Bus) Gather() { b.grouped.Store(true) }

// Batch stores the appends of several runs as one atomic batch.
func (a *appender) Batch(all []groupcommit.Pending, join func() []groupcommit.Pending) (uint64, error) {
	b := a.bus
	ctx, cancel := context.WithTimeoutCause(context.Background(), b.Timeout, nats.ErrTimeout)
	defer cancel()
	s := newBatchSender(b, all, join)
	d := b.newOutcome(time.Now().Add(b.Timeout))
	for {
		ack, err := b.sendBatch(ctx, d.until(), s)
		if err == nil && ack.Error == nil {
			_ = b.full.note(a.place, nil)
			meter.Add(b.opts.Meter, meter.Batches, float64(len(s.members())))
			return ack.Seq, b.checkAck(a.shard, ack)
		}
		if err == nil {
			err = ack.Error
		}
		if !d.opens(err) {
			// While there is no leader, no server answers the first message.
			if b.Replicas > 1 && errors.Is(err, errUncommitted) && errors.Is(err, nats.ErrTimeout) && d.again(ctx) {
				continue
			}
			return 0, a.batchFailed(err, len(s.members()))
		}
		last, err := d.resolve(ctx, err, s.members()...)
		if !errors.Is(err, errAgain) {
			return last, err
		}
	}
}

// batchFailed says what it means that a batch was not acknowledged.
func (a *appender) batchFailed(err error, appends int) error {
	var refused *api.Error
	switch {
	case errors.As(err, &refused):
		a.bus.Log.Debug("a batch was refused", "shard", a.shard, "appends", appends, "reason", refused)
		return err
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, journal.ErrDenied), errors.Is(err, errUncommitted):
		return err
	}
	return api.Join(journal.ErrUnknownOutcome, err)
}

// deniedSoon is how long the connection's handlers may take to say why a part of a batch
// did not arrive.
const deniedSoon = 200 * time.Millisecond

// errUncommitted says that a batch broke off before its last message.
var errUncommitted = errors.New("the batch was not sent")

// batchSender publishes one atomic batch. It has one message for all entries, since a
// publish copies it.
type batchSender struct {
	bus *Bus
	all atomic.Pointer[[]groupcommit.Pending]
	// opens says that the answer to the first message is awaited, so that others may join.
	opens bool
	// join is nil once it was called.
	join func() []groupcommit.Pending
	msg  nats.Msg
	// What the message's headers hold: the condition of an append, and how many
	// messages there were.
	expect, filter, number []string
	sent                   int
}

func newBatchSender(b *Bus, all []groupcommit.Pending, join func() []groupcommit.Pending) *batchSender {
	s := &batchSender{bus: b, opens: join != nil, join: join, expect: make([]string, 1), filter: make([]string, 1), number: make([]string, 1)}
	s.all.Store(&all)
	return s
}

// members are the appends that the batch has so far.
func (s *batchSender) members() []groupcommit.Pending { return *s.all.Load() }

func (s *batchSender) publishes(subject string) bool {
	for _, p := range s.members() {
		for _, e := range p.Entries {
			if e.Subject.String() == subject {
				return true
			}
		}
	}
	return false
}

// next fills the message in for the next entry.
func (s *batchSender) next(p groupcommit.Pending, e journal.Entry) {
	s.sent++
	s.expect[0], s.filter[0], s.number[0] = strconv.FormatUint(p.Last, 10), p.Run.Filter(), strconv.Itoa(s.sent)
	s.msg.Subject, s.msg.Data = e.Subject.String(), e.Body
}

// sendBatch sends a batch. It ends at once when the server refuses one of its subjects.
func (b *Bus) sendBatch(ctx context.Context, deadline time.Time, s *batchSender) (*pubAck, error) {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	defer b.OnFailed(s.publishes, refuse)()
	return s.send(ctx, deadline)
}

// send publishes the batch and waits for the answer to its last message. If others may join,
// it waits for the answer to the first message too: the server then opens the batch, which on
// one replica takes several flushes to the disk, and appends that come meanwhile join. It may
// be called again, and then sends another batch.
func (s *batchSender) send(ctx context.Context, deadline time.Time) (*pubAck, error) {
	// Who guesses the id of a batch can close it halfway, and everybody reads those of older ones.
	s.sent, s.msg.Header = 0, nats.Header{
		headerBatchID: {rand.Text()}, headerBatchSeq: s.number, api.HeaderExpectSeq: s.expect, api.HeaderExpectSubject: s.filter,
	}
	first := s.members()[0]
	s.next(first, first.Entries[0])
	if !s.opens {
		if err := s.bus.NC.PublishMsg(&s.msg); err != nil {
			return nil, api.Join(errUncommitted, err)
		}
	} else if err := s.open(ctx, deadline); err != nil {
		if errors.Is(err, nats.ErrTimeout) {
			s.abandon() // there may be a place all the same
		}
		return nil, err
	}
	if s.join != nil {
		all := s.join()
		s.all.Store(&all)
		s.join = nil
	}
	return s.finish(ctx, deadline)
}

// open publishes the first message and waits until the server has it.
func (s *batchSender) open(ctx context.Context, deadline time.Time) error {
	answer, err := s.bus.requestStored(ctx, time.Until(deadline), &s.msg)
	if err == nil && len(answer.Data) > 0 {
		var ack *pubAck
		if ack, err = s.bus.acknowledged(answer, nil); err == nil {
			if ack.Error == nil {
				return fmt.Errorf("%w: stream %q did not take a message as the first one of a batch: run `moorebus doctor`", journal.ErrUnknownOutcome, ack.Stream)
			}
			err = ack.Error
		}
	}
	if err != nil {
		return api.Join(errUncommitted, err)
	}
	return nil
}

// finish publishes the messages after the first one, and waits for the answer to the last one.
func (s *batchSender) finish(ctx context.Context, deadline time.Time) (*pubAck, error) {
	all, entries := s.members(), 0
	for _, p := range all {
		entries += len(p.Entries)
	}
	for i, p := range all {
		for j, e := range p.Entries {
			if i+j == 0 {
				continue // it is there
			}
			if s.next(p, e); s.sent == entries {
				return s.commit(ctx, deadline)
			}
			if err := s.bus.NC.PublishMsg(&s.msg); err != nil {
				return nil, api.Join(errUncommitted, err)
			}
		}
	}
	return nil, errUncommitted
}

// commit publishes the last message and waits for the answer.
func (s *batchSender) commit(ctx context.Context, deadline time.Time) (*pubAck, error) {
	s.msg.Header[headerBatchCommit] = []string{"1"}
	ack, err := s.bus.acknowledged(s.bus.requestStored(ctx, time.Until(deadline), &s.msg))
	if err == nil && ack.Error != nil && ack.Error.ErrCode == api.CodeBatchIncomplete {
		// If the server refused a part, the connection's handlers hear of it about now.
		if !retry.Wait(ctx, min(deniedSoon, time.Until(deadline))) {
			return nil, context.Cause(ctx)
		}
	}
	if errors.Is(err, journal.ErrDenied) {
		s.abandon()
	}
	return ack, err
}

// abandon makes the server forget an unfinished batch, by a message that leaves a gap: a
// server keeps only so many of them. The last message may have been refused.
func (s *batchSender) abandon() {
	delete(s.msg.Header, headerBatchCommit)
	refused := s.msg.Subject
	s.number[0], s.msg.Data = strconv.Itoa(s.sent+2), nil
	for _, p := range s.members() {
		if s.msg.Subject = p.Entries[0].Subject.String(); s.msg.Subject != refused {
			_ = s.bus.NC.PublishMsg(&s.msg) // else the server does so in 10 s
			return
		}
	}
}
