package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBasic(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, func(string) string { return "" }))
	require.Contains(t, out.String(), "Phobos and Deimos")
	require.Contains(t, out.String(), "ToolSuccess")
}
