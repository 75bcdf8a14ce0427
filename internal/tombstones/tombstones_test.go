package tombstones_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func TestTombstones(t *testing.T) {
	bus, ctx := simtest.New(simtest.Options{}), t.Context()
	run := journaltest.NewRun(t, bus)
	_, err := tombstones.Get(ctx, bus, run)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.NoError(t, tombstones.Delete(ctx, bus, run), "there is none")
	stone := tombstones.Tombstone{
		Run: run.ID, Namespace: run.Namespace, PurgedAt: time.Now().UTC().Round(0), Events: 12, Last: events.Hash(nil),
	}
	require.NoError(t, tombstones.Put(ctx, bus, run, stone))
	stone.Events++
	require.NoError(t, tombstones.Put(ctx, bus, run, stone), "again")
	got, err := tombstones.Get(ctx, bus, run)
	require.NoError(t, err)
	require.Equal(t, stone, got)
	other := run
	other.Namespace = "other"
	_, err = tombstones.Get(ctx, bus, other)
	require.ErrorIs(t, err, journal.ErrNotFound, "the namespace counts")
	require.NoError(t, tombstones.Delete(ctx, bus, run))
	_, err = tombstones.Get(ctx, bus, run)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.NoError(t, tombstones.Put(ctx, bus, run, stone), "it can be purged again")
	run.Namespace = "*"
	require.Error(t, tombstones.Put(ctx, bus, run, stone))
}
