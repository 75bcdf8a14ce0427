package permissions

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// TestStorageIsWrittenByTwo: actors and the observer write each to a place of its
// own, read both, and make none.
func TestStorageIsWrittenByTwo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	of := layout.Storage[0]
	actor, observer := r.open(t, ActorPrefix+"web"), r.open(t, Observer)
	saved, paged := events.Entry{Tags: []string{"a"}, Value: "saved"}, events.Entry{Tags: []string{"a", "b"}, Value: "paged"}
	require.NoError(t, actor.SaveEntry(t.Context(), of, journal.WrittenByActor, saved))
	require.NoError(t, observer.SaveEntry(t.Context(), of, journal.WrittenByObserver, paged))
	require.ErrorIs(t, actor.SaveEntry(t.Context(), of, journal.WrittenByObserver, saved), journal.ErrDenied)
	require.ErrorIs(t, observer.SaveEntry(t.Context(), of, journal.WrittenByActor, paged), journal.ErrDenied)
	for _, bus := range []journal.Storage{actor, observer} {
		for _, q := range []journal.StorageQuery{{Tags: []string{"a"}}, {Value: "A"}} {
			found, err := bus.FindEntries(t.Context(), of, q)
			require.NoError(t, err)
			require.Equal(t, []events.Entry{saved, paged}, found.Entries)
		}
		got, err := bus.StoredEntry(t.Context(), of, paged.Tags)
		require.NoError(t, err)
		require.Equal(t, paged, got)
	}
	_, err := r.open(t, Planner).FindEntries(t.Context(), of, journal.StorageQuery{})
	require.ErrorIs(t, err, journal.ErrDenied)

	// Storage that the operator did not make.
	other := journal.StorageOf{Namespace: "default", Agent: "other"}
	const command = "moorebus init --storage default/other"
	require.ErrorContains(t, actor.SaveEntry(t.Context(), other, journal.WrittenByActor, saved), command)
	_, err = observer.StoredEntry(t.Context(), other, saved.Tags)
	require.ErrorContains(t, err, command)
	_, err = actor.FindEntries(t.Context(), other, journal.StorageQuery{Tags: []string{"a"}})
	require.ErrorContains(t, err, command)
	require.ErrorIs(t, err, journal.ErrDenied)
}

func TestStorageOfALayoutIsChecked(t *testing.T) {
	t.Parallel()
	_, err := Users(Layout{Storage: []journal.StorageOf{{Namespace: "Default", Agent: "a"}}})
	require.ErrorContains(t, err, `"Default/a" is not NAMESPACE/AGENT`)
}
