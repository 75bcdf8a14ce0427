package compare_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/compare"
	"github.com/moorebus/moorebus/internal/filelog"
)

// The golden runs compare with each other the same from both sides, and each with itself as the
// same.
func TestGoldenRuns(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/runs/*.jsonl")
	require.NoError(t, err)
	forks := 0
	for _, file := range files {
		log, err := filelog.Open(file)
		require.NoError(t, err)
		for _, a := range log.Runs() {
			self, err := compare.Runs(t.Context(), log, machine, a, a)
			require.NoError(t, err, file)
			require.True(t, self.Same, file)
			require.Empty(t, self.Calls)
			for _, b := range log.Runs() {
				one, err := compare.Runs(t.Context(), log, machine, a, b)
				require.NoError(t, err, file)
				other, err := compare.Runs(t.Context(), log, machine, b, a)
				require.NoError(t, err, file)
				require.Equal(t, one.ForkPoint, other.ForkPoint, file)
				require.Equal(t, one.ForkRun, other.ForkRun, file)
				require.Equal(t, one.Same, other.Same, file)
				require.Equal(t, one.Usage.A, other.Usage.B, file)
				require.Equal(t, one.State.A, other.State.B, file)
				if a != b && one.ForkPoint != nil {
					forks++
				}
			}
		}
		require.NoError(t, log.Close())
	}
	require.Positive(t, forks, "none of the golden runs is a fork")
}
