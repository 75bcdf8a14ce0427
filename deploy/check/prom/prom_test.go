package prom

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// promtool accepts the configuration and the alerts, and the alerts fire when they are to.
func TestPromtool(t *testing.T) {
	for _, args := range [][]string{
		{"check", "config", "--lint=all", "--lint-fatal", "prometheus.yml"},
		{"check", "rules", "--lint=all", "--lint-fatal", "alerts.yml"},
		{"test", "rules", "alerts_test.yml"},
	} {
		promtool := exec.Command("go", append([]string{"tool", "-modfile", "../check/go.mod", "promtool"}, args...)...)
		promtool.Dir = "../../prometheus"
		said, err := promtool.CombinedOutput()
		require.NoError(t, err, "%v: %s", args, said)
		t.Logf("%v: %s", args, said)
	}
}
