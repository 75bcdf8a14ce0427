package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// whats are the quantities of figures, in order.
func whats(figures []figure) []string {
	var all []string
	for _, f := range figures {
		all = append(all, f.What)
	}
	return all
}

func TestReplaySmall(t *testing.T) {
	measures(t)
	t.Parallel()
	figures, err := replays(t.Context(), replaySettings{events: 320, long: 100, tail: 9, rounds: 1, least: 10 * time.Millisecond})
	require.NoError(t, err)
	for _, f := range figures {
		require.Positive(t, f.Value, f.What)
	}
	for _, want := range []string{"fold from the log", "fold from memory", "verify --all", "restored from its snapshot and 9 events"} {
		require.True(t, slices.Contains(whats(figures), want), want)
	}
}
