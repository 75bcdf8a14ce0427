package entrystore_test

import (
	"slices"
	"testing"

	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/stretchr/testify/require"
)

// Names cannot be taken for one another, whatever is in them.
func TestBucketsAreUnambiguous(t *testing.T) {
	owners := []entrystore.Owner{{Namespace: "a", Agent: "b"}, {Namespace: "a_a", Agent: "b"}, {Namespace: "a", Agent: "a_b"}, {Namespace: "a_a_b", Agent: "c"}, {Namespace: "a", Agent: "b_a_c"}}
	var names []string
	for _, o := range owners {
		for _, bucket := range entrystore.Buckets(o) {
			names = append(names, bucket.Name)
			of, ok := entrystore.OwnerOf(bucket.Name)
			require.True(t, ok)
			require.Equal(t, o, of)
		}
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names))
	for _, other := range []string{"agents", "storage_x", "tools_storage"} {
		_, ok := entrystore.OwnerOf(other)
		require.False(t, ok, other)
	}
}

// Whoever starts a run names its agent, so storage that is made by itself is
// bounded. The operator's is not, and what is there can be written to.
func TestStorageOfAgentsIsBounded(t *testing.T) {
	bus := simtest.New(simtest.Options{})
	store := entrystore.New(bus).Most(2)
	save := func(agent string, by entrystore.Writer) error {
		return store.Save(t.Context(), entrystore.Owner{Namespace: "default", Agent: agent}, by, events.Entry{Tags: []string{"a"}, Value: "v"})
	}
	require.NoError(t, save("one", entrystore.Actor))
	require.NoError(t, save("two", entrystore.Observer))
	require.NoError(t, save("one", entrystore.Observer), "the other bucket of the same storage")
	err := save("three", entrystore.Actor)
	require.ErrorIs(t, err, journal.ErrNotReady)
	require.ErrorContains(t, err, "there is storage of 2 agents")
	require.ErrorContains(t, err, "init --storage default/three")
	names, err := bus.Names(t.Context(), "storage_")
	require.NoError(t, err)
	require.Equal(t, []string{"storage_default_A_one"}, names)
	store.Most(1)
	require.NoError(t, save("two", entrystore.Observer), "what is there can be written to")
	store.Most(3)
	require.NoError(t, save("three", entrystore.Actor))
}
