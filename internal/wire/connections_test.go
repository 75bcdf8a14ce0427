package wire_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/moorebus/moorebus/internal/wire"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestModelClient makes calls that are all in flight at once, twice: the second
// ones go over the connections of the first. With a bound there are never more.
func TestModelClient(t *testing.T) {
	t.Parallel()
	const calls = 80 // more than the standard transport keeps
	for name, c := range map[string]struct{ bound, together, connections int }{
		"kept":    {bound: 0, together: calls, connections: calls},
		"bounded": {bound: 3, together: 1, connections: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var opened atomic.Int64
			var gathered sync.WaitGroup
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.together > 1 {
					gathered.Done()
					gathered.Wait()
				}
				_, _ = io.WriteString(w, "done")
			}))
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					opened.Add(1)
				}
			}
			server.Start()
			defer server.Close()
			client := wire.ModelClient(c.bound)
			defer client.CloseIdleConnections()
			for range 2 {
				if c.together > 1 {
					gathered.Add(calls)
				}
				var all sync.WaitGroup
				for range calls {
					all.Go(func() {
						answer, err := client.Get(server.URL)
						if err == nil {
							_, err = io.Copy(io.Discard, answer.Body)
							_ = answer.Body.Close()
						}
						if err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
			}
			require.LessOrEqual(t, opened.Load(), int64(c.connections))
		})
	}
}

func TestWarnOpenFiles(t *testing.T) {
	limit, known := wire.OpenFiles()
	if !known {
		t.Skip("the limit is not known on this system") // reason: only Unix has it
	}
	for name, c := range map[string]struct {
		concurrency, connections int
		warned                   bool
	}{
		"usual":        {0, 0, limit < 320},
		"too many":     {int(min(limit, 1<<40)), 0, true},
		"with a bound": {int(min(limit, 1<<40)), 100, false},
	} {
		var b bytes.Buffer
		wire.WarnOpenFiles(c.concurrency, c.connections, slog.New(slog.NewTextHandler(&b, nil)))
		require.Equal(t, c.warned && limit <= 1<<40, b.Len() > 0, "%s: %s", name, b.String())
		if b.Len() > 0 {
			require.Contains(t, b.String(), "--connections")
		}
	}
	var n int
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	wire.AddConnectionsFlag(flags, &n)
	require.Error(t, flags.Set("connections", "-1"))
	require.NoError(t, flags.Set("connections", "0"))
}
