package natsbus

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

func TestInitMakesStorage(t *testing.T) {
	t.Parallel()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	keeper := entrystore.Owner{Namespace: "default", Agent: "keeper"}
	for range 2 {
		require.NoError(t, Init(t.Context(), conn, InitOptions{Buckets: entrystore.Buckets(keeper)}))
	}
	bus, err := Open(t.Context(), conn, Options{Logger: quiet})
	require.NoError(t, err)
	names, err := bus.StreamNames(t.Context())
	require.NoError(t, err)
	require.Contains(t, names, "KV_storage_default_A_keeper")
	require.Contains(t, names, "KV_paged_default_A_keeper")
	all, err := entrystore.New(bus).Owners(t.Context())
	require.NoError(t, err)
	require.Equal(t, []entrystore.Owner{keeper}, all)
}

// A load by tags reads what it returns: the many other entries of the agent are
// not read. What has one of the tags alone is read without its value.
func TestLoadsReadNoMoreThanTheyHaveTo(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	of := entrystore.Owner{Namespace: "default", Agent: "large"}
	const n = 200
	for i := range n {
		e := events.Entry{Tags: []string{"all", fmt.Sprintf("n%03d", i)}, Value: strings.Repeat("x", 20_000)}
		if i%100 == 7 {
			e.Tags = append(e.Tags, "rare")
		}
		require.NoError(t, entrystore.New(bus).Save(t.Context(), of, entrystore.Actor, e))
	}
	for _, c := range []struct {
		tags  []string
		total int
		most  int
	}{
		{[]string{"rare"}, n / 100, n / 100 * 25_000},
		{[]string{"all", "rare"}, n / 100, n/100*25_000 + n*500},
		{[]string{"all"}, n, 2*25_000 + n*500},
		{[]string{"none"}, 0, 10_000},
	} {
		before := bus.NC.Stats().InBytes
		found, err := entrystore.New(bus).Find(t.Context(), of, entrystore.Query{Tags: c.tags, MaxBytes: 41_000, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, c.total, found.Total)
		require.Less(t, int(bus.NC.Stats().InBytes-before), c.most, "%v: of %d bytes", c.tags, n*20_000)
	}
	found, err := entrystore.New(bus).Find(t.Context(), of, entrystore.Query{Tags: []string{"all"}, Limit: 1000, MaxBytes: 1 << 30})
	require.NoError(t, err)
	require.Len(t, found.Entries, n)
}

// A writer that died between the tags and the entry leaves nothing to be found, and
// the same save mends it.
func TestHalfASaveIsHarmless(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	of, e := entrystore.Owner{Namespace: "default", Agent: "half"}, events.Entry{Tags: []string{"a"}, Value: "v"}
	require.NoError(t, entrystore.New(bus).Save(t.Context(), of, entrystore.Actor, e))
	kv, err := bus.JS.KeyValue(t.Context(), entrystore.Bucket(of, entrystore.Actor).Name)
	require.NoError(t, err)
	require.NoError(t, kv.Purge(context.Background(), events.Hash([]byte(`["a"]`))))
	for _, q := range []entrystore.Query{{Tags: e.Tags}, {}} {
		found, err := entrystore.New(bus).Find(t.Context(), of, q)
		require.NoError(t, err)
		require.Zero(t, found.Total)
	}
	require.NoError(t, entrystore.New(bus).Save(t.Context(), of, entrystore.Observer, e))
	found, err := entrystore.New(bus).Find(t.Context(), of, entrystore.Query{Tags: e.Tags})
	require.NoError(t, err)
	require.Equal(t, entrystore.Found{Entries: []events.Entry{e}, Total: 1}, found)
}

// An operator lets go of an agent's storage by removing its buckets.
func TestStorageThatWasRemoved(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	of, e := entrystore.Owner{Namespace: "default", Agent: "gone"}, events.Entry{Tags: []string{"a"}, Value: "v"}
	require.NoError(t, entrystore.New(bus).Save(t.Context(), of, entrystore.Actor, e))
	_, err := entrystore.New(bus).Get(t.Context(), of, e.Tags)
	require.NoError(t, err)
	require.NoError(t, bus.JS.DeleteKeyValue(t.Context(), entrystore.Bucket(of, entrystore.Actor).Name))
	for _, q := range []entrystore.Query{{Tags: e.Tags}, {}} {
		found, err := entrystore.New(bus).Find(t.Context(), of, q)
		require.NoError(t, err)
		require.Zero(t, found.Total)
	}
	_, err = entrystore.New(bus).Get(t.Context(), of, e.Tags)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.NoError(t, entrystore.New(bus).Save(t.Context(), of, entrystore.Actor, e), "it is made anew")
}

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
		return bus.PutSnapshot(t.Context(), run, ports.Snapshot{Seq: seq, N: 1, Memory: memory})
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
