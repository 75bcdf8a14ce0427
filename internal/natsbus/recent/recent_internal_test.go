package recent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// What is kept is bounded by records and by bytes, and the oldest goes first.
func TestBounds(t *testing.T) {
	r, e := NewReader(nil), &edge{}
	keep := func(seq uint64, bytes int) {
		r.keep(position{"S", seq}, kept{&nats.Msg{Data: make([]byte, bytes)}, api.Delivered{Seq: seq}, e})
	}
	for seq := range uint64(2 * maxRecords) {
		keep(seq, 1)
	}
	require.Len(t, r.kept, maxRecords)
	require.Equal(t, maxRecords, r.bytes)
	require.NotContains(t, r.kept, position{"S", maxRecords - 1})
	require.Contains(t, r.kept, position{"S", maxRecords})

	for seq := range uint64(64) {
		keep(1e6+seq, 1<<20)
		require.LessOrEqual(t, r.bytes, maxBytes)
	}
	require.Len(t, r.kept, maxBytes>>20)
	_, _, ok := r.Take("S", 1e6+63)
	require.True(t, ok)
	_, _, again := r.Take("S", 1e6+63)
	require.False(t, again, "a record is given out once")
	require.Equal(t, maxBytes-1<<20, r.bytes)
}

// Two processes that share the work of an edge follow it, four do not.
func TestShareThatPays(t *testing.T) {
	now := time.Now()
	e := &edge{heard: now, came: sample, used: sample / 2, pause: firstPause}
	require.NoError(t, e.judge(now))
	require.Zero(t, e.came)
	for _, pause := range []time.Duration{firstPause, 2 * firstPause, 4 * firstPause} {
		e.came, e.used = sample, sample/4
		require.ErrorIs(t, e.judge(now), errUnused)
		require.Equal(t, now.Add(pause), e.until)
	}
	e.came = sample - 1
	require.NoError(t, e.judge(now))
	require.ErrorIs(t, e.judge(now.Add(2*idle)), errIdle)
}

// An edge that cannot be followed is let alone for a while.
func TestEdgeThatCannotBeFollowed(t *testing.T) {
	conn, err := nats.Connect(natstest.Start(t, natstest.Options{}).URL)
	require.NoError(t, err)
	defer conn.Close()
	client, _, err := api.New(conn, time.Minute, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	r, e := NewReader(client), &edge{place: place{"NONE", "none"}}
	r.follow(e)
	require.True(t, e.until.After(time.Now()))
	require.False(t, client.Unordered.Load(), "others may be")
}
