package natsbus

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// busyEdge is a writer of one edge, and a reader of its records in another process.
type busyEdge struct {
	t              *testing.T
	writer, reader *Bus
	run            events.Run
	last           uint64
}

func newBusyEdge(t *testing.T, srv *natstest.Server) *busyEdge {
	t.Helper()
	writer := openBus(t, connectTo(t, srv), 1)
	reader := reopenBus(t, connectTo(t, srv), GroupCommitAuto)
	return &busyEdge{t: t, writer: writer, reader: reader, run: journaltest.NewRun(t, writer)}
}

func (b *busyEdge) append(ctx context.Context) {
	b.t.Helper()
	seq, err := persist(ctx, b.writer, b.run, b.last, entryTo(b.run, events.Observing, "default", fmt.Append(nil, b.last)))
	require.NoError(b.t, err)
	b.last = seq
}

// fetch reads the last record, and reports whether it was at hand: nothing was sent for it.
func (b *busyEdge) fetch(ctx context.Context) (rec journal.Record, atHand bool) {
	b.t.Helper()
	for {
		before := b.reader.Conn().Stats().OutMsgs
		rec, err := b.reader.Fetch(ctx, b.run, b.last)
		if err == nil {
			return rec, b.reader.Conn().Stats().OutMsgs == before
		}
		require.NoError(b.t, ctx.Err(), err)
	}
}

// heat appends and reads records until one is at hand.
func (b *busyEdge) heat(ctx context.Context) {
	b.t.Helper()
	for {
		b.append(ctx)
		for range 20 {
			if _, atHand := b.fetch(ctx); atHand {
				return
			}
		}
	}
}

func patiently(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// TestRecentRecordsAreAtHand shows that a busy edge is sent ahead of its reads, that what
// is at hand is what a read returns, and that this begins anew after the server was away.
func TestRecentRecordsAreAtHand(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	b, ctx := newBusyEdge(t, srv), patiently(t)
	direct := reopenBus(t, connectTo(t, srv), GroupCommitAuto)
	direct.Unordered.Store(true)
	for round := range 2 {
		b.heat(ctx)
		require.Len(t, consumersToRead(t, b.writer, 0), 1)
		for found := 0; found < 20; {
			b.append(ctx)
			rec, atHand := b.fetch(ctx)
			want, err := direct.Fetch(ctx, b.run, b.last)
			require.NoError(t, err)
			require.Equal(t, want, rec)
			if atHand {
				found++
				_, again := b.fetch(ctx)
				require.False(t, again, "a record that was used is not kept")
			}
		}
		if round == 0 {
			restart(srv)
		}
	}
}

// TestRecentRecordsThatNobodyReads shows that an edge is left alone that is not read often
// enough for what comes of it, and is not tried again soon.
func TestRecentRecordsThatNobodyReads(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natstest.Options{})
	b, ctx := newBusyEdge(t, srv), patiently(t)
	b.heat(ctx)
	for len(consumersToRead(t, b.writer, 0)) > 0 {
		for range 100 {
			b.append(ctx)
		}
	}
	for range 500 {
		_, atHand := b.fetch(ctx)
		require.False(t, atHand)
	}
	require.Empty(t, consumersToRead(t, b.writer, 0))
}

// TestRecentRecordsDenied shows that a user that may not create consumers reads all the same.
func TestRecentRecordsDenied(t *testing.T) {
	t.Parallel()
	operator, conn := guardedServer(t, "$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.MOORE_0")
	b := &busyEdge{t: t, writer: openBus(t, operator, 1), reader: reopenBus(t, conn, GroupCommitAuto)}
	b.run = journaltest.NewRun(t, b.writer)
	ctx := patiently(t)
	b.append(ctx)
	for !b.reader.Unordered.Load() {
		rec, _ := b.fetch(ctx)
		require.Equal(t, b.last, rec.Seq)
	}
	_, atHand := b.fetch(ctx)
	require.False(t, atHand)
	require.Empty(t, consumersToRead(t, b.writer, 0))
}

// TestTailAcrossBatches shows that a tail brings every record in order, however many there
// are and however large.
func TestTailAcrossBatches(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	ctx := patiently(t)
	run := journaltest.NewRun(t, bus)
	tail, err := bus.OpenTail(ctx, events.StreamName(0), journal.Filter{To: events.Observing}.Subject(0))
	require.NoError(t, err)
	defer tail.Close()
	var last, received uint64
	drain := func() {
		require.NoError(t, tail.Drain(func(msg *nats.Msg, from api.Delivered) {
			require.Greater(t, from.Seq, received)
			received = from.Seq
		}))
	}
	large := make([]byte, 512<<10)
	for i := range 3000 {
		body := []byte("x")
		if i%300 == 0 {
			body = large
		}
		last, err = bus.Append(ctx, run, last, entryTo(run, events.Observing, "default", body))
		require.NoError(t, err)
		if i%700 == 0 {
			drain()
		}
	}
	require.Eventually(t, func() bool { drain(); return received == last }, patience, time.Millisecond)
}
