package e2e

import (
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestListenersThatOthersReach: the gateway and dev do not start beyond loopback
// without credentials; with a token, or where somebody insists, they do.
func TestListenersThatOthersReach(t *testing.T) {
	t.Parallel()
	env := environment(t.TempDir(), "MOOREBUS_DATA="+filepath.Join(t.TempDir(), "data"))
	for _, command := range [][]string{{"gateway"}, {"moorebus", "dev"}} {
		out := run(t, env, command[0], append(command[1:], "--listen", "0.0.0.0:0")...)
		require.Equal(t, 78, out.code, out.stderr)
		require.Contains(t, out.stderr, "set MOOREBUS_TOKEN, listen on 127.0.0.1, or allow it with --insecure-no-auth")
	}
	for name, more := range map[string]struct{ variable, flag string }{"token": {variable: "MOOREBUS_TOKEN=secret"}, "insecure": {flag: "--insecure-no-auth"}} {
		t.Run(name, func(t *testing.T) {
			_, port, err := net.SplitHostPort(freeAddress(t))
			require.NoError(t, err)
			args := []string{"--listen", "0.0.0.0:" + port}
			env := environment(t.TempDir())
			if more.flag != "" {
				args = append(args, more.flag)
			}
			if more.variable != "" {
				env = append(env, more.variable)
			}
			p := launch(t, "gateway", env, "gateway", args...)
			defer p.reap(t)
			require.Eventually(t, func() bool {
				res, err := http.Get("http://127.0.0.1:" + port + "/healthz")
				if err != nil {
					return false
				}
				_ = res.Body.Close()
				return res.StatusCode == http.StatusOK
			}, time.Minute, 20*time.Millisecond)
		})
	}
}
