package compose_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose"
	"github.com/moorebus/moorebus/pkg/llm"
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
			client := compose.ModelClient(c.bound)
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
	limit, known := compose.OpenFiles()
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
		compose.WarnOpenFiles(c.concurrency, c.connections, slog.New(slog.NewTextHandler(&b, nil)))
		require.Equal(t, c.warned && limit <= 1<<40, b.Len() > 0, "%s: %s", name, b.String())
		if b.Len() > 0 {
			require.Contains(t, b.String(), "--connections")
		}
	}
	var n int
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	compose.AddConnectionsFlag(flags, &n)
	require.Error(t, flags.Set("connections", "-1"))
	require.NoError(t, flags.Set("connections", "0"))
}

func TestPricesOfAFileGoFirst(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "prices.yaml")
	require.NoError(t, os.WriteFile(file, []byte("gpt-4o: {input: 7, output: 8}\nlocal: {input: 1, cached_input: 0.5, output: 2}\n"), 0o600))
	table, err := compose.Prices(file)
	require.NoError(t, err)
	for model, want := range map[string]llm.Price{
		"gpt-4o":            {Input: 7, CachedInput: 7, Output: 8},
		"gpt-4o-2024-08-06": {Input: 7, CachedInput: 7, Output: 8},
		"local":             {Input: 1, CachedInput: 0.5, Output: 2},
		"gpt-4o-mini":       {Input: 0.15, CachedInput: 0.075, Output: 0.6}, // as without a file
	} {
		got, ok := table.Price("openai", model)
		require.True(t, ok, model)
		require.Equal(t, want, got, model)
	}
	_, ok := table.Price("openai", "unknown")
	require.False(t, ok)
}

func TestPricesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.yaml")
	_, err := compose.Prices(missing)
	require.ErrorContains(t, err, "--prices: ")
	require.ErrorContains(t, err, missing)
	var exit *cli.ExitError
	require.ErrorAs(t, compose.BadConfig(err), &exit)
	require.Equal(t, 78, exit.Code)
}

func TestPricesOfTheEnvironment(t *testing.T) {
	t.Setenv("MOOREBUS_PRICES", "own.yaml")
	var file string
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	compose.AddPricesFlag(flags, &file)
	require.Equal(t, "own.yaml", file)
	require.NoError(t, flags.Parse([]string{"--prices", "other.yaml"}))
	require.Equal(t, "other.yaml", file)
}
