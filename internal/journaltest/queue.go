package journaltest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// LogQueue is a journal that can append and deliver.
type LogQueue interface {
	journal.Log
	journal.Queue
}

// Queue tests [journal.Queue]. The factory's journal should have an ack wait of
// two seconds or less, or the suite takes long.
func Queue(t *testing.T, open func(t *testing.T) LogQueue) {
	q := open(t)
	for name, test := range map[string]func(*testing.T, LogQueue){
		"each record once":               testDeliver,
		"what was there before":          testBacklog,
		"states and pools":               testInboxes,
		"several states":                 testStates,
		"again after the ack wait":       testAckWait,
		"retry after a delay":            testRetry,
		"retry at once":                  testRetryNow,
		"extend":                         testExtend,
		"slots":                          testSlots,
		"one slot for all shards":        testOneSlot,
		"slots go where the work is":     testSlotsMove,
		"two consumers share":            testShare,
		"the end waits for the handlers": testEnd,
		"unsettled goes to the next":     testHandOver,
		"one begins while another ends":  testTakeOver,
		"what was not delivered yet":     testUndelivered,
		"refused inboxes":                testRefusedInbox,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, q)
		})
	}
}

// consumer is a running Consume.
type consumer struct {
	got    chan journal.Delivery
	stop   context.CancelFunc
	ended  chan error
	onstop sync.Once
}

// consume runs Consume in the background. A nil handle passes the deliveries to
// the channel got, and leaves their verdicts to the test.
func consume(t *testing.T, q journal.Queue, inbox journal.Inbox, slots int, handle func(journal.Delivery)) *consumer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &consumer{got: make(chan journal.Delivery, 10_000), stop: cancel, ended: make(chan error, 1)}
	if handle == nil {
		handle = func(d journal.Delivery) { c.got <- d }
	}
	go func() { c.ended <- q.Consume(ctx, inbox, slots, handle) }()
	t.Cleanup(func() { c.end(t) })
	return c
}

func (c *consumer) end(t *testing.T) {
	t.Helper()
	c.onstop.Do(func() {
		c.stop()
		select {
		case err := <-c.ended:
			require.NoError(t, err)
		case <-time.After(patience):
			require.Fail(t, "Consume does not end")
		}
	})
}

func (c *consumer) next(t *testing.T) journal.Delivery {
	t.Helper()
	select {
	case d := <-c.got:
		return d
	case err := <-c.ended:
		require.FailNow(t, "Consume ended", "%v", err)
	case <-time.After(patience):
		require.FailNow(t, "no delivery")
	}
	return nil
}

// nothing asserts that no delivery comes for as long.
func (c *consumer) nothing(t *testing.T, during time.Duration) {
	t.Helper()
	select {
	case d := <-c.got:
		require.FailNow(t, "a delivery too many", "%s attempt %d: %s", d.Record().Subject, d.Attempt(), d.Record().Body)
	case <-time.After(during):
	}
}

func acting(pool string) journal.Inbox {
	return journal.Inbox{States: []events.State{events.Acting, events.ParallelActing}, Pool: pool}
}

// spread appends n records in the pool, each to its own run.
func spread(t *testing.T, log journal.Log, pool string, n int) {
	t.Helper()
	ctx := bounded(t)
	for i := range n {
		run := NewRun(t, log)
		_, err := log.Append(ctx, run, 0, Entry(run, events.Acting, pool, fmt.Sprint(i)))
		require.NoError(t, err)
	}
}

func testDeliver(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	run := NewRun(t, q)
	c := consume(t, q, acting(pool), 4, nil)
	var last uint64
	for i := range 20 {
		to := []events.State{events.Acting, events.ParallelActing}[i%2]
		seq, err := q.Append(bounded(t), run, last, Entry(run, to, pool, fmt.Sprint(i)))
		require.NoError(t, err)
		last = seq
		d := c.next(t)
		require.Equal(t, 1, d.Attempt())
		require.Equal(t, seq, d.Record().Seq)
		require.Equal(t, fmt.Sprint(i), string(d.Record().Body))
		require.Equal(t, Entry(run, to, pool, "").Subject.String(), d.Record().Subject)
		require.WithinDuration(t, time.Now(), d.Record().Stored, time.Minute)
		require.NoError(t, d.Ack())
	}
	wait, err := q.AckWait(bounded(t), acting(pool))
	require.NoError(t, err)
	require.Positive(t, wait)
	c.nothing(t, wait+wait/4)
}

func testBacklog(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	spread(t, q, pool, 100)
	seen := make(map[string]bool)
	c := consume(t, q, acting(pool), 10, func(journal.Delivery) {})
	c.end(t)
	c = consume(t, q, acting(pool), 10, nil)
	for len(seen) < 100 {
		d := c.next(t)
		seen[string(d.Record().Body)] = true
		require.NoError(t, d.Ack())
	}
}

func testInboxes(t *testing.T, q LogQueue) {
	ctx, one, two := bounded(t), NewToken(t), NewToken(t)
	c1, c2 := consume(t, q, acting(one), 2, nil), consume(t, q, acting(two), 2, nil)
	run := NewRun(t, q)
	var last uint64
	for _, e := range []journal.Entry{
		Entry(run, events.Acting, one, "first"), Entry(run, events.Observing, one, "to observing"),
		Entry(run, events.Acting, two, "second"), Entry(run, events.Nobody, one, "to nobody"),
		Entry(run, events.ParallelActing, one, "third"),
	} {
		seq, err := q.Append(ctx, run, last, e)
		require.NoError(t, err)
		last = seq
	}
	for _, want := range []struct {
		c    *consumer
		text string
	}{{c1, "first"}, {c1, "third"}, {c2, "second"}} {
		d := want.c.next(t)
		require.NoError(t, d.Ack())
		if string(d.Record().Body) != want.text {
			require.Contains(t, []string{"first", "third"}, string(d.Record().Body))
		}
	}
	c1.nothing(t, 50*time.Millisecond)
	c2.nothing(t, 50*time.Millisecond)
}

// testStates consumes several states without a pool: they are delivered whatever
// pool their events carry.
func testStates(t *testing.T, q LogQueue) {
	ctx := bounded(t)
	one, two := events.State(NewToken(t)), events.State(NewToken(t))
	c := consume(t, q, journal.Inbox{States: []events.State{one, two}}, 3, nil)
	run := NewRun(t, q)
	last, err := q.Append(ctx, run, 0, Entry(run, one, events.DefaultPool, "1"))
	require.NoError(t, err)
	last, err = q.Append(ctx, run, last, Entry(run, two, "web", "2"))
	require.NoError(t, err)
	_, err = q.Append(ctx, run, last, plain(run, "3"))
	require.NoError(t, err)
	got := map[string]bool{}
	for range 2 {
		d := c.next(t)
		require.NoError(t, d.Ack())
		got[string(d.Record().Body)] = true
	}
	require.Equal(t, map[string]bool{"1": true, "2": true}, got)
}

func testAckWait(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	c := consume(t, q, acting(pool), 2, nil)
	began := time.Now() // before it is delivered, however long this test waits for its turn
	spread(t, q, pool, 1)
	first := c.next(t)
	wait, err := q.AckWait(bounded(t), acting(pool))
	require.NoError(t, err)
	second := c.next(t)
	require.GreaterOrEqual(t, time.Since(began), wait*8/10)
	require.Equal(t, first.Record().Seq, second.Record().Seq)
	require.Equal(t, first.Record().Body, second.Record().Body)
	require.Equal(t, 2, second.Attempt())
	require.NoError(t, second.Ack())
	c.nothing(t, wait+wait/4)
}

func testRetry(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	c := consume(t, q, acting(pool), 4, nil)
	spread(t, q, pool, 2)
	first := c.next(t)
	began := time.Now()
	const delay = 300 * time.Millisecond
	require.NoError(t, first.Retry(delay))
	other := c.next(t)
	require.NotEqual(t, first.Record().Body, other.Record().Body, "others are delivered meanwhile")
	require.NoError(t, other.Ack())
	again := c.next(t)
	require.GreaterOrEqual(t, time.Since(began), delay*9/10)
	require.Equal(t, first.Record().Seq, again.Record().Seq)
	require.Equal(t, 2, again.Attempt())
	require.NoError(t, again.Ack())
}

func testRetryNow(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	c := consume(t, q, acting(pool), 1, nil)
	spread(t, q, pool, 1)
	for attempt := 1; attempt <= 5; attempt++ {
		d := c.next(t)
		require.Equal(t, attempt, d.Attempt())
		require.NoError(t, d.Retry(0))
	}
	require.NoError(t, c.next(t).Ack())
}

// testExtend works for more than two ack waits on one delivery, which nobody else gets.
func testExtend(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	c := consume(t, q, acting(pool), 2, nil)
	spread(t, q, pool, 1)
	d := c.next(t)
	wait, err := q.AckWait(bounded(t), acting(pool))
	require.NoError(t, err)
	for range 20 {
		c.nothing(t, wait/8)
		require.NoError(t, d.Extend())
	}
	require.NoError(t, d.Ack())
	c.nothing(t, wait+wait/4)
}

// gauge counts how many handlers run at once.
type gauge struct{ now, most atomic.Int32 }

func (g *gauge) enter() {
	now := g.now.Add(1)
	for most := g.most.Load(); now > most && !g.most.CompareAndSwap(most, now); most = g.most.Load() {
	}
}

func (g *gauge) leave() { g.now.Add(-1) }

func testSlots(t *testing.T, q LogQueue) {
	for _, slots := range []int{1, 3, 16} {
		pool := NewToken(t)
		spread(t, q, pool, 60)
		var g gauge
		done := make(chan error, 200)
		full := make(chan struct{})
		var once sync.Once
		c := consume(t, q, acting(pool), slots, func(d journal.Delivery) {
			g.enter()
			defer g.leave()
			if int(g.now.Load()) == slots {
				once.Do(func() { close(full) })
			}
			if d.Attempt() > 1 {
				done <- errors.New("a delivery waited so long that it was delivered again")
				return
			}
			// What is in work here is kept alive; only what waits for a slot
			// without one comes again.
			wait, err := q.AckWait(bounded(t), acting(pool))
			if err != nil {
				done <- err
				return
			}
			for waiting := true; waiting; {
				select {
				case <-full:
					waiting = false
				case <-time.After(wait / 4):
					_ = d.Extend()
				}
			}
			done <- d.Ack()
		})
		for range 60 {
			require.NoError(t, <-done)
		}
		c.end(t)
		require.LessOrEqual(t, int(g.most.Load()), slots)
	}
}

// testSlotsMove works on one shard, and then on another, with every slot but
// those that idle shards may hold.
func testSlotsMove(t *testing.T, q LogQueue) {
	for _, slots := range []int{2, 5, 16} {
		pool := NewToken(t)
		started, release := make(chan struct{}, 1000), make(chan struct{})
		consume(t, q, acting(pool), slots, func(d journal.Delivery) {
			// What is held here for longer than the ack wait comes again.
			if d.Attempt() == 1 {
				started <- struct{}{}
				<-release
			}
			if err := d.Ack(); err != nil {
				t.Error(err)
			}
		})
		most := max(1, slots*3/4)
		if slots < 4*q.Shards() || q.Shards() == 1 {
			most = slots
		}
		for shard := range q.Shards() {
			for range 2 * slots {
				run := RunIn(t, q, shard)
				_, err := q.Append(bounded(t), run, 0, Entry(run, events.Acting, pool, ""))
				require.NoError(t, err)
			}
			for range most {
				<-started
			}
			for range 2*slots - most {
				release <- struct{}{}
				<-started
			}
			for range most {
				release <- struct{}{}
			}
		}
	}
}

func testOneSlot(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	var g gauge
	done := make(chan error, 100)
	c := consume(t, q, acting(pool), 1, func(d journal.Delivery) {
		g.enter()
		defer g.leave()
		done <- d.Ack()
	})
	for shard := range q.Shards() {
		for i := range 5 {
			run := RunIn(t, q, shard)
			_, err := q.Append(bounded(t), run, 0, Entry(run, events.Acting, pool, fmt.Sprint(i)))
			require.NoError(t, err)
		}
	}
	for range 5 * q.Shards() {
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(patience):
			require.FailNow(t, "a shard got no turn")
		}
	}
	c.end(t)
	require.EqualValues(t, 1, g.most.Load())
}

func testShare(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	var mu sync.Mutex
	seen := make(map[string]int)
	done := make(chan error, 1000)
	handle := func(d journal.Delivery) {
		mu.Lock()
		seen[string(d.Record().Body)]++
		mu.Unlock()
		done <- d.Ack()
	}
	consume(t, q, acting(pool), 5, handle)
	consume(t, q, acting(pool), 5, handle)
	spread(t, q, pool, 200)
	for range 200 {
		require.NoError(t, <-done)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, seen, 200)
}

func testEnd(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	started, release := make(chan struct{}, 10), make(chan struct{})
	var finished atomic.Int32
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- q.Consume(ctx, acting(pool), 3, func(d journal.Delivery) {
			started <- struct{}{}
			<-release
			if d.Ack() == nil {
				finished.Add(1)
			}
		})
	}()
	spread(t, q, pool, 1)
	<-started
	cancel()
	select {
	case <-ended:
		require.Fail(t, "Consume ended before its handler")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	require.NoError(t, <-ended)
	require.EqualValues(t, 1, finished.Load())
	require.NoError(t, q.Consume(ctx, acting(pool), 3, func(journal.Delivery) {}), "with a context that ended")
}

func testHandOver(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	c := consume(t, q, acting(pool), 2, nil)
	spread(t, q, pool, 1)
	left := c.next(t)
	c.end(t)
	c = consume(t, q, acting(pool), 2, nil)
	d := c.next(t)
	require.Equal(t, left.Record().Seq, d.Record().Seq)
	require.Equal(t, 2, d.Attempt())
	require.NoError(t, d.Ack())
}

// testTakeOver ends a consumer that has work, as a worker does that takes nothing
// for a while: the next one gets what is left, and only that.
func testTakeOver(t *testing.T, q LogQueue) {
	pool := NewToken(t)
	started, release, finished := make(chan struct{}, 2), make(chan struct{}), make(chan error, 2)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- q.Consume(ctx, acting(pool), 2, func(d journal.Delivery) {
			started <- struct{}{}
			for waiting := true; waiting; {
				select {
				case <-release:
					waiting = false
				case <-time.After(50 * time.Millisecond):
					_ = d.Extend()
				}
			}
			finished <- d.Ack()
		})
	}()
	spread(t, q, pool, 2)
	<-started
	<-started
	stop()
	next := consume(t, q, acting(pool), 1, nil)
	spread(t, q, pool, 3)
	for range 3 {
		d := next.next(t)
		require.Equal(t, 1, d.Attempt())
		require.NoError(t, d.Ack())
	}
	wait, err := q.AckWait(bounded(t), acting(pool))
	require.NoError(t, err)
	next.nothing(t, wait+wait/4)
	close(release)
	require.NoError(t, <-finished)
	require.NoError(t, <-finished)
	require.NoError(t, <-ended)
}

// testUndelivered has one slot and three records: what was handed out once has
// been delivered, whatever became of it then.
func testUndelivered(t *testing.T, q LogQueue) {
	ctx, pool, run := bounded(t), NewToken(t), NewRun(t, q)
	inbox := journal.Inbox{States: []events.State{events.Acting}, Pool: pool}
	var seqs []uint64
	last := uint64(0)
	for i := range 3 {
		seq, err := q.Append(ctx, run, last, Entry(run, events.Acting, pool, fmt.Sprint(i)))
		require.NoError(t, err)
		seqs, last = append(seqs, seq), seq
	}
	waiting := func(want ...bool) {
		t.Helper()
		for i, seq := range seqs {
			got, err := q.Undelivered(ctx, inbox, run.Shard, seq)
			require.NoError(t, err)
			require.Equal(t, want[i], got, "record %d", i)
		}
	}
	waiting(true, true, true)
	got, goOn := make(chan journal.Delivery), make(chan struct{})
	consume(t, q, inbox, 1, func(d journal.Delivery) {
		got <- d
		<-goOn
	})
	for i := range seqs {
		d := <-got
		require.Equal(t, seqs[i], d.Record().Seq)
		waiting(false, i < 1, i < 2)
		if i == 0 {
			require.NoError(t, d.Retry(time.Hour))
		} else {
			require.NoError(t, d.Ack())
		}
		goOn <- struct{}{}
	}
	waiting(false, false, false)
	_, err := q.Undelivered(ctx, inbox, q.Shards(), 1)
	require.Error(t, err)
	_, err = q.Undelivered(ctx, journal.Inbox{States: []events.State{events.Planning, events.Observing}}, 0, 1)
	require.Error(t, err)
}

func testRefusedInbox(t *testing.T, q LogQueue) {
	ctx := bounded(t)
	for _, inbox := range []journal.Inbox{
		{}, {Pool: "web"}, {States: []events.State{events.Acting}, Pool: "*"}, {States: []events.State{"a.b"}},
	} {
		require.Error(t, q.Consume(ctx, inbox, 1, func(journal.Delivery) {}))
		_, err := q.AckWait(ctx, inbox)
		require.Error(t, err)
		_, err = q.Undelivered(ctx, inbox, 0, 1)
		require.Error(t, err)
	}
	require.Error(t, q.Consume(ctx, acting("web"), 0, func(journal.Delivery) {}))
}
