package natsbus

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/groupflush"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// gatedBus is a bus whose flushes return what flush returns.
func gatedBus(t *testing.T, timeout time.Duration, flush func(ctx context.Context, stream string, seq uint64) error) *Bus {
	t.Helper()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	require.NoError(t, Init(t.Context(), conn, InitOptions{Sync: SyncGroup}))
	bus, err := Open(t.Context(), conn, Options{Logger: quiet, RequestTimeout: timeout, Flush: flush})
	require.NoError(t, err)
	return bus
}

// awaitDelivered returns when the server has handed a record to a consumer.
func awaitDelivered(t *testing.T, bus *Bus, consumer string, seq uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := bus.Consumer(t.Context(), events.StreamName(0), consumer)
		return err == nil && info.CachedInfo().Delivered.Stream >= seq
	}, time.Minute, time.Millisecond)
	require.NoError(t, bus.Conn().Flush())
}

// TestNothingLeavesBeforeItsFlush: an append is not answered, and its record is not delivered,
// read or shown, before it is flushed.
func TestNothingLeavesBeforeItsFlush(t *testing.T) {
	t.Parallel()
	asked, gate := make(chan struct{}, 100), make(chan struct{})
	var flushed atomic.Bool
	bus := gatedBus(t, patience, func(context.Context, string, uint64) error {
		asked <- struct{}{}
		<-gate
		return nil
	})
	run := journaltest.NewRun(t, bus)
	early := make(chan string, 100)
	done := make(chan string, 100)
	leave := func(what string) {
		if !flushed.Load() {
			early <- what
		}
		done <- what
	}
	ctx, cancel := context.WithCancel(t.Context())
	consumed := make(chan error, 1)
	go func() {
		consumed <- bus.Consume(ctx, journal.Inbox{States: []events.State{events.Observing}}, 1, func(d journal.Delivery) {
			leave("delivery")
			_ = d.Ack()
		})
	}()
	stop, err := bus.Watch(journal.Filter{}, func(journal.Record) { leave("feed") }, nil)
	require.NoError(t, err)
	defer stop()
	go func() {
		_, err := bus.Append(ctx, run, 0, journaltest.Entry(run, events.Observing, events.DefaultPool, "1"))
		leave("append " + strconv.FormatBool(err == nil))
	}()
	<-asked
	for what, read := range map[string]func() (journal.Record, error){
		"head":   func() (journal.Record, error) { return bus.Head(ctx, run) },
		"newest": func() (journal.Record, error) { return bus.Newest(ctx, 0, journal.Filter{}) },
		"fetch":  func() (journal.Record, error) { return bus.Fetch(ctx, run, 1) },
		"last":   func() (journal.Record, error) { seq, err := bus.Last(ctx, 0); return journal.Record{Seq: seq}, err },
		"read": func() (journal.Record, error) {
			recs, err := journaltest.Collect(bus.Read(ctx, run, 0))
			return recs[0], err
		},
		"scan": func() (journal.Record, error) {
			recs, err := journaltest.Collect(bus.Scan(ctx, 0, journal.Filter{}, 0))
			return recs[0], err
		},
	} {
		go func() {
			rec, err := read()
			leave(what + " " + strconv.FormatBool(err == nil && rec.Seq == 1))
		}()
	}
	awaitDelivered(t, bus, string(events.Observing), 1)
	flushed.Store(true)
	close(gate)
	var left []string
	for range 9 {
		left = append(left, <-done)
	}
	require.ElementsMatch(t, []string{"append true", "delivery", "feed", "head true", "newest true", "fetch true", "last true", "read true", "scan true"}, left)
	require.Empty(t, early)
	cancel()
	require.NoError(t, <-consumed)
}

// TestWhatFollowsSharesTheFlush: in the process that has the server, what follows from an append is
// appended before the flush, and neither is acknowledged before it. Other processes wait first.
func TestWhatFollowsSharesTheFlush(t *testing.T) {
	t.Parallel()
	var flushes atomic.Uint64
	gate := make(chan struct{})
	bus := gatedBus(t, patience, func(context.Context, string, uint64) error {
		flushes.Add(1)
		<-gate
		return nil
	})
	run := journaltest.NewRun(t, bus)
	entry := func(text string) journal.Entry {
		return journaltest.Entry(run, events.Nobody, events.DefaultPool, text)
	}
	ctx, before := t.Context(), flushes.Load()
	stored, early := make(chan uint64, 1), make(chan uint64, 1)
	done := make(chan error, 2)
	go func() {
		_, err := bus.AppendThen(ctx, run, 0, func(seq uint64) {
			early <- flushes.Load()
			stored <- seq
			_, err := bus.Append(ctx, run, seq, entry("2"))
			done <- err
		}, entry("1"))
		done <- err
	}()
	require.Equal(t, before, <-early)
	first := <-stored
	require.Eventually(t, func() bool { return flushes.Load() > before }, time.Minute, time.Millisecond)
	require.Empty(t, done)
	close(gate)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Equal(t, before+1, flushes.Load())
	require.GreaterOrEqual(t, bus.flushing.Load().groups[0].Flushed(), first+1)

	other, err := Open(ctx, bus.Conn(), Options{Logger: quiet, RequestTimeout: patience})
	require.NoError(t, err)
	seq, err := other.AppendThen(ctx, run, first+1, func(uint64) { require.Fail(t, "it was called early") }, entry("3"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, other.flushing.Load().groups[0].Flushed(), seq)
}

func TestFailedFlushIsNoAnswer(t *testing.T) {
	t.Parallel()
	bus := gatedBus(t, patience, func(context.Context, string, uint64) error { return errors.New("the disk failed") })
	run := journaltest.NewRun(t, bus)
	ctx, cancel := context.WithCancel(t.Context())
	consumed := make(chan error, 1)
	go func() {
		consumed <- bus.Consume(ctx, journal.Inbox{States: []events.State{events.Observing}}, 1, func(journal.Delivery) { t.Error("it was handed out") })
	}()
	_, err := bus.Append(t.Context(), run, 0, journaltest.Entry(run, events.Observing, events.DefaultPool, "1"))
	require.ErrorIs(t, err, journal.ErrUnknownOutcome)
	require.ErrorContains(t, err, "the disk failed")
	_, err = bus.Head(t.Context(), run)
	require.ErrorContains(t, err, "the disk failed")
	_, err = journaltest.Collect(bus.Read(t.Context(), run, 0))
	require.ErrorContains(t, err, "the disk failed")
	awaitDelivered(t, bus, string(events.Observing), 1)
	_, err = bus.Purge(t.Context(), run, 1) // what is purged is not delivered
	require.ErrorContains(t, err, "the disk failed")
	cancel()
	require.NoError(t, <-consumed)
}

// TestStalledFlush: a flush that does not end leaves the outcome unknown after RequestTimeout.
func TestStalledFlush(t *testing.T) {
	t.Parallel()
	bus := gatedBus(t, 200*time.Millisecond, func(ctx context.Context, _ string, _ uint64) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	run := journaltest.NewRun(t, bus)
	_, err := bus.AppendThen(t.Context(), run, 0, func(uint64) {}, journaltest.Entry(run, events.Observing, events.DefaultPool, "1"))
	require.ErrorIs(t, err, journal.ErrUnknownOutcome)
	require.ErrorIs(t, err, nats.ErrTimeout)
	_, err = journaltest.Collect(bus.Read(t.Context(), run, 0))
	require.ErrorIs(t, err, nats.ErrTimeout)
}

// TestNobodyFlushes: where the process that has the server does not answer, nothing counts as
// flushed.
func TestNobodyFlushes(t *testing.T) {
	t.Parallel()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	require.NoError(t, Init(t.Context(), conn, InitOptions{Sync: SyncGroup}))
	bus, err := Open(t.Context(), conn, Options{Logger: quiet, RequestTimeout: 200 * time.Millisecond})
	require.NoError(t, err)
	run := journaltest.NewRun(t, bus)
	_, err = bus.Append(t.Context(), run, 0, journaltest.Entry(run, events.Observing, events.DefaultPool, "1"))
	require.ErrorIs(t, err, journal.ErrUnknownOutcome)
	_, err = bus.Head(t.Context(), run)
	require.Error(t, err)
}

// TestNumberOfAnotherLog: a process that asks for a record that the log does not have makes
// nothing count as flushed.
func TestNumberOfAnotherLog(t *testing.T) {
	t.Parallel()
	bus, srv := groupFlushed(t, 1)
	conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{URL: srv.ClientURL(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	other := reopenBus(t, conn, GroupCommitAuto)
	run := journaltest.NewRun(t, bus)
	last := journaltest.AppendAll(t, bus, run, "1", "2")
	require.ErrorIs(t, other.prove(0).wait(t.Context(), 1000), groupflush.ErrMissing)
	require.EqualValues(t, last, other.flushing.Load().groups[0].Flushed())
	require.Less(t, bus.flushing.Load().groups[0].Flushed(), uint64(1000))
}

// TestServerChangesItsWay: a process that stays connected goes by what the log says after
// each reconnect.
func TestServerChangesItsWay(t *testing.T) {
	t.Parallel()
	dir := onDisk(t)
	first, err := embedded.Start(t.Context(), embedded.Options{Dir: dir, Listen: "127.0.0.1:0", SyncAlways: true, Logger: quiet})
	require.NoError(t, err)
	at := first.ClientURL()
	conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{URL: at, Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, Init(t.Context(), conn, InitOptions{Sync: SyncAlways}))
	other := patient(t, reopenBus(t, conn, GroupCommitOff), GroupCommitOff)
	run := journaltest.NewRun(t, other)
	last := journaltest.AppendAll(t, other, run, "1")
	first.Shutdown()

	second := startServer(t, embedded.Options{Dir: dir, Listen: at[len("nats://"):], GroupFlush: true, SyncAlways: true})
	own := inProcess(t, second)
	require.NoError(t, Init(t.Context(), own, InitOptions{Sync: SyncGroup}))
	var flushes atomic.Uint64
	_, err = Open(t.Context(), own, Options{Logger: quiet, Flush: func(ctx context.Context, stream string, seq uint64) error {
		flushes.Add(1)
		return second.Flush(ctx, stream, seq)
	}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return conn.IsConnected() && other.Breaks() > 0 }, time.Minute, time.Millisecond)
	before := flushes.Load()
	seq, err := other.Append(t.Context(), run, last, journaltest.Entry(run, events.Observing, events.DefaultPool, "2"))
	require.NoError(t, err)
	require.Greater(t, flushes.Load(), before)
	before = flushes.Load()
	_, err = other.Purge(t.Context(), run, seq)
	require.NoError(t, err)
	require.Greater(t, flushes.Load(), before, "a purge is flushed, too, though it adds no record")

	breaks := other.Breaks()
	require.NoError(t, second.Reconnect(own))
	require.Eventually(t, func() bool { return conn.IsConnected() && other.Breaks() > breaks }, time.Minute, time.Millisecond)
	require.True(t, own.IsConnected())
}

func TestAnswersGoToNoStream(t *testing.T) {
	for _, reply := range []string{"", "moore.0.x", "$KV.agents.x", "$JS.API.STREAM.DELETE.MOORE_0", "timers.set.x", "feed.moore.0", "plain"} {
		require.False(t, answerable(reply), reply)
	}
	require.True(t, answerable("_INBOX.x.y"))
}
