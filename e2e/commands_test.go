package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommandsThatDoNotStart: a command whose settings cannot hold ends at once, before
// it looks for a bus, and says why.
func TestCommandsThatDoNotStart(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	prices, missing := filepath.Join(home, "prices.yaml"), filepath.Join(home, "missing.yaml")
	require.NoError(t, os.WriteFile(prices, []byte("m: {input: -1, output: 2}\n"), 0o600))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	const credentials, profiles = "set MOOREBUS_TOKEN, listen on 127.0.0.1, or allow it with --insecure-no-auth", "--pprof: "
	pprof := " --pprof " + taken.Addr().String()
	for _, c := range []struct{ command, env, says string }{
		{"gateway --listen 0.0.0.0:0", "", credentials},
		{"moorebus dev --listen 0.0.0.0:0", "", credentials},
		{"planner --prices " + missing, "", missing},
		{"planner --prices " + prices, "", "line 1: m: input must not be negative, is -1"},
		{"planner", "MOOREBUS_PRICES=" + prices, "must not be negative"},
		{"planner --prices " + missing, "MOOREBUS_PRICES=" + prices, missing},
		{"planner" + pprof, "", profiles},
		{"actor" + pprof, "", profiles},
		{"observer" + pprof, "", profiles},
		{"gateway --listen 127.0.0.1:0" + pprof, "", profiles},
		{"moorebus dev --listen 127.0.0.1:0" + pprof, "", profiles},
	} {
		t.Run(strings.ReplaceAll(c.command, "/", "_"), func(t *testing.T) {
			t.Parallel()
			env := environment(home, "NATS_URL=nats://"+freeAddress(t), "MOOREBUS_DATA="+filepath.Join(t.TempDir(), "data"), c.env)
			args := strings.Fields(c.command)
			out := run(t, env, args[0], args[1:]...)
			require.Equal(t, 78, out.code, out.stderr)
			require.Contains(t, out.stderr, c.says)
		})
	}
}
