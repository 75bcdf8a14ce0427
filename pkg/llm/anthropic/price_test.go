package anthropic

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDefaultModel(t *testing.T) {
	c, err := New(Options{APIKey: "k", Model: "m-0"})
	require.NoError(t, err)
	require.Equal(t, "m-0", c.DefaultModel())
}
