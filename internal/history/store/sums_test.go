package store_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/history"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
)

// Sums are added up by hour, and are kept by namespace and name.
func TestSums(t *testing.T) {
	s, _ := open(t, filepath.Join(t.TempDir(), "views.db"))
	hour := time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)
	use := func(name string, at time.Time, runs int64, priced bool) history.Use {
		return history.Use{Namespace: "a", Hour: at, Kind: history.ByTool, Name: name, Sum: history.Sum{Runs: runs, Calls: 2, Failed: 3, Input: 4, Output: 5, Cached: 6, CostUSD: 0.5, Priced: priced, Unpriced: 7}}
	}
	period := history.Period{Namespace: "a", Hour: hour, Started: 1, Ended: 2, Failed: 3, Events: 4}
	other := use("x", hour, 9, true)
	other.Namespace = "b"
	for i := range uint64(2) {
		require.NoError(t, s.Apply(t.Context(), history.Batch{
			Stream: "s", From: i, To: i + 1, Periods: []history.Period{period}, Uses: []history.Use{use("x", hour, 1, i == 1), use(`"`, hour, 1, false), use("x", hour.Add(-time.Hour), 1, true), other},
		}))
	}
	uses, err := s.Uses(t.Context(), "a", history.ByTool, hour)
	require.NoError(t, err)
	quote, x := use(`"`, hour, 1, false), use("x", hour, 1, true)
	quote.Add(quote.Sum)
	x.Add(x.Sum)
	require.Equal(t, []history.Use{quote, x}, uses)
	uses, err = s.Uses(t.Context(), "a", history.ByAgent, hour)
	require.NoError(t, err)
	require.Empty(t, uses)
	periods, err := s.Periods(t.Context(), "a", hour)
	require.NoError(t, err)
	period.Add(period)
	require.Equal(t, []history.Period{period}, periods)
}

// The runs below a run, those that are open, and one by its id are found.
func TestFamilies(t *testing.T) {
	s, _ := open(t, filepath.Join(t.TempDir(), "views.db"))
	at := time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)
	run := func(id, parent, forkOf string, ended time.Time) history.Change {
		at = at.Add(-time.Second) // the last is the oldest
		return history.Change{Run: history.Run{Namespace: "a", ID: id, State: events.Planning, Parent: parent, ForkOf: forkOf, Started: at, Updated: at, Ended: ended}}
	}
	changes := []history.Change{run("top", "", "", time.Time{}), run("sub", "top", "", at), run("fork", "", "top", at), run("both", "top", "top", time.Time{}), run("below", "sub", "", at)}
	require.NoError(t, s.Apply(t.Context(), history.Batch{Stream: "s", To: 1, Runs: changes}))
	below, err := s.Below(t.Context(), "a", "top", 10)
	require.NoError(t, err)
	require.Len(t, below, 3)
	for i, id := range []string{"both", "fork", "sub"} {
		require.Equal(t, id, below[i].ID)
	}
	below, err = s.Below(t.Context(), "a", "", 10)
	require.NoError(t, err)
	require.Empty(t, below)
	unended, err := s.Open(t.Context(), "a")
	require.NoError(t, err)
	require.Len(t, unended, 2)
	one, is, err := s.Run(t.Context(), "a", "fork")
	require.NoError(t, err)
	require.True(t, is)
	require.Equal(t, changes[2].Run, one.Run)
	_, is, err = s.Run(t.Context(), "b", "fork")
	require.NoError(t, err)
	require.False(t, is)
}
