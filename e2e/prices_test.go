package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A price file that cannot be used ends a planner at once, before it looks for a
// bus.
func TestPlannerWithoutPrices(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	wrong := filepath.Join(home, "prices.yaml")
	require.NoError(t, os.WriteFile(wrong, []byte("m: {input: -1, output: 2}\n"), 0o600))
	missing := filepath.Join(home, "missing.yaml")
	for name, c := range map[string]struct {
		env  []string
		args []string
		says string
	}{
		"a file that is missing":        {nil, []string{"--prices", missing}, missing},
		"a price that is negative":      {nil, []string{"--prices", wrong}, "line 1: m: input must not be negative, is -1"},
		"the file of the environment":   {[]string{"MOOREBUS_PRICES=" + wrong}, nil, "must not be negative"},
		"the flag goes before that one": {[]string{"MOOREBUS_PRICES=" + wrong}, []string{"--prices", missing}, missing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := run(t, environment(home, c.env...), "planner", c.args...)
			require.Equal(t, 78, out.code, out.stderr)
			require.Contains(t, out.stderr, c.says)
		})
	}
}
