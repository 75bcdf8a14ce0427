package natsbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// everything is the reading of all that a stream has.
func everything(tb testing.TB, bus *Bus, shard int, after uint64) api.Reading {
	tb.Helper()
	end, err := bus.Last(tb.Context(), shard)
	require.NoError(tb, err)
	return api.Reading{Stream: events.StreamName(shard), Subject: journal.Filter{}.Subject(shard), Match: journal.Filter{}.Match, After: after, End: end, All: true}
}

// bothWays are two buses on one connection, of which the second never makes a
// consumer and the first does whenever it may.
func bothWays(t *testing.T, bus *Bus) (ordered, direct *Bus) {
	t.Helper()
	ordered, direct = reopenBus(t, bus.Conn(), GroupCommitAuto), reopenBus(t, bus.Conn(), GroupCommitAuto)
	ordered.OrderedFrom = 1
	direct.Unordered.Store(true)
	return ordered, direct
}

// consumersToRead lists the consumers that read, which go when the reads have ended.
func consumersToRead(t *testing.T, bus *Bus, shard int) (names []string) {
	t.Helper()
	stream, err := bus.JS.Stream(t.Context(), events.StreamName(shard))
	require.NoError(t, err)
	list := stream.ConsumerNames(t.Context())
	for name := range list.Name() {
		if strings.HasPrefix(name, api.ReaderPrefix) {
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
	if testing.Short() {
		t.Skip("-short") // reason: it runs the conformance suite once more
	}
	t.Parallel()
	bus := newBus(t, 3)
	bus.OrderedFrom = 1
	journaltest.Log(t, func(*testing.T) journal.Log { return bus })
	requireNoReaders(t, bus)
}

// TestOrdered reads a log whose consumer is deleted meanwhile, and as users who may make none.
func TestOrdered(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it stores thousands of records
	}
	t.Parallel()
	rights := []string{"$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.MOORE_0"}
	users := map[string][]string{"making": rights, "asking": append(slices.Clone(rights), "$JS.API.CONSUMER.CREATE.>")}
	connect := guardedUsers(t, users)
	bus := patient(t, openBus(t, connect("operator"), 1), GroupCommitAuto)
	bus.OrderedFrom = 1
	fillRuns(t, bus, 600, 10)
	t.Run("is lost", func(t *testing.T) { testOrderedIsLost(t, bus) })
	for name := range users { // at last: who may not delete a consumer leaves it behind for a minute
		t.Run("denied "+name, func(t *testing.T) { testOrderedDenied(t, bus, connect(name)) })
	}
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
		if n%1000 != 1 {
			continue
		}
		for _, name := range consumersToRead(t, bus, 0) {
			made[name] = true
			require.NoError(t, bus.JS.DeleteConsumer(t.Context(), events.StreamName(0), name))
		}
	}
	require.EqualValues(t, end, n)
	require.Greater(t, len(made), 1, "another one was made")
}

// A user who may not make consumers, or may not ask them, reads all the same, and is
// refused once.
func testOrderedDenied(t *testing.T, owner *Bus, conn *nats.Conn) {
	var log lines
	bus, err := Open(t.Context(), conn, Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), RequestTimeout: patience})
	require.NoError(t, err)
	bus.OrderedFrom = 1
	want, err := journaltest.Collect(owner.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	require.False(t, owner.Unordered.Load())
	refused := 0
	handler := bus.NC.ErrorHandler()
	bus.NC.SetErrorHandler(func(c *nats.Conn, sub *nats.Subscription, err error) {
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
	require.True(t, bus.Unordered.Load())
	require.True(t, log.contain("direct gets"))
	require.Equal(t, 1, refused)
}

// interleave stores n records of each run in turn, and waits for them.
func interleave(t *testing.T, bus *Bus, n int, runs ...events.Run) {
	t.Helper()
	for i := range n {
		for _, run := range runs {
			msg := nats.NewMsg(events.Subject{Run: run, From: events.Planning, To: events.Nobody, Pool: fmt.Sprint("p", i%3)}.String())
			msg.Data = []byte(strconv.Itoa(i))
			require.NoError(t, bus.NC.PublishMsg(msg))
		}
		if i%100 == 0 {
			_, err := bus.Last(t.Context(), 0) // no more than the server's queue holds
			require.NoError(t, err)
		}
	}
	require.Eventually(t, func() bool {
		last, err := bus.Last(t.Context(), 0)
		return err == nil && last == uint64(n*len(runs))
	}, patience, time.Millisecond)
}

// A run is read whole and in order from wherever the reader stands, whether that
// takes one request or several pages.
func TestReadFromAnywhere(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	const n = api.PageRecords + 500
	one, other := journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)
	interleave(t, bus, n, one, other)
	for _, skip := range []int{0, 1, 2, n / 2, n - api.FewRecords - 1, n - api.FewRecords, n - 2, n - 1, n} {
		var after uint64
		if skip > 0 {
			after = uint64(2*skip - 1) // the number of the run's record skip
		}
		recs, err := journaltest.Collect(bus.Read(t.Context(), one, after))
		require.NoError(t, err)
		require.Len(t, recs, n-skip, "after %d records", skip)
		for i, rec := range recs {
			require.Equal(t, strconv.Itoa(skip+i), string(rec.Body))
		}
	}
	recs, err := journaltest.Collect(bus.Read(t.Context(), journaltest.NewRun(t, bus), 0))
	require.NoError(t, err)
	require.Empty(t, recs)
	for rec, err := range bus.Read(t.Context(), one, 3) { // who wants no more is left alone
		require.NoError(t, err)
		require.Equal(t, "2", string(rec.Body))
		break
	}
}

// Scans that match much and little give the same records as Match chooses.
func TestScanChoosesByFilter(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	runs := []events.Run{journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)}
	rare := events.NewRun("rare", runs[0].ID, 1)
	interleave(t, bus, 900, append(slices.Repeat([]events.Run{runs[0]}, 9), rare)...)
	require.NoError(t, bus.NC.Publish("moore.0.stray", nil))
	all, err := journaltest.Collect(bus.Scan(t.Context(), 0, journal.Filter{}, 0))
	require.NoError(t, err)
	require.Len(t, all, 9000, "what is no event's subject is not there")
	for _, f := range []journal.Filter{
		{Namespace: "rare"}, {Namespace: events.DefaultNamespace}, {Pool: "p1"}, {From: events.Planning}, {From: events.Acting}, {Run: rare.ID}, {Namespace: "none"},
	} {
		for _, after := range []uint64{0, 10, 5000, 8999, 9000} {
			want := slices.DeleteFunc(slices.Clone(all), func(rec journal.Record) bool { return rec.Seq <= after || !f.Match(rec.Subject) })
			got, err := journaltest.Collect(bus.Scan(t.Context(), 0, f, after))
			require.NoError(t, err)
			require.Equal(t, len(want), len(got), "%+v after %d", f, after)
			for i := range want {
				require.Equal(t, want[i].Seq, got[i].Seq)
			}
		}
	}
}

// A delivered record says where the one before it lies, and that is there.
func TestFetch(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 3)
	run := journaltest.NewRun(t, bus)
	add := func(last uint64, from, to events.State, body string) uint64 {
		seq, err := bus.Append(t.Context(), run, last, journal.Entry{
			Subject: events.Subject{Run: run, From: from, To: to, Pool: events.DefaultPool}, Body: []byte(body),
		})
		require.NoError(t, err)
		return seq
	}
	first := add(0, events.Idle, events.Nobody, "first")
	second := add(first, events.Idle, events.Planning, "second")

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var got journal.Record
	inbox := journal.Inbox{States: []events.State{events.Planning}, Pool: events.DefaultPool}
	require.NoError(t, bus.Consume(ctx, inbox, 1, func(d journal.Delivery) {
		got = d.Record()
		_ = d.Ack()
		stop()
	}))
	require.Equal(t, []uint64{second, first}, []uint64{got.Seq, got.After})

	rec, err := bus.Fetch(t.Context(), run, got.After)
	require.NoError(t, err)
	require.Equal(t, "first", string(rec.Body))
	require.Equal(t, []uint64{first, 0}, []uint64{rec.Seq, rec.After})
	_, err = bus.Fetch(t.Context(), run, second+100)
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = bus.Fetch(t.Context(), events.Run{Shard: 7, Namespace: run.Namespace, ID: run.ID}, 1)
	require.Error(t, err)
}

// The first record of a run is only believed to be that where the server made sure:
// under the run's own condition, and not behind others in a batch.
func TestFirstOfARun(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	run, other := journaltest.NewRun(t, bus), journaltest.NewRun(t, bus)
	of := func(values ...string) []string { return values }
	for name, c := range map[string]struct {
		seq, filter, place []string
		want               bool
	}{
		"under its condition":      {of("0"), of(run.Filter()), nil, true},
		"at the head of a batch":   {of("0"), of(run.Filter()), of("1"), true},
		"behind others in a batch": {of("0"), of(run.Filter()), of("2"), false},
		"another run's condition":  {of("0"), of(other.Filter()), nil, false},
		"no run's condition":       {of("0"), nil, nil, false},
		"after another record":     {of("7"), of(run.Filter()), nil, false},
		"no condition":             {nil, of(run.Filter()), nil, false},
		"no number":                {of("none"), of(run.Filter()), nil, false},
		"a second number":          {of("7", "0"), of(run.Filter()), nil, false},
		"a number before":          {of("0", "7"), of(run.Filter()), nil, false},
		"a second condition":       {of("0"), of(other.Filter(), run.Filter()), nil, false},
		"a condition before":       {of("0"), of(run.Filter(), other.Filter()), nil, false},
		"a second place":           {of("0"), of(run.Filter()), of("5", "1"), false},
	} {
		msg := nats.NewMsg("answer")
		msg.Header = nats.Header{api.HeaderExpectSeq: c.seq, api.HeaderExpectSubject: c.filter, headerBatchSeq: c.place}
		rec := journal.Record{Subject: events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: events.DefaultPool}.String()}
		noteCondition(&rec, msg.Header)
		require.Equal(t, c.want, rec.First, name)
		if name == "a second number" {
			require.EqualValues(t, 7, rec.After, "the server goes by the first one")
		}
	}
	all := batchOf(t, bus, 2)
	last, err := bus.appenders[0].Batch(all, same(all))
	require.NoError(t, err)
	for i, want := range []bool{true, false} {
		rec, err := bus.Fetch(t.Context(), all[i].Run, last-1+uint64(i))
		require.NoError(t, err)
		require.Equal(t, want, rec.First)
	}
}

// Shards are read side by side, each in its order.
func TestOrderedShards(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 4)
	for range 60 {
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
