package natsbus

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/journal/journaltest"
)

// chunkSets counts the objects whose chunks are in the bucket of snapshots.
func chunkSets(t *testing.T, bus *Bus) int {
	t.Helper()
	n := 0
	require.NoError(t, bus.subjects(t.Context(), objectStreamPrefix+snapshotBucket, chunkSubject(snapshotBucket, "*"), func(string) { n++ }))
	return n
}

// Nothing stays of a snapshot that another one was stored in the place of.
func TestSnapshotsLeaveNoChunks(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	run := journaltest.NewRun(t, bus)
	memory, err := json.Marshal(events.Hash([]byte("x")))
	require.NoError(t, err)
	put := func(seq uint64) error {
		return bus.PutSnapshot(t.Context(), run, journal.Snapshot{Seq: seq, N: 1, Memory: memory})
	}
	require.NoError(t, put(1))
	var all sync.WaitGroup
	errs := make([]error, 64)
	for i := range errs {
		all.Go(func() { errs[i] = put(uint64(i) + 2) })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 1, chunkSets(t, bus))
	_, err = bus.Snapshot(t.Context(), run)
	require.NoError(t, err)

	// One that was on its way when it was deleted does not come back.
	old, err := bus.description(t.Context(), snapshotRef(run))
	require.NoError(t, err)
	require.NoError(t, bus.DeleteSnapshot(t.Context(), run))
	require.NoError(t, bus.overwrite(t.Context(), snapshotRef(run), old, []byte("late")))
	_, err = bus.Snapshot(t.Context(), run)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.Zero(t, chunkSets(t, bus))
	require.NoError(t, put(100))
	require.Equal(t, 1, chunkSets(t, bus))
}
