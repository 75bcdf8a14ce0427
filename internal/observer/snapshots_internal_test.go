package observer

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run's snapshots are as long as it is, so a long one has fewer of them; what follows on the
// last one stays a small part of the run.
func TestLongRunsHaveFewerSnapshots(t *testing.T) {
	s := &snapshotter{every: 100}
	var last, events, taken uint64
	for n := uint64(1); n <= 10_000; n += 3 {
		if s.due(max(n, 4)-3, n) {
			last, events, taken = n, events+n, taken+1
			if n < 800 {
				require.Less(t, n%100, uint64(3), "every hundred")
			}
		}
		require.LessOrEqual(t, n-last, max(102, n/4))
	}
	require.Equal(t, uint64(22), taken)
	require.Less(t, events, uint64(6*10_000), "the length of all snapshots")
	require.False(t, s.due(math.MaxUint64-1, math.MaxUint64), "a forged number of the feed ends, too")
}
