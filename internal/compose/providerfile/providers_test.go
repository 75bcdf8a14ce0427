package providerfile_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/compose/providerfile"
	"github.com/moorebus/moorebus/internal/providers"
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
			client := providerfile.ModelClient(c.bound)
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

func TestPricesOfAFileGoFirst(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "prices.yaml")
	require.NoError(t, os.WriteFile(file, []byte("gpt-4o: {input: 7, output: 8}\nlocal: {input: 1, cached_input: 0.5, output: 2}\n"), 0o600))
	table, err := providerfile.Prices(file)
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
	_, err := providerfile.Prices(missing)
	require.ErrorContains(t, err, "--prices: ")
	require.ErrorContains(t, err, missing)
	var exit *cli.ExitError
	require.ErrorAs(t, cli.BadConfig(err), &exit)
	require.Equal(t, 78, exit.Code)
}

func TestProviders(t *testing.T) {
	names := func(file string, values map[string]string) []string {
		callers, err := providerfile.Providers(file, env(values))
		require.NoError(t, err)
		var names []string
		for name := range callers {
			names = append(names, name)
		}
		return names
	}
	require.ElementsMatch(t, []string{"scripted"}, names("", nil))
	for _, row := range providers.All() {
		require.ElementsMatch(t, []string{"scripted", row.Name}, names("", map[string]string{row.KeyVar: "k"}))
		require.ElementsMatch(t, []string{"scripted", row.Name}, names("", map[string]string{row.URLVar: "http://localhost:1/v1"}))
	}
	file := write(t, "local: {kind: openai, base_url: http://localhost:1/v1, model: small}\nclaude: {kind: anthropic, api_key: k, max_tokens: 100}\n")
	require.ElementsMatch(t, []string{"scripted", "local", "claude"}, names(file, nil))

	for text, want := range map[string]string{
		"local: {kind: openai, base_url: nonsense}\n":                          "local",
		"local: {kind: openai, base_urll: x}\n":                                "base_urll",
		"local: {kind: other, base_url: http://localhost:1}\n":                 "kind",
		"local: {kind: openai, base_url: \"http://${MOOREBUS_NO_SUCH}/v1\"}\n": "MOOREBUS_NO_SUCH",
	} {
		_, err := providerfile.Providers(write(t, text), env(nil))
		require.ErrorContains(t, err, want, text)
	}
}

func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}
