package natsbus

import (
	"context"
	"testing"

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
