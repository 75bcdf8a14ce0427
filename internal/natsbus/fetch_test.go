package natsbus

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

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
		msg.Header = nats.Header{headerExpectSeq: c.seq, headerExpectSubject: c.filter, headerBatchSeq: c.place}
		rec := journal.Record{Subject: events.Subject{Run: run, From: events.Idle, To: events.Planning, Pool: events.DefaultPool}.String()}
		noteCondition(&rec, msg)
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
