package ports

import (
	"math/rand/v2"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
)

// A snapshot of several blocks comes out as it went in, and one that is cut or says
// something else of its size is none.
func TestPackedSnapshots(t *testing.T) {
	t.Parallel()
	memory := make([]byte, 0, 4<<20)
	for i := 0; len(memory) < 3<<20; i++ {
		memory = append(append(memory, events.Hash([]byte{byte(i), byte(i >> 8)})...), "the same again and again"...)
	}
	random := make([]byte, 2<<20) // which stays as it is
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for _, memory := range [][]byte{{}, []byte("x"), memory, random} {
		want := Snapshot{Seq: 7, N: 3, Head: "h", Fold: "f", Memory: memory}
		data, err := want.Encode()
		require.NoError(t, err)
		got, err := DecodeSnapshot(data)
		require.NoError(t, err)
		require.Equal(t, want, got)
		_, err = DecodeSnapshot(data[:len(data)-1])
		require.Error(t, err)
		_, err = DecodeSnapshot(append(data, 0, 1, 0, 0, 0))
		require.Error(t, err)
	}
	_, err := DecodeSnapshot(nil)
	require.Error(t, err)
}
