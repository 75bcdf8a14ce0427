package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParsePositions: what is read from an event stream's id names a position in
// every shard, and is written as it was read.
func FuzzParsePositions(f *testing.F) {
	for _, seed := range []string{"0:1", "0:1,1:2,2:3", "2:9", "", ":", "0:-1", "0:1,0:2", "3:1", "0:99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		base := positions{7, 8, 9}
		p, err := parsePositions(text, base)
		require.Equal(t, positions{7, 8, 9}, base)
		if err != nil {
			return
		}
		require.Len(t, p, len(base))
		again, err := parsePositions(p.String(), positions{0, 0, 0})
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}
