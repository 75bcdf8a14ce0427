package buckets_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
)

// A position is replaced by whoever knows its revision. A role without a bucket has none yet.
func TestPositions(t *testing.T) {
	bus := simtest.New(simtest.Options{})
	for _, of := range []ports.RoleKey{{Role: "gateway", Name: "test"}, {Role: "new", Name: "test"}} {
		_, _, err := buckets.Position(t.Context(), bus, of)
		require.ErrorIs(t, err, journal.ErrNotFound)
		first, err := buckets.PutPosition(t.Context(), bus, of, []byte("7"), 0)
		require.NoError(t, err)
		_, err = buckets.PutPosition(t.Context(), bus, of, []byte("8"), 0)
		require.ErrorIs(t, err, journal.ErrConflict)
		second, err := buckets.PutPosition(t.Context(), bus, of, []byte("8"), first)
		require.NoError(t, err)
		value, revision, err := buckets.Position(t.Context(), bus, of)
		require.NoError(t, err)
		require.Equal(t, "8", string(value))
		require.Equal(t, second, revision)
	}
}

// Buckets are told apart by their names.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, of := range rows.Buckets([]string{"web", "db"}) {
		require.False(t, seen[of.Name], of.Name)
		require.NotEmpty(t, of.About)
		require.NotEmpty(t, of.Keys)
		seen[of.Name] = true
	}
}
