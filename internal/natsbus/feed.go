package natsbus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/journalcheck"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// tap is a live subscription that feeds a queue and marks it when the
// connection came back or the subscription overflowed.
type tap struct {
	bus    *Bus
	queue  *feedQueue
	sub    *nats.Subscription
	status chan nats.Status
	// release ends the watch for lost messages.
	release func()
}

// tapWait is how long a new tap waits for the server.
const tapWait = 2 * time.Second

func (b *Bus) newTap(subject string) (*tap, error) {
	t := &tap{bus: b, queue: newFeedQueue()}
	sub, err := b.NC.Subscribe(subject, t.queue.push)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, api.Classify(err))
	}
	t.sub = sub
	// The server has the subscription when it answers, so that nothing is missed of
	// what happens after this returns. A connection that is down takes it along when
	// it is back, and that is reported like any other gap.
	_ = b.NC.FlushTimeout(tapWait)
	t.status = b.NC.StatusChanged(nats.CONNECTED)
	t.release = b.WatchSlow(sub, t.queue.lose)
	return t, nil
}

func (t *tap) close() {
	t.release()
	t.bus.NC.RemoveStatusListener(t.status)
	// It fails only when the connection is closed, and the subscription with it.
	_ = t.sub.Unsubscribe()
}

// Watch calls fn for the records of all shards that match, as they are stored,
// and for whatever other users of the bus make look like one.
func (b *Bus) Watch(filter journal.Filter, fn func(journal.Record), lost func()) (stop func(), err error) {
	t, err := b.newTap(events.FeedPrefix + filter.Subject(-1))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := t.run(func() { t.deliver(ctx, fn, lost) })
	return func() {
		cancel()
		end()
	}, nil
}

// run calls deliver whenever something came or may have been missed, until the
// tap is stopped.
func (t *tap) run(deliver func()) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer t.close()
		for {
			select {
			case <-quit:
				return
			case <-t.status:
				t.queue.lose()
			case <-t.queue.wake:
				deliver()
			}
		}
	}()
	return stopper(quit, done)
}

func (t *tap) deliver(ctx context.Context, fn func(journal.Record), lost func()) {
	msgs, missed := t.queue.empty()
	for _, msg := range msgs {
		rec, err := feedRecord(msg)
		if err != nil {
			t.bus.Log.Warn("a message on the feed is not the log's", "subject", msg.Subject, "reason", err)
			continue
		}
		if shard, ok := t.bus.shardIn(rec.Subject); ok && t.bus.prove(shard).wait(ctx, rec.Seq) != nil {
			missed = true
			break // each of the others would wait as long
		}
		fn(rec)
	}
	if missed && lost != nil {
		lost()
	}
}

// feedRecord reads a republished message. No user may publish on its subject, but
// any user who may read a record of the log can name it as the reply's subject.
func feedRecord(msg *nats.Msg) (journal.Record, error) {
	rec, err := api.RecordOf(msg)
	rec.Subject = strings.TrimPrefix(msg.Subject, events.FeedPrefix)
	return rec, err
}

// stopper returns a function that stops a goroutine and waits for its end; it
// may be called more than once.
func stopper(quit, done chan struct{}) func() {
	var once sync.Once
	return func() {
		once.Do(func() { close(quit) })
		<-done
	}
}

// textSubject is the subject on which a run's model text is streamed.
func textSubject(run events.Run) string { return "chunk." + run.Namespace + "." + run.ID }

// PublishChunk sends a part of a model's text to everyone who listens now.
func (b *Bus) PublishChunk(run events.Run, data []byte) error {
	if err := b.NC.Publish(textSubject(run), data); err != nil {
		return fmt.Errorf("chunk of run %s: %w", run.ID, api.Classify(err))
	}
	return nil
}

// WatchChunks calls fn for the run's chunks as they come.
func (b *Bus) WatchChunks(run events.Run, fn func(data []byte)) (stop func(), err error) {
	t, err := b.newTap(textSubject(run))
	if err != nil {
		return nil, err
	}
	return t.run(func() {
		msgs, _ := t.queue.empty() // chunks may be missed
		for _, msg := range msgs {
			fn(msg.Data)
		}
	}), nil
}

// feedBacklog is how many live messages wait for one slow watcher before it
// learns that it lost some.
const feedBacklog = 4096

// feedQueue takes messages from a subscription, which must never wait, to a
// goroutine that may. It is bounded: what does not fit is dropped, and said.
type feedQueue struct {
	wake chan struct{}

	mu   sync.Mutex
	msgs []*nats.Msg
	lost bool
}

func newFeedQueue() *feedQueue { return &feedQueue{wake: make(chan struct{}, 1)} }

func (q *feedQueue) push(msg *nats.Msg) {
	q.mu.Lock()
	if len(q.msgs) < feedBacklog {
		q.msgs = append(q.msgs, msg)
	} else {
		q.lost = true
	}
	q.mu.Unlock()
	q.signal()
}

// lose says that messages may have been missed.
func (q *feedQueue) lose() {
	q.mu.Lock()
	q.lost = true
	q.mu.Unlock()
	q.signal()
}

func (q *feedQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// empty returns what the queue holds and empties it.
func (q *feedQueue) empty() (msgs []*nats.Msg, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	msgs, lost = q.msgs, q.lost
	q.msgs, q.lost = nil, false
	return msgs, lost
}

// If the feed names a record that the read did not bring, a replica that lags may have
// answered. The follower reads again every lagPoll for lagTime. A record that does not come
// by then was never stored: any user can forge such a message.
const (
	lagPoll = 25 * time.Millisecond
	lagTime = 2 * time.Second
)

// Follow yields a shard's records that match, forever. The log is what is read; the feed
// at most says when.
func (b *Bus) Follow(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if err := journalcheck.Shard(b.shards, shard); err != nil {
			yield(journal.Record{}, err)
			return
		}
		f := follower{bus: b, many: filter.Run == "", shard: shard, subject: filter.Subject(shard), cursor: after, yield: yield}
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
	// many says that more than one run is followed.
	many bool
	// told is the highest sequence number that the feed has named, and until is when the
	// follower stops looking for it.
	told    uint64
	until   time.Time
	stopped bool
	yield   func(journal.Record, error) bool
}

// followRetry is the pause before a follower makes another consumer, and how often it looks
// whether its connection broke.
const followRetry = 250 * time.Millisecond

// run follows through its own consumer if it can. A consumer brings each record once. The
// other way brings it on the feed and again in the answer of a direct get, at several times the
// cost. A single run's follower is too short for a consumer, and with replicas only a direct get
// can ask another server.
func (f *follower) run(ctx context.Context) error {
	for f.many && f.bus.Replicas <= 1 && !f.bus.Unordered.Load() && ctx.Err() == nil {
		made, err := f.tail(ctx)
		if f.stopped {
			return nil
		}
		if errors.Is(err, journal.ErrDenied) {
			f.bus.Unordered.Store(true)
		}
		if !made && !api.IsAway(err) {
			break
		}
		f.catchUp(ctx) // continues, whatever is wrong with consumers
		pause := followRetry
		if !made {
			pause = f.bus.opts.FollowPoll
		}
		retry.Wait(ctx, pause)
	}
	return f.heed(ctx)
}

// tail follows through a consumer until that breaks, and reports whether there was one. What it
// yields has no gaps.
func (f *follower) tail(ctx context.Context) (made bool, err error) {
	proof := f.bus.prove(f.shard)
	t, err := f.bus.OpenTailAfter(ctx, events.StreamName(f.shard), f.subject, f.cursor)
	if err != nil {
		return false, err
	}
	defer t.Close()
	var unproved error
	for err == nil && unproved == nil && !f.stopped {
		err = t.Next(ctx, followRetry, func(msg *nats.Msg, from api.Delivered) {
			if unproved == nil && !f.stopped {
				unproved = proof.wait(ctx, from.Seq)
			}
			if unproved == nil && !f.stopped {
				f.pass(journal.Record{Subject: msg.Subject, Seq: from.Seq, Body: msg.Data, Stored: from.Stored})
			}
		})
	}
	return true, errors.Join(err, unproved)
}

// heed follows by direct gets, whenever the feed says that there is something.
func (f *follower) heed(ctx context.Context) error {
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

// hear reads the log once if the feed names records that were not yielded, or may have lost
// some.
func (f *follower) hear(ctx context.Context, queue *feedQueue) {
	msgs, read := queue.empty()
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
	for rec, err := range f.bus.prove(f.shard).each(ctx, f.bus.RecordsOn(ctx, events.StreamName(f.shard), f.subject, f.cursor, 0)) {
		if err != nil {
			if ctx.Err() == nil {
				f.bus.Log.Warn("cannot read the log, trying again", "shard", f.shard, "after", f.cursor, "reason", err)
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

// asks are the subjects on which listeners ask for model text that they missed. The
// answer comes on the run's chunks and never on a reply subject, which would go
// past permissions.
const asks = "catchup.*.*"

// Asks are the subjects of those questions, which never come to the log.
func Asks() []string { return []string{"catchup.>"} }

// AskCatchUp asks for what a run's model said so far.
func (b *Bus) AskCatchUp(run events.Run) error {
	if err := b.NC.Publish("catchup."+run.Namespace+"."+run.ID, nil); err != nil {
		return fmt.Errorf("ask for the text of run %s: %w", run.ID, api.Classify(err))
	}
	return nil
}

// WatchAsks calls fn for the runs that somebody asks about.
func (b *Bus) WatchAsks(fn func(run events.Run)) (stop func(), err error) {
	t, err := b.newTap(asks)
	if err != nil {
		return nil, err
	}
	return t.run(func() {
		msgs, _ := t.queue.empty() // who is not answered asks again
		for _, msg := range msgs {
			if run, ok := b.asked(msg.Subject); ok {
				fn(run)
			}
		}
	}), nil
}

// asked reads the run in a question's subject.
func (b *Bus) asked(subject string) (events.Run, bool) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 3 {
		return events.Run{}, false
	}
	run := events.NewRun(tokens[1], tokens[2], b.shards)
	return run, journalcheck.Run(b.shards, run) == nil
}
