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
	require.Contains(t, out.String(), "small-model asked 4 times")
	require.NotContains(t, out.String(), "gone")
}
