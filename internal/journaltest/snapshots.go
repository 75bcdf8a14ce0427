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

// LogTombstones is a journal that keeps tombstones.
type LogTombstones interface {
	journal.Log
	ports.Tombstones
}

// Tombstones tests [ports.Tombstones].
func Tombstones(t *testing.T, open func(t *testing.T) LogTombstones) {
	j := open(t)
	ctx, run := bounded(t), NewRun(t, j)
	_, err := j.Tombstone(ctx, run)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.NoError(t, j.DeleteTombstone(ctx, run), "there is none")
	stone := ports.Tombstone{
		Run: run.ID, Namespace: run.Namespace, PurgedAt: time.Now().UTC().Round(0), Events: 12, Last: events.Hash(nil),
	}
	require.NoError(t, j.PutTombstone(ctx, run, stone))
	stone.Events++
	require.NoError(t, j.PutTombstone(ctx, run, stone), "again")
	got, err := j.Tombstone(ctx, run)
	require.NoError(t, err)
	require.Equal(t, stone, got)
	other := run
	other.Namespace = NewToken(t)
	_, err = j.Tombstone(ctx, other)
	require.ErrorIs(t, err, journal.ErrNotFound, "the namespace counts")
	require.NoError(t, j.DeleteTombstone(ctx, run))
	_, err = j.Tombstone(ctx, run)
	require.ErrorIs(t, err, journal.ErrNotFound)
	run.Namespace = "*"
	require.Error(t, j.PutTombstone(ctx, run, stone))
}

// Threads tests [ports.Threads].
func Threads(t *testing.T, open func(t *testing.T) ports.Threads) {
	j := open(t)
	ctx, of := bounded(t), journal.StorageOf{Namespace: NewToken(t), Agent: "helper"}
	const name = "any text: ü.*>/"
	_, _, err := j.Thread(ctx, of, name)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.ErrorIs(t, j.PutThread(ctx, of, name, []byte("0"), 7), journal.ErrConflict)
	require.NoError(t, j.PutThread(ctx, of, name, []byte("1"), 0))
	require.ErrorIs(t, j.PutThread(ctx, of, name, []byte("2"), 0), journal.ErrConflict, "only the first one makes it")
	value, revision, err := j.Thread(ctx, of, name)
	require.NoError(t, err)
	require.Equal(t, "1", string(value))
	require.NoError(t, j.PutThread(ctx, of, name, []byte("3"), revision))
	require.ErrorIs(t, j.PutThread(ctx, of, name, []byte("4"), revision), journal.ErrConflict)
	value, _, err = j.Thread(ctx, of, name)
	require.NoError(t, err)
	require.Equal(t, "3", string(value))
	for _, other := range []journal.StorageOf{{Namespace: of.Namespace, Agent: "other"}, {Namespace: NewToken(t), Agent: of.Agent}} {
		_, _, err := j.Thread(ctx, other, name)
		require.ErrorIs(t, err, journal.ErrNotFound)
	}
	_, _, err = j.Thread(ctx, of, name+"!")
	require.ErrorIs(t, err, journal.ErrNotFound)

	find := func() (key string, revision uint64, stored time.Time) {
		require.NoError(t, j.EachThread(ctx, func(in journal.StorageOf, k string, value []byte, r uint64, at time.Time) {
			if in == of {
				require.Empty(t, key, "there is one")
				require.Equal(t, "3", string(value))
				key, revision, stored = k, r, at
			}
		}))
		return key, revision, stored
	}
	key, revision, stored := find()
	require.WithinDuration(t, time.Now(), stored, time.Hour)
	require.ErrorIs(t, j.ForgetThread(ctx, of, key, revision+1000), journal.ErrConflict)
	require.NoError(t, j.ForgetThread(ctx, of, key, revision))
	_, _, err = j.Thread(ctx, of, name)
	require.ErrorIs(t, err, journal.ErrNotFound)
	gone, _, _ := find()
	require.Empty(t, gone)
	require.NoError(t, j.PutThread(ctx, of, name, []byte("3"), 0), "it can begin again")
	require.Error(t, j.PutThread(ctx, journal.StorageOf{Namespace: "*", Agent: "a"}, name, nil, 0))
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
