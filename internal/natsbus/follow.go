package natsbus

import (
	"context"
	"iter"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// A follower that the feed told of a record which the read did not bring looks
// again every lagPoll for lagTime: a replica that lags answered. What does not
// come then was never stored, anybody may have said so.
const (
	lagPoll = 25 * time.Millisecond
	lagTime = 2 * time.Second
)

// Follow yields a shard's records that match, for ever. The log is what is read;
// the feed only says when.
func (b *Bus) Follow(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := journal.CheckShard(b.shards, shard); err != nil {
			yield(journal.Record{}, err)
			return
		}
		f := follower{bus: b, shard: shard, subject: filter.Subject(shard), cursor: after, yield: yield}
		if err := f.run(ctx); err != nil {
			yield(journal.Record{}, err)
		}
	}
}

// follower is one call of Follow: everything up to cursor was yielded.
type follower struct {
	bus     *Bus
	shard   int
	subject string
	cursor  uint64
	// told is the highest sequence number that the feed spoke of, and until how
	// long it is looked for.
	told    uint64
	until   time.Time
	stopped bool
	yield   func(journal.Record, error) bool
}

func (f *follower) run(ctx context.Context) error {
	// The subscription stands before the first read, so nothing falls between.
	t, err := f.bus.newTap(events.FeedPrefix + f.subject)
	if err != nil {
		return err
	}
	defer t.close()
	f.catchUp(ctx)
	timer := time.NewTimer(f.pause())
	defer timer.Stop()
	for !f.stopped && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-timer.C:
			f.catchUp(ctx)
		case <-t.status:
			f.catchUp(ctx)
		case <-t.queue.wake:
			f.hear(ctx, t.queue)
		}
		timer.Reset(f.pause())
	}
	if f.stopped {
		return nil
	}
	return ctx.Err()
}

func (f *follower) pause() time.Duration {
	if f.told > f.cursor && time.Now().Before(f.until) {
		return lagPoll
	}
	f.told = f.cursor
	return f.bus.opts.FollowPoll
}

// hear reads if the feed speaks of a record that was not yielded, or may have
// lost one. However many it speaks of, they are read at once.
func (f *follower) hear(ctx context.Context, queue *feedQueue) {
	msgs, read := queue.take()
	for _, msg := range msgs {
		rec, err := feedRecord(msg)
		if err != nil || rec.Seq <= f.cursor {
			continue
		}
		read = true
		f.told, f.until = max(f.told, rec.Seq), time.Now().Add(lagTime)
	}
	if read {
		f.catchUp(ctx)
	}
}

// catchUp reads to the end. What goes wrong passes, and is tried again soon.
func (f *follower) catchUp(ctx context.Context) {
	for rec, err := range f.bus.RecordsOn(ctx, events.StreamName(f.shard), f.subject, f.cursor, 0) {
		if err != nil {
			if ctx.Err() == nil {
				f.bus.Log.Warn("cannot read the log, trying again", "shard", f.shard, "after", f.cursor, "error", err)
			}
			return
		}
		if !f.pass(rec) {
			return
		}
	}
}

func (f *follower) pass(rec journal.Record) bool {
	f.cursor = rec.Seq
	f.stopped = !f.yield(rec, nil)
	return !f.stopped
}
