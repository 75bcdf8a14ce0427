package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/embedded"
)

func from(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

// TestOperatorToken: processes of one user have one token, and those of another one have another.
func TestOperatorToken(t *testing.T) {
	t.Parallel()
	mine, others := from(map[string]string{"XDG_CONFIG_HOME": t.TempDir()}), from(map[string]string{"HOME": t.TempDir()})
	tokens := make([]Serve, 20)
	var starts sync.WaitGroup
	for i := range tokens {
		starts.Go(func() { tokens[i].ServeOperator(mine) })
	}
	starts.Wait()
	file, err := cli.OperatorFile(mine)
	require.NoError(t, err)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	left, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, left, 1)
	held := embedded.Holder{URL: "nats://127.0.0.1:1", Token: "watch", TokenFrom: tokens[0].TokenFrom}
	for _, s := range tokens {
		require.Equal(t, tokens[0].Token, s.Token)
		token, needs := JoinToken(held, mine)
		require.Equal(t, s.Token, token)
		require.Empty(t, needs)
	}
	token, needs := JoinToken(held, others)
	require.Equal(t, "watch", token)
	require.Contains(t, needs, "run the command as the user")
	var other Serve
	other.ServeOperator(others)
	require.NotEqual(t, tokens[0].Token, other.Token)
	token, _ = JoinToken(held, others)
	require.Equal(t, "watch", token)

	require.NoError(t, os.WriteFile(file, []byte("short"), 0o600))
	var damaged Serve
	damaged.ServeOperator(mine)
	require.NotEqual(t, "short", damaged.Token)
	require.Equal(t, cli.NATSTokenVariable, damaged.TokenFrom, "nobody has that one")
	require.Greater(t, len(damaged.Token), 20)
}

// TestLockFilesOfOthers: a lock file names one of two variables, and a server of this machine, or no
// token is sent to it.
func TestLockFilesOfOthers(t *testing.T) {
	t.Parallel()
	env := from(map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "NATS_TOKEN": "n", "MOOREBUS_TOKEN": "m", "OPENAI_API_KEY": "k", "HOME": "/nonexistent"})
	var mine Serve
	mine.ServeOperator(from(map[string]string{"XDG_CONFIG_HOME": env("XDG_CONFIG_HOME")}))
	require.True(t, strings.HasPrefix(mine.TokenFrom, ofUser))
	for _, c := range []struct{ url, from, want string }{
		{"nats://127.0.0.1:1", "NATS_TOKEN", "n"}, {"nats://[::1]:1", "MOOREBUS_TOKEN", "m"}, {"nats://127.0.0.1:1", "", "watch"}, {"nats://127.0.0.1:1", mine.TokenFrom, mine.Token},
		{"nats://127.0.0.1:1", "OPENAI_API_KEY", "watch"}, {"nats://127.0.0.1:1", "HOME", "watch"}, {"nats://192.0.2.1:1", "NATS_TOKEN", "watch"},
		{"nats://evil.example:1", mine.TokenFrom, "watch"}, {"nats://localhost.evil.example:1", "MOOREBUS_TOKEN", "watch"}, {"", "NATS_TOKEN", "watch"}, {"nats://127.0.0.1:1", ofUser + "00000000", "watch"},
	} {
		token, needs := JoinToken(embedded.Holder{URL: c.url, Token: "watch", TokenFrom: c.from}, env)
		require.Equal(t, c.want, token, c)
		require.Equal(t, c.want == "watch" && c.from != "", needs != "", c)
	}
}
