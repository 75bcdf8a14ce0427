package natsbus

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
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
	// it is back, and that is told like any other gap.
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
	return t.run(func() { t.deliver(fn, lost) }), nil
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

func (t *tap) deliver(fn func(journal.Record), lost func()) {
	msgs, missed := t.queue.take()
	for _, msg := range msgs {
		rec, err := feedRecord(msg)
		if err != nil {
			t.bus.Log.Warn("a message on the feed is not the log's", "subject", msg.Subject, "error", err)
			continue
		}
		fn(rec)
	}
	if missed && lost != nil {
		lost()
	}
}

// feedRecord reads a republished message. No user may publish on its subject, but
// whoever may ask the log for a record can name it as the reply's.
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

// PublishChunk sends a part of a model's text to whoever listens now.
func (b *Bus) PublishChunk(run events.Run, data []byte) error {
	if err := b.NC.Publish(run.ChunkSubject(), data); err != nil {
		return fmt.Errorf("chunk of run %s: %w", run.ID, api.Classify(err))
	}
	return nil
}

// WatchChunks calls fn for the run's chunks as they come.
func (b *Bus) WatchChunks(run events.Run, fn func(data []byte)) (stop func(), err error) {
	t, err := b.newTap(run.ChunkSubject())
	if err != nil {
		return nil, err
	}
	return t.run(func() {
		msgs, _ := t.queue.take() // chunks may be missed
		for _, msg := range msgs {
			fn(msg.Data)
		}
	}), nil
}
