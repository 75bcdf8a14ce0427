package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProgramSizes: each role's program, stripped, has at most so many MB. A program that grows
// by several MB links something that it does not need (the gateway's SQLite takes 4 MB), or calls a method by a name that the
// linker cannot know (as text/template does), which keeps every exported method.
func TestProgramSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("reason: -short builds no programs")
	}
	for program, most := range map[string]int64{"observer": 16, "actor": 30, "planner": 30, "gateway": 34} {
		file, err := os.Stat(filepath.Join(bin, program))
		require.NoError(t, err)
		t.Logf("%s: %.1f MB (at most %d)", program, float64(file.Size())/1e6, most)
		require.LessOrEqual(t, file.Size(), most*1e6, program)
	}
}
