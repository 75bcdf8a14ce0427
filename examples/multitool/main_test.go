package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMultitool(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Contains(t, out.String(), `calculator({"expression":"18.5 * 9 / 5 + 32"}) = SUCCESS: 65.3`)
	require.Contains(t, out.String(), "small-model asked 5 times")
	require.Contains(t, out.String(), "delete_everything({}) = refused: blacklisted")
	require.NotContains(t, out.String(), "gone")
}
