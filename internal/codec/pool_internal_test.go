package codec

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// marshaler is a value whose JSON fn makes.
type marshaler func() ([]byte, error)

func (m marshaler) MarshalJSON() ([]byte, error) { return m() }

// A writer that lies in the pool keeps no buffer of its last caller's from being freed.
func TestWriterLetsGoOfTheBuffer(t *testing.T) {
	w := writers.New().(*writer)
	text, err := w.append([]byte("x"), 1)
	require.NoError(t, err)
	require.Equal(t, "x1", string(text))
	require.Nil(t, w.text)

	text, err = w.append([]byte("x"), marshaler(func() ([]byte, error) { return nil, errors.New("no JSON") }))
	require.ErrorContains(t, err, "no JSON")
	require.Equal(t, "x", string(text))
	require.Nil(t, w.text)

	require.Panics(t, func() {
		_, _ = w.append([]byte("x"), marshaler(func() ([]byte, error) { panic("no JSON") }))
	})
	require.Nil(t, w.text)
}
