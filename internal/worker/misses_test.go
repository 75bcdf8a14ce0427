package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/worker"
)

// Misses count from the first one in a row; finding the thing, or not looking for long,
// ends a row.
func TestMisses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := worker.NewMisses[string](10 * time.Second)
		require.False(t, m.Any())
		require.Zero(t, m.Miss("a"))
		time.Sleep(8 * time.Second) // in the bubble
		require.Zero(t, m.Miss("b"))
		require.Equal(t, 8*time.Second, m.Miss("a"))
		time.Sleep(8 * time.Second) // in the bubble
		require.Equal(t, 16*time.Second, m.Miss("a"))
		m.Found("a", "c")
		require.Zero(t, m.Miss("a"))
		require.Equal(t, 8*time.Second, m.Miss("b"))
		time.Sleep(11 * time.Second) // in the bubble
		require.Zero(t, m.Miss("b"))
		m.Clear()
		require.False(t, m.Any())
	})
}
