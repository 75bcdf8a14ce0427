package entrystore

import (
	"slices"
	"testing"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// Names cannot be taken for one another, whatever is in them.
func TestBucketsAreUnambiguous(t *testing.T) {
	owners := []Owner{{"a", "b"}, {"a_a", "b"}, {"a", "a_b"}, {"a_a_b", "c"}, {"a", "b_a_c"}}
	var names []string
	for _, o := range owners {
		for _, bucket := range Buckets(o) {
			names = append(names, bucket.Name)
			of, ok := ownerOf(bucket.Name)
			require.True(t, ok)
			require.Equal(t, o, of)
		}
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names))
	for _, other := range []string{"agents", "storage_x", "tools_storage"} {
		_, ok := ownerOf(other)
		require.False(t, ok, other)
	}
}

// Whoever starts a run names its agent, so storage that is made by itself is
// bounded. The operator's is not, and what is there can be written to.
func TestStorageOfAgentsIsBounded(t *testing.T) {
	bus := simtest.New(simtest.Options{})
	store := New(bus)
	store.most = 2
	save := func(agent string, by Writer) error {
		return store.Save(t.Context(), Owner{Namespace: "default", Agent: agent}, by, events.Entry{Tags: []string{"a"}, Value: "v"})
	}
	require.NoError(t, save("one", Actor))
	require.NoError(t, save("two", Observer))
	require.NoError(t, save("one", Observer), "the other bucket of the same storage")
	err := save("three", Actor)
	require.ErrorIs(t, err, journal.ErrNotReady)
	require.ErrorContains(t, err, "there is storage of 2 agents")
	require.ErrorContains(t, err, "init --storage default/three")
	names, err := bus.Names(t.Context(), storedPrefix)
	require.NoError(t, err)
	require.Equal(t, []string{"storage_default_A_one"}, names)
	store.most = 1
	require.NoError(t, save("two", Observer), "what is there can be written to")
	store.most = 3
	require.NoError(t, save("three", Actor))
}
