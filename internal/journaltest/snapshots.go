package journaltest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// LogSnapshots is a journal that keeps snapshots.
type LogSnapshots interface {
	journal.Log
	ports.Snapshots
}

// Snapshots tests [ports.Snapshots].
func Snapshots(t *testing.T, open func(t *testing.T) LogSnapshots) {
	j := open(t)
	ctx, run := bounded(t), NewRun(t, j)
	_, err := j.Snapshot(ctx, run)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.NoError(t, j.DeleteSnapshot(ctx, run), "there is none")

	// The second one is larger than a message may be, also when it is packed.
	large := make([]string, 1<<16)
	for i := range large {
		large[i] = events.Hash([]byte{byte(i), byte(i >> 8)})
	}
	memory, err := json.Marshal(large)
	require.NoError(t, err)
	for n, m := range []json.RawMessage{json.RawMessage(`{"a":"<é>"}`), memory, json.RawMessage(`{}`)} {
		s := ports.Snapshot{Seq: uint64(n) + 7, N: uint64(n) + 3, Head: events.Hash(m), Fold: "1/x", Memory: m}
		require.NoError(t, j.PutSnapshot(ctx, run, s))
		got, err := j.Snapshot(ctx, run)
		require.NoError(t, err)
		require.JSONEq(t, string(s.Memory), string(got.Memory))
		got.Memory = s.Memory
		require.Equal(t, s, got)
	}
	other := run
	other.Namespace = NewToken(t)
	_, err = j.Snapshot(ctx, other)
	require.ErrorIs(t, err, journal.ErrNotFound, "the namespace counts")
	require.NoError(t, j.PutSnapshot(ctx, other, ports.Snapshot{Seq: 1, Memory: json.RawMessage(`{}`)}))

	runs, err := j.Snapshotted(ctx)
	require.NoError(t, err)
	require.Subset(t, runs, []events.Run{run, other})
	require.NoError(t, j.DeleteSnapshot(ctx, run))
	_, err = j.Snapshot(ctx, run)
	require.ErrorIs(t, err, journal.ErrNotFound)
	runs, err = j.Snapshotted(ctx)
	require.NoError(t, err)
	require.NotContains(t, runs, run)
	require.Contains(t, runs, other)

	run.Namespace = "*"
	require.Error(t, j.PutSnapshot(ctx, run, ports.Snapshot{}))
}

// LogPurger is a journal whose runs can be purged.
type LogPurger interface {
	journal.Log
	journal.Blobs
	ports.Purger
}

// Purger tests [ports.Purger].
func Purger(t *testing.T, open func(t *testing.T) LogPurger) {
	j := open(t)
	t.Run("runs", func(t *testing.T) {
		ctx := bounded(t)
		gone := NewRun(t, j)
		kept := RunIn(t, j, gone.Shard)
		last := AppendAll(t, j, gone, numbered(5)...)
		AppendAll(t, j, kept, numbered(3)...)
		later, err := j.Append(ctx, gone, last, plain(gone, "later"))
		require.NoError(t, err)

		n, err := j.Purge(ctx, gone, last)
		require.NoError(t, err)
		require.EqualValues(t, 5, n)
		require.Equal(t, []string{"later"}, bodies(mustCollect(t, j.Read(ctx, gone, 0))), "only up to the number")
		_, err = j.Append(ctx, gone, 0, plain(gone, "again"))
		require.ErrorIs(t, err, journal.ErrConflict)
		n, err = j.Purge(ctx, gone, later)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		_, err = j.Head(ctx, gone)
		require.ErrorIs(t, err, journal.ErrNotFound)
		n, err = j.Purge(ctx, gone, later)
		require.NoError(t, err)
		require.Zero(t, n, "nothing is left")
		require.Empty(t, mustCollect(t, j.Read(ctx, gone, 0)))
		_, err = Collect(j.Read(ctx, gone, later))
		require.ErrorIs(t, err, journal.ErrNotFound, "who knew it learns that it is gone")
		require.Len(t, mustCollect(t, j.Read(ctx, kept, 0)), 3)
		seq, err := j.Append(ctx, gone, 0, plain(gone, "anew"))
		require.NoError(t, err)
		require.Greater(t, seq, later, "numbers are not given again")
	})
	t.Run("the front of a shard", func(t *testing.T) {
		ctx := bounded(t)
		gone := NewRun(t, j)
		kept := RunIn(t, j, gone.Shard)
		AppendAll(t, j, gone, numbered(5)...)
		first, err := j.Append(ctx, kept, 0, plain(kept, "first"))
		require.NoError(t, err)
		_, err = j.Append(ctx, kept, first, plain(kept, "second"))
		require.NoError(t, err)
		for _, before := range []uint64{0, 1} {
			n, err := j.Trim(ctx, gone.Shard, before)
			require.NoError(t, err)
			require.Zero(t, n, "nothing stands before %d", before)
		}
		held, last, err := j.Records(ctx, gone.Shard)
		require.NoError(t, err)
		require.Equal(t, first+1, last)
		n, err := j.Trim(ctx, gone.Shard, first)
		require.NoError(t, err)
		left, same, err := j.Records(ctx, gone.Shard)
		require.NoError(t, err)
		require.Equal(t, held-n, left)
		require.Equal(t, last, same)
		require.GreaterOrEqual(t, n, uint64(5), "and whatever stood there before")
		_, err = j.Head(ctx, gone)
		require.ErrorIs(t, err, journal.ErrNotFound)
		require.Equal(t, []string{"first", "second"}, bodies(mustCollect(t, j.Read(ctx, kept, 0))), "the record itself stays")
		n, err = j.Trim(ctx, gone.Shard, first)
		require.NoError(t, err)
		require.Zero(t, n, "nothing is left")
		seq, err := j.Append(ctx, gone, 0, plain(gone, "anew"))
		require.NoError(t, err)
		require.Greater(t, seq, first, "numbers are not given again")
		_, err = j.Trim(ctx, j.Shards(), 2)
		require.Error(t, err)
	})
	t.Run("objects", func(t *testing.T) {
		ctx, pool := bounded(t), NewToken(t)
		ref, err := j.PutBlob(ctx, pool, []byte(strings.Repeat("x", 300_000)))
		require.NoError(t, err)
		removed, err := j.DeleteBlob(ctx, ref, time.Now().Add(-ports.BlobSafe))
		require.NoError(t, err)
		require.False(t, removed, "it is too young")
		_, err = j.Blob(ctx, ref)
		require.NoError(t, err)
		removed, err = j.DeleteBlob(ctx, ref, time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.True(t, removed)
		_, err = j.Blob(ctx, ref)
		require.ErrorIs(t, err, journal.ErrNotFound)
		removed, err = j.DeleteBlob(ctx, ref, time.Now().Add(time.Minute))
		require.NoError(t, err)
		require.False(t, removed, "it is gone")
		again, err := j.PutBlob(ctx, pool, []byte(strings.Repeat("x", 300_000)))
		require.NoError(t, err)
		require.Equal(t, ref, again)
		_, err = j.Blob(ctx, ref)
		require.NoError(t, err)
		ref.Bucket = "agents"
		_, err = j.DeleteBlob(ctx, ref, time.Now())
		require.Error(t, err)
	})
}
