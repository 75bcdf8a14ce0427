package natsbus

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// everything is the query of all that a stream has.
func everything(tb testing.TB, bus *Bus, shard int, after uint64) query {
	tb.Helper()
	end, err := bus.Last(tb.Context(), shard)
	require.NoError(tb, err)
	return query{stream: events.StreamName(shard), subject: journal.Filter{}.Subject(shard), match: journal.Filter{}.Match, after: after, end: end, all: true}
}

// bothWays are two buses on one connection, of which the second never makes a
// consumer and the first does whenever it may.
func bothWays(t *testing.T, bus *Bus) (ordered, direct *Bus) {
	t.Helper()
	ordered, direct = reopenBus(t, bus.Conn(), GroupCommitAuto), reopenBus(t, bus.Conn(), GroupCommitAuto)
	ordered.orderedLeast = 1
	direct.unordered.Store(true)
	return ordered, direct
}

// readers lists the consumers that read, which go when the reads have ended.
func consumersToRead(t *testing.T, bus *Bus, shard int) (names []string) {
	t.Helper()
	stream, err := bus.js.Stream(t.Context(), events.StreamName(shard))
	require.NoError(t, err)
	list := stream.ConsumerNames(t.Context())
	for name := range list.Name() {
		if strings.HasPrefix(name, readerPrefix) {
			names = append(names, name)
		}
	}
	require.NoError(t, list.Err())
	return names
}

func requireNoReaders(t *testing.T, bus *Bus) {
	t.Helper()
	for shard := range bus.shards {
		require.Eventually(t, func() bool { return len(consumersToRead(t, bus, shard)) == 0 }, patience, time.Millisecond)
	}
}

// The log's suite holds for reads through consumers, however little there is to
// read.
func TestOrderedConformance(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 3)
	bus.orderedLeast = 1
	journaltest.Log(t, func(*testing.T) journal.Log { return bus })
	requireNoReaders(t, bus)
}

// TestOrdered reads one log through consumers in every way, and by users who may not.
func TestOrdered(t *testing.T) {
	t.Parallel()
	rights := []string{"$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.MOORE_0"}
	users := map[string][]string{"making": rights, "asking": append(slices.Clone(rights), "$JS.API.CONSUMER.CREATE.>")}
	connect := guardedUsers(t, users)
	bus := patient(t, openBus(t, connect("operator"), 1), GroupCommitAuto)
	fillRuns(t, bus, 1300, 10)
	t.Run("stops", func(t *testing.T) { testOrderedStops(t, bus) })
	t.Run("is lost", func(t *testing.T) { testOrderedIsLost(t, bus) })
	t.Run("meets a purge", func(t *testing.T) { testOrderedMeetsAPurge(t, bus) })
	t.Run("reads the same", func(t *testing.T) { testOrderedReadsTheSame(t, bus) })
	for name := range users { // at last: who may not delete a consumer leaves it behind for a minute
		t.Run("denied "+name, func(t *testing.T) { testOrderedDenied(t, bus, connect(name)) })
	}
}

// Both ways of reading give the same records: with holes where runs were purged, with
// messages that are no events, from anywhere, by any filter.
func testOrderedReadsTheSame(t *testing.T, bus *Bus) {
	all, err := journaltest.Collect(bus.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	for _, i := range []int{0, 4090, 6000, len(all) - 1} {
		s, err := events.ParseSubject(all[i].Subject)
		require.NoError(t, err)
		_, err = bus.Purge(t.Context(), s.Run, all[i].Seq)
		require.NoError(t, err)
	}
	forged := natsMsg("moore.0.stray", "no event")
	forged.Header.Set("Status", "409")
	require.NoError(t, bus.conn.PublishMsg(forged))
	ordered, direct := bothWays(t, bus)
	for _, after := range []uint64{0, 5000, all[len(all)-1].Seq + 1} {
		q := everything(t, bus, 0, after)
		n := 0
		require.NoError(t, ordered.readOrdered(t.Context(), &q, func(journal.Record, error) bool { n++; return true }))
		for _, f := range []journal.Filter{{}, {Namespace: events.DefaultNamespace}, {Pool: "p1"}, {Namespace: "none"}} {
			want, err := journaltest.Collect(direct.Scan(t.Context(), 0, f, after))
			require.NoError(t, err)
			got, err := journaltest.Collect(ordered.Scan(t.Context(), 0, f, after))
			require.NoError(t, err)
			require.Equal(t, want, got, "%+v after %d", f, after)
			if f == (journal.Filter{}) {
				require.Len(t, want, n, "the consumer brings everything")
			}
		}
	}
	require.False(t, ordered.unordered.Load())
	requireNoReaders(t, bus)
}

// What is purged while it is read is missing, and nothing else is.
func testOrderedMeetsAPurge(t *testing.T, bus *Bus) {
	all, err := journaltest.Collect(bus.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	gone := map[string]bool{}
	var got []journal.Record
	for rec, err := range bus.Scan(t.Context(), 0, journal.Filter{}, 0) {
		require.NoError(t, err)
		if got = append(got, rec); len(got) > 1 {
			continue
		}
		for i := 3 * pageRecords; i < len(all); i += 70 { // more than was asked for
			s, err := events.ParseSubject(all[i].Subject)
			require.NoError(t, err)
			_, err = bus.Purge(t.Context(), s.Run, all[len(all)-1].Seq)
			require.NoError(t, err)
			gone[s.Run.ID] = true
		}
	}
	var want []journal.Record
	for _, rec := range all {
		if s, err := events.ParseSubject(rec.Subject); err == nil && !gone[s.Run.ID] {
			want = append(want, rec)
		}
	}
	require.NotEmpty(t, gone)
	require.Equal(t, want, got)
}

// A read whose consumer is deleted under it, or that loses deliveries, goes on and
// brings everything.
func testOrderedIsLost(t *testing.T, bus *Bus) {
	end, err := bus.Last(t.Context(), 0)
	require.NoError(t, err)
	made := map[string]bool{}
	n := 0
	for rec, err := range bus.Scan(t.Context(), 0, journal.Filter{}, 0) {
		require.NoError(t, err)
		n++
		require.EqualValues(t, n, rec.Seq)
		if n%3000 != 1 {
			continue
		}
		for _, name := range consumersToRead(t, bus, 0) {
			made[name] = true
			require.NoError(t, bus.js.DeleteConsumer(t.Context(), events.StreamName(0), name))
		}
	}
	require.EqualValues(t, end, n)
	require.Greater(t, len(made), 1, "another one was made")

	q := everything(t, bus, 0, 0)
	o, err := bus.newOrdered(t.Context(), &q)
	require.NoError(t, err)
	defer o.close()
	require.NoError(t, o.pull(100))
	for i := range 2 {
		msg, err := o.next(t.Context())
		require.NoError(t, err)
		rec, _, err := o.take(msg)
		require.NoError(t, err)
		require.EqualValues(t, i+1, rec.Seq)
	}
	_, err = o.next(t.Context()) // and lost
	require.NoError(t, err)
	msg, err := o.next(t.Context())
	require.NoError(t, err)
	_, _, err = o.take(msg)
	require.ErrorIs(t, err, errGap)
}

// Who wants no more, or whose context ends, leaves nothing behind.
func testOrderedStops(t *testing.T, bus *Bus) {
	for rec, err := range bus.Scan(t.Context(), 0, journal.Filter{}, 0) {
		require.NoError(t, err)
		require.Len(t, consumersToRead(t, bus, 0), 1)
		if rec.Seq == 2 {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	var last error
	for _, err := range bus.Scan(ctx, 0, journal.Filter{}, 0) {
		n, last = n+1, err
		cancel()
	}
	require.Equal(t, 2, n)
	require.ErrorIs(t, last, context.Canceled)
	requireNoReaders(t, bus)
}

// Shards are read side by side, each in its order.
func TestOrderedShards(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 4)
	for range 200 {
		journaltest.AppendAll(t, bus, journaltest.NewRun(t, bus), "1", "2", "3")
	}
	ordered, direct := bothWays(t, bus)
	var all sync.WaitGroup
	got := make([][]journal.Record, bus.shards)
	errs := make([]error, bus.shards)
	for shard := range got {
		all.Go(func() {
			got[shard], errs[shard] = journaltest.Collect(ordered.Scan(t.Context(), shard, journal.Filter{}, 0))
		})
	}
	all.Wait()
	for shard := range got {
		require.NoError(t, errs[shard])
		want, err := journaltest.Collect(direct.Scan(t.Context(), shard, journal.Filter{}, 0))
		require.NoError(t, err)
		require.NotEmpty(t, want)
		require.Equal(t, want, got[shard])
	}
	requireNoReaders(t, bus)
}

// A user who may not make consumers, or may not ask them, reads all the same, and is
// refused once.
func testOrderedDenied(t *testing.T, owner *Bus, conn *nats.Conn) {
	var log lines
	bus, err := Open(t.Context(), conn, Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), RequestTimeout: patience})
	require.NoError(t, err)
	want, err := journaltest.Collect(owner.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	require.False(t, owner.unordered.Load())
	refused := 0
	handler := bus.conn.ErrorHandler()
	bus.conn.SetErrorHandler(func(c *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "CONSUMER.") && !strings.Contains(err.Error(), "DELETE") {
			refused++ // by the connection's one goroutine for this
		}
		handler(c, sub, err)
	})
	for range 2 {
		got, err := journaltest.Collect(bus.Scan(t.Context(), 0, journal.Filter{}, 0))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.True(t, bus.unordered.Load())
	require.True(t, log.contain("direct gets"))
	require.Equal(t, 1, refused)
}

// What is no delivery of the consumer's ends the read through it.
func TestReplyNumbers(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]bool{
		"$JS.ACK.S.c.1.77.12.1700000000000000001.5":            true,
		"$JS.ACK.dom.HASH.S.c.1.77.12.1700000000000000001.5.r": true,
		"$JS.ACK.S.c.1.77.12.1700000000000000001":              false,
		"$JS.ACK.S.c.1.77..1700000000000000001.5":              false,
		"$JS.ACK.S.c.1.77.x.1700000000000000001.5":             false,
		"$JS.ACK.S.c.1.77.12.1700000000000000001.5x":           false,
		"$JS.ACK.S.c.1.77.99999999999999999999.1.5":            false,
		"$JS.ACK.S.c.":    false,
		"$JS.ACK.S.other": false,
		"":                false,
	} {
		before, _, _ := strings.Cut(reply, ".S.c.")
		numbers, ok := replyNumbers(reply, before+".S.c.")
		require.Equal(t, want, ok, reply)
		if ok {
			require.Equal(t, [5]uint64{1, 77, 12, 1700000000000000001, 5}, numbers)
		}
	}
	_, ok := replyNumbers("1.77.12.1.5", "")
	require.False(t, ok)
}
