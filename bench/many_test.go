package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestManySmall(t *testing.T) {
	measures(t)
	t.Parallel()
	for _, archive := range []int{20, 100} { // some of them, all of them
		figures, err := many(t.Context(), manySettings{finished: 100, lone: 2, runs: 3, rounds: 1, archive: archive})
		require.NoError(t, err)
		for _, want := range []string{"restart", "one run of 5 events, median", "read and fold an old run, median", "archive and purge"} {
			require.True(t, slices.Contains(whats(figures), want), want)
		}
	}
}
