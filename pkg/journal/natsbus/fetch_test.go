package natsbus

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/journaltest"
)

// A delivered record says where the one before it lies, and that is there.
func TestFetch(t *testing.T) {
	t.Parallel()
	bus := overTCP(t, 3)
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
	for name, c := range map[string]struct {
		seq, filter, place string
		want               bool
	}{
		"under its condition":      {"0", run.Filter(), "", true},
		"at the head of a batch":   {"0", run.Filter(), "1", true},
		"behind others in a batch": {"0", run.Filter(), "2", false},
		"another run's condition":  {"0", other.Filter(), "", false},
		"no run's condition":       {"0", "", "", false},
		"after another record":     {"7", run.Filter(), "", false},
		"no condition":             {"", run.Filter(), "", false},
		"no number":                {"none", run.Filter(), "", false},
	} {
		msg := nats.NewMsg("answer")
		msg.Header = nats.Header{headerExpectSeq: {c.seq}, headerExpectSubject: {c.filter}, headerBatchSeq: {c.place}}
		rec := journal.Record{Subject: events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: events.DefaultPool}.String()}
		noteCondition(&rec, msg)
		require.Equal(t, c.want, rec.First, name)
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
