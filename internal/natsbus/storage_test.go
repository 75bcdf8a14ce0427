package natsbus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

func TestInitMakesStorage(t *testing.T) {
	t.Parallel()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	keeper := journal.StorageOf{Namespace: "default", Agent: "keeper"}
	for range 2 {
		require.NoError(t, Init(t.Context(), conn, InitOptions{Storage: []journal.StorageOf{keeper}}))
	}
	bus, err := Open(t.Context(), conn, Options{Logger: quiet})
	require.NoError(t, err)
	names, err := bus.streamNames(t.Context())
	require.NoError(t, err)
	require.Contains(t, names, "KV_storage_default_A_keeper")
	require.Contains(t, names, "KV_paged_default_A_keeper")
	all, err := bus.StorageOf(t.Context())
	require.NoError(t, err)
	require.Equal(t, []journal.StorageOf{keeper}, all)
	require.Contains(t, Check(t.Context(), conn, Options{Logger: quiet}), Finding{Level: Good, What: "storage of default/keeper"})
	require.ErrorContains(t, Init(t.Context(), conn, InitOptions{Storage: []journal.StorageOf{{Namespace: "a"}}}), "is not NAMESPACE/AGENT")
}

// Names cannot be taken for one another, whatever is in them.
func TestStorageBucketsAreUnambiguous(t *testing.T) {
	t.Parallel()
	of := func(namespace, agent string) journal.StorageOf {
		return journal.StorageOf{Namespace: namespace, Agent: agent}
	}
	owners := []journal.StorageOf{of("a", "b"), of("a_a", "b"), of("a", "a_b"), of("a_a_b", "c"), of("a", "b_a_c")}
	var streams []string
	for _, o := range owners {
		for _, by := range writers {
			streams = append(streams, kvStreamPrefix+storageBucket(o, by))
		}
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(streams))), len(streams))
	require.ElementsMatch(t, owners, storageIn(append(streams, "KV_agents", "KV_storage_x", "KV_tools_storage", "MOORE_0")))
}

// A load by tags reads what it returns: the many other entries of the agent are
// not read. What has one of the tags alone is read without its value.
func TestLoadsReadNoMoreThanTheyHaveTo(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	of := journal.StorageOf{Namespace: "default", Agent: "large"}
	const n = 200
	for i := range n {
		e := events.Entry{Tags: []string{"all", fmt.Sprintf("n%03d", i)}, Value: strings.Repeat("x", 20_000)}
		if i%100 == 7 {
			e.Tags = append(e.Tags, "rare")
		}
		require.NoError(t, bus.SaveEntry(t.Context(), of, journal.WrittenByActor, e))
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
		before := bus.conn.Stats().InBytes
		found, err := bus.FindEntries(t.Context(), of, journal.StorageQuery{Tags: c.tags, MaxBytes: 41_000, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, c.total, found.Total)
		require.Less(t, int(bus.conn.Stats().InBytes-before), c.most, "%v: of %d bytes", c.tags, n*20_000)
	}
	found, err := bus.FindEntries(t.Context(), of, journal.StorageQuery{Tags: []string{"all"}, Limit: 1000, MaxBytes: 1 << 30})
	require.NoError(t, err)
	require.Len(t, found.Entries, n)
}

// A writer that died between the tags and the entry leaves nothing to be found, and
// the same save mends it.
func TestHalfASaveIsHarmless(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	of, e := journal.StorageOf{Namespace: "default", Agent: "half"}, events.Entry{Tags: []string{"a"}, Value: "v"}
	require.NoError(t, bus.SaveEntry(t.Context(), of, journal.WrittenByActor, e))
	kv, err := bus.js.KeyValue(t.Context(), storageBucket(of, journal.WrittenByActor))
	require.NoError(t, err)
	require.NoError(t, kv.Purge(context.Background(), journal.TagsKey(e.Tags)))
	for _, q := range []journal.StorageQuery{{Tags: e.Tags}, {}} {
		found, err := bus.FindEntries(t.Context(), of, q)
		require.NoError(t, err)
		require.Zero(t, found.Total)
	}
	require.NoError(t, bus.SaveEntry(t.Context(), of, journal.WrittenByObserver, e))
	found, err := bus.FindEntries(t.Context(), of, journal.StorageQuery{Tags: e.Tags})
	require.NoError(t, err)
	require.Equal(t, journal.Found{Entries: []events.Entry{e}, Total: 1}, found)
}

// An operator lets go of an agent's storage by removing its buckets.
func TestStorageThatWasRemoved(t *testing.T) {
	t.Parallel()
	bus := newBus(t, 1)
	of, e := journal.StorageOf{Namespace: "default", Agent: "gone"}, events.Entry{Tags: []string{"a"}, Value: "v"}
	require.NoError(t, bus.SaveEntry(t.Context(), of, journal.WrittenByActor, e))
	_, err := bus.StoredEntry(t.Context(), of, e.Tags)
	require.NoError(t, err)
	require.NoError(t, bus.js.DeleteKeyValue(t.Context(), storageBucket(of, journal.WrittenByActor)))
	for _, q := range []journal.StorageQuery{{Tags: e.Tags}, {}} {
		found, err := bus.FindEntries(t.Context(), of, q)
		require.NoError(t, err)
		require.Zero(t, found.Total)
	}
	_, err = bus.StoredEntry(t.Context(), of, e.Tags)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.NoError(t, bus.SaveEntry(t.Context(), of, journal.WrittenByActor, e), "it is made anew")
}

// Whoever starts a run names its agent, so storage that is made by itself is
// bounded. The operator's is not, and what is there can be written to.
func TestStorageOfAgentsIsBounded(t *testing.T) {
	t.Parallel()
	conn := inProcess(t, startServer(t, embedded.Options{}))
	require.NoError(t, Init(t.Context(), conn, InitOptions{}))
	bus, err := Open(t.Context(), conn, Options{Logger: quiet, MaxStorages: 2})
	require.NoError(t, err)
	save := func(agent string, by journal.Writer) error {
		return bus.SaveEntry(t.Context(), journal.StorageOf{Namespace: "default", Agent: agent}, by, events.Entry{Tags: []string{"a"}, Value: "v"})
	}
	require.NoError(t, save("one", journal.WrittenByActor))
	require.NoError(t, save("two", journal.WrittenByObserver))
	require.NoError(t, save("one", journal.WrittenByObserver), "the other bucket of the same storage")
	err = save("three", journal.WrittenByActor)
	require.ErrorIs(t, err, journal.ErrNotReady)
	require.ErrorContains(t, err, "there is storage of 2 agents")
	require.ErrorContains(t, err, "init --storage default/three")
	names, err := bus.streamNames(t.Context())
	require.NoError(t, err)
	require.NotContains(t, names, "KV_storage_default_A_three")
	require.NoError(t, Init(t.Context(), conn, InitOptions{Storage: []journal.StorageOf{{Namespace: "default", Agent: "three"}}}))
	require.NoError(t, save("three", journal.WrittenByActor))
}
