package logwalk_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/logwalk"
)

func TestPosition(t *testing.T) {
	base := logwalk.Position{7, 8, 9}
	p, err := base.Parse("2:1, 0:3")
	require.NoError(t, err)
	require.Equal(t, logwalk.Position{3, 8, 1}, p)
	require.Equal(t, "0:3,1:8,2:1", p.String())
	for _, bad := range []string{"", ":", "0", "0:", "0:-1", "0:1,0:2", "3:1", "x:1", "0:99999999999999999999", "0:1,"} {
		_, err := base.Parse(bad)
		require.ErrorContains(t, err, "is not a position", bad)
	}
}

// FuzzPosition: what is read from an event stream's id names a place in every
// shard, is written as it was read, and leaves the base alone.
func FuzzPosition(f *testing.F) {
	for _, seed := range []string{"0:1", "0:1,1:2,2:3", "2:9", "", ":", "0:-1", "0:1,0:2", "3:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		base := logwalk.Position{7, 8, 9}
		p, err := base.Parse(text)
		require.Equal(t, logwalk.Position{7, 8, 9}, base)
		if err != nil {
			return
		}
		require.Len(t, p, len(base))
		again, err := make(logwalk.Position, 3).Parse(p.String())
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}
