package commandtest

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAccepts(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it builds a command
	}
	dir, err := Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	moorebus := filepath.Join(dir, "moorebus")
	require.NoError(t, Accepts(moorebus, "planner", "--drain", "30s"))
	for _, args := range [][]string{{"planner", "--drian", "30s"}, {"planner", "--drain", "30"}, {"plan-everything"}, {"actor", "--pool"}} {
		require.Error(t, Accepts(moorebus, args...), "%q", args)
	}
}
