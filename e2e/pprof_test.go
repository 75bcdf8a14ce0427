package e2e

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPprof asks roles and `moorebus dev` for their profiles, also while there is no
// bus, and finds that an address that is taken ends them.
func TestPprof(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	for name, command := range map[string][]string{
		"planner": {"planner"}, "actor": {"actor"}, "observer": {"observer"},
		"gateway": {"gateway", "--listen", "127.0.0.1:0"}, "dev": {"moorebus", "dev", "--listen", "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			env := environment(home, "NATS_URL=nats://"+freeAddress(t))
			out := run(t, env, command[0], append(command[1:], "--pprof", taken.Addr().String())...)
			require.Equal(t, 78, out.code, out.stderr)
			require.Contains(t, out.stderr, "--pprof: ")
			address := freeAddress(t)
			p := launch(t, name, env, command[0], append(command[1:], "--pprof", address)...)
			t.Cleanup(func() { p.reap(t) })
			client := newAPI(t, "http://"+address)
			require.Eventually(t, func() bool {
				status, profile, err := client.do(t.Context(), http.MethodGet, "/debug/pprof/goroutine", nil)
				return err == nil && status == http.StatusOK && len(profile) > 0
			}, startTime, 20*time.Millisecond)
			client.http.CloseIdleConnections()
			_, err := p.end()
			require.NoError(t, err)
		})
	}
}
