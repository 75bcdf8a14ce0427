package retention_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/retention"
)

// purgedIDs returns the runs that went, in their order.
func purgedIDs(done retention.Purged) []string {
	ids := []string{}
	for _, r := range done.Runs {
		ids = append(ids, r.Run)
	}
	return ids
}

// meddler is a bus on which something happens once the first tombstone stands.
type meddler struct {
	retention.Bus
	meddle func()
}

func (m *meddler) PutTombstone(ctx context.Context, run events.Run, t journal.Tombstone) error {
	err := m.Bus.PutTombstone(ctx, run, t)
	if m.meddle != nil {
		m.meddle()
		m.meddle = nil
	}
	return err
}

// A run that is forked while it is being purged stays, with all that it was forked
// from itself.
func TestForkedWhileItIsPurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	grandparent := w.quick()
	parent := w.fork(grandparent)
	w.append(parent, events.Control, &events.CancelledRun{})
	loner := w.quick()
	var fork events.Run
	bus := &meddler{Bus: w.bus, meddle: func() { fork = w.fork(parent) }}
	done, err := retention.Purge(t.Context(), bus, retention.PurgeOptions{
		Runs: []events.Run{grandparent, parent, loner}, Grace: noGrace,
	})
	require.NoError(t, err)
	require.Equal(t, []string{loner.ID}, purgedIDs(done))
	require.EqualValues(t, 2, done.Events)
	require.Len(t, done.Kept, 2)
	for _, k := range done.Kept {
		require.Contains(t, k.Reason, fork.ID)
	}
	for _, run := range []events.Run{grandparent, parent} {
		require.Equal(t, 2, w.length(run))
		_, err := w.bus.Tombstone(t.Context(), run)
		require.ErrorIs(t, err, journal.ErrNotFound, "it is not held to be purged")
	}
	require.Zero(t, w.length(loner))
}

// A run whose tombstone was lifted by an import meanwhile stays.
func TestImportedWhileItIsPurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	run := w.quick()
	bus := &meddler{Bus: w.bus, meddle: func() { require.NoError(t, w.bus.DeleteTombstone(t.Context(), run)) }}
	done, err := retention.Purge(t.Context(), bus, retention.PurgeOptions{Runs: []events.Run{run}, Grace: noGrace})
	require.NoError(t, err)
	require.Empty(t, done.Runs)
	require.Contains(t, done.Kept[0].Reason, "imported")
	require.Equal(t, 2, w.length(run))
}
