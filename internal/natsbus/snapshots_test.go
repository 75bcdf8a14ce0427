package natsbus

import (
	"encoding/json"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// chunkSets counts the objects whose chunks are in the bucket of snapshots.
func chunkSets(t *testing.T, bus *Bus) int {
	t.Helper()
	n := 0
	require.NoError(t, bus.Subjects(t.Context(), objectStreamPrefix+snapshotBucket, chunkSubject(snapshotBucket, "*"), func(string) { n++ }))
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

// A snapshot of several blocks comes out as it went in, and one that is cut or says
// something else of its size is none.
func TestPackedSnapshots(t *testing.T) {
	t.Parallel()
	memory := make([]byte, 0, 4<<20)
	for i := 0; len(memory) < 3<<20; i++ {
		memory = append(append(memory, events.Hash([]byte{byte(i), byte(i >> 8)})...), "the same again and again"...)
	}
	random := make([]byte, 2<<20) // which stays as it is
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for _, memory := range [][]byte{{}, []byte("x"), memory, random} {
		want := journal.Snapshot{Seq: 7, N: 3, Head: "h", Fold: "f", Memory: memory}
		data, err := packed(want)
		require.NoError(t, err)
		got, err := unpacked(data)
		require.NoError(t, err)
		require.Equal(t, want, got)
		_, err = unpacked(data[:len(data)-1])
		require.Error(t, err)
		_, err = unpacked(append(data, 0, 1, 0, 0, 0))
		require.Error(t, err)
	}
	_, err := unpacked(nil)
	require.Error(t, err)
}
