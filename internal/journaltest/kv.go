package journaltest

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// KV tests [kv.Store]. What is opened are two connections to one bus.
func KV(t *testing.T, open func(t *testing.T) (kv.Store, kv.Store)) {
	store, other := open(t)
	t.Run("a bucket that is missing", func(t *testing.T) { kvMissing(t, store) })
	for name, of := range map[string]kv.Bucket{"plain": {}, "marks": {Marks: true}, "any replica": {AnyReplica: true}} {
		t.Run(name, func(t *testing.T) {
			of.Name, of.About = NewToken(t), "of a test"
			kvValues(t, store, other, of)
			kvRevisions(t, store, other, of)
			kvPatterns(t, store, of)
			kvRefusals(t, store, of)
			names, err := other.Names(bounded(t), of.Name)
			require.NoError(t, err)
			require.Equal(t, []string{of.Name}, names)
		})
	}
	t.Run("one of many is first", func(t *testing.T) { kvRace(t, store, other) })
	t.Run("lifetimes", func(t *testing.T) { kvLifetimes(t, store) })
	t.Run("born", func(t *testing.T) {
		born, err := store.Born(bounded(t))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), born, time.Hour)
		same, err := other.Born(bounded(t))
		require.NoError(t, err)
		require.True(t, born.Equal(same))
	})
}

func item(key, value string) kv.Item { return kv.Item{Key: key, Value: []byte(value)} }

// eachOf returns what a pattern matches, by key.
func eachOf(t *testing.T, store kv.Store, of kv.Bucket, pattern string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for it, err := range store.Each(bounded(t), of, pattern) {
		require.NoError(t, err)
		all[it.Key] = string(it.Value)
	}
	return all
}

// kvMissing: whoever reads says which bucket is missing, in the same words, and whoever writes makes it.
func kvMissing(t *testing.T, store kv.Store) {
	ctx, of := bounded(t), kv.Bucket{Name: NewToken(t)}
	is := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, journal.ErrNotReady)
		require.EqualError(t, err, "bucket "+of.Name+": the bus is not set up: a bucket is missing: run `moorebus init`")
		require.ErrorIs(t, buckets.OrNone(err), journal.ErrNotFound)
	}
	_, err := store.Get(ctx, of, "a")
	is(err)
	_, err = store.Keys(ctx, of, ">")
	is(err)
	for _, err := range store.Each(ctx, of, ">") {
		is(err)
	}
	is(store.Delete(ctx, of, "a", 1))
	_, err = store.Update(ctx, of, item("a", "1"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "1"}, eachOf(t, store, of, ">"))
}

// kvValues: what one connection wrote another one reads.
func kvValues(t *testing.T, store, other kv.Store, of kv.Bucket) {
	ctx := bounded(t)
	first, err := store.Put(ctx, of, item("a.b", "1"))
	require.NoError(t, err)
	second, err := store.Put(ctx, of, kv.Item{Key: "a.b", Value: []byte("2"), Header: map[string]string{"Moorebus-Test": "beside"}})
	require.NoError(t, err)
	require.Greater(t, second, first)
	for _, reader := range []kv.Store{store, other} {
		got, err := reader.Get(ctx, of, "a.b")
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), got.Stored, time.Hour)
		want := kv.Item{Key: "a.b", Value: []byte("2"), Revision: second, Stored: got.Stored}
		if of.AnyReplica {
			want.Header = map[string]string{"Moorebus-Test": "beside"}
		} else {
			got.Header = nil
		}
		require.Equal(t, want, got)
		_, err = reader.Get(ctx, of, "a")
		require.ErrorIs(t, err, journal.ErrNotFound)
	}
	for it, err := range other.Each(ctx, of, "a.*") {
		require.NoError(t, err)
		require.Equal(t, second, it.Revision)
		require.False(t, it.Stored.IsZero())
	}
	_, err = store.Put(ctx, of, kv.Item{Key: "empty"})
	require.NoError(t, err)
	_, err = store.Get(ctx, of, "empty")
	require.ErrorIs(t, err, journal.ErrNotFound)
	keys, err := store.Keys(ctx, of, "*")
	require.NoError(t, err)
	require.Equal(t, []string{"empty"}, keys)
}

func kvRevisions(t *testing.T, store, other kv.Store, of kv.Bucket) {
	ctx := bounded(t)
	update := func(store kv.Store, value string, revision uint64) (uint64, error) {
		it := item("c", value)
		it.Revision = revision
		return store.Update(ctx, of, it)
	}
	_, err := update(store, "0", 1<<40)
	require.ErrorIs(t, err, journal.ErrConflict)
	first, err := update(store, "1", 0)
	require.NoError(t, err)
	_, err = update(other, "2", 0)
	require.ErrorIs(t, err, journal.ErrConflict, "it is there")
	second, err := update(other, "2", first)
	require.NoError(t, err)
	_, err = update(store, "3", first)
	require.ErrorIs(t, err, journal.ErrConflict)
	require.ErrorIs(t, store.Delete(ctx, of, "c", first), journal.ErrConflict)
	require.NoError(t, store.Delete(ctx, of, "c", second))
	mark, err := store.Get(ctx, of, "c")
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.Greater(t, mark.Revision, second, "it was deleted")
	none, err := store.Get(ctx, of, "never")
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.Zero(t, none.Revision)
	require.NotContains(t, eachOf(t, other, of, "*"), "c")
	_, err = update(other, "4", second)
	require.ErrorIs(t, err, journal.ErrConflict, "it was deleted")
	_, err = update(other, "4", 0)
	require.NoError(t, err, "it can be put anew")
	require.Equal(t, "4", eachOf(t, store, of, "*")["c"])
}

func kvPatterns(t *testing.T, store kv.Store, of kv.Bucket) {
	all := map[string]string{}
	for _, key := range []string{"p.x", "p.y.z", "p.x_A-1=/.Z", "pp.x", "q.x.y.z"} {
		_, err := store.Put(bounded(t), of, item(key, "of "+key))
		require.NoError(t, err)
		all[key] = "of " + key
	}
	for pattern, want := range map[string][]string{
		"p.*": {"p.x"}, "p.>": {"p.x", "p.x_A-1=/.Z", "p.y.z"}, "*.x.>": {"q.x.y.z"}, "p.*.*": {"p.x_A-1=/.Z", "p.y.z"}, "p.y.z": {"p.y.z"}, "none.>": {},
	} {
		keys, err := store.Keys(bounded(t), of, pattern)
		require.NoError(t, err)
		require.Equal(t, want, keys, pattern)
		found := eachOf(t, store, of, pattern)
		require.Equal(t, want, append([]string{}, slices.Sorted(maps.Keys(found))...), pattern)
		for key, value := range found {
			require.Equal(t, all[key], value)
		}
	}
	for range store.Each(bounded(t), of, "p.>") {
		break // before its end
	}
}

func kvRefusals(t *testing.T, store kv.Store, of kv.Bucket) {
	ctx := bounded(t)
	for _, bad := range []string{"", ".", "a.", ".a", "a..b", "*", "a.>", "a b", "ü", "a\n"} {
		_, err := store.Get(ctx, of, bad)
		require.ErrorContains(t, err, "is not a key", bad)
		_, err = store.Put(ctx, of, item(bad, "x"))
		require.ErrorContains(t, err, "is not a key", bad)
		_, err = store.Update(ctx, of, item(bad, "x"))
		require.ErrorContains(t, err, "is not a key", bad)
		require.ErrorContains(t, store.Delete(ctx, of, bad, 1), "is not a key", bad)
	}
	_, err := store.Put(ctx, of, item("huge", strings.Repeat("x", 2<<20)))
	require.ErrorIs(t, err, journal.ErrTooLarge)
}

func kvRace(t *testing.T, store, other kv.Store) {
	of := kv.Bucket{Name: NewToken(t)}
	var all sync.WaitGroup
	var first atomic.Int32
	for i := range 16 {
		all.Go(func() {
			_, err := []kv.Store{store, other}[i%2].Update(bounded(t), of, item("a", "x"))
			if err == nil {
				first.Add(1)
			} else {
				assert.ErrorIs(t, err, journal.ErrConflict)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, first.Load())
}

func kvLifetimes(t *testing.T, store kv.Store) {
	ctx := bounded(t)
	short, own := kv.Bucket{Name: NewToken(t), Lifetime: time.Second}, kv.Bucket{Name: NewToken(t), Marks: true}
	_, err := store.Put(ctx, short, item("a", "1"))
	require.NoError(t, err)
	_, err = store.Update(ctx, own, kv.Item{Key: "a", Value: []byte("1"), Lifetime: time.Second})
	require.NoError(t, err)
	_, err = store.Put(ctx, own, item("stays", "1"))
	require.NoError(t, err)
	for _, of := range []kv.Bucket{short, own} {
		require.Eventually(t, func() bool {
			_, err := store.Get(ctx, of, "a")
			return err != nil
		}, patience, 50*time.Millisecond)
		_, err := store.Update(ctx, of, item("a", "2"))
		require.NoError(t, err, "it can be put anew")
	}
	require.Equal(t, map[string]string{"a": "2", "stays": "1"}, eachOf(t, store, own, "*"))
}
