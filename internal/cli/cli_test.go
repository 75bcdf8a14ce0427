package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/buildinfo"
	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(pairs ...string) func(string) string {
	return func(key string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == key {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		code    int
		message string
	}{
		"fine":         {nil, 0, ""},
		"failure":      {errors.New("no luck"), 1, "no luck"},
		"own code":     {fmt.Errorf("outer: %w", &ExitError{Code: 4, Err: errors.New("inner")}), 4, "outer: inner"},
		"own, silent":  {&ExitError{Code: 3}, 3, ""},
		"usage":        {Usage("no %s", "way"), 2, "no way"},
		"configured":   {NotConfigured("set %s", "KEY"), 78, "set KEY"},
		"no server":    {fmt.Errorf("connect: %w", nats.ErrNoServers), 75, "connect: nats: no servers available for connection"},
		"not set up":   {journal.ErrNotReady, 75, "the bus is not set up"},
		"own ctx gone": {context.Canceled, 1, "context canceled"},
		"not found":    {journal.ErrNotFound, 1, "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.Equal(t, c.code, mainCode(&b, func(context.Context) error { return c.err }))
			_, message, _ := strings.Cut(strings.TrimSpace(b.String()), ": ")
			require.Equal(t, c.message, message)
		})
	}
}

func TestSignals(t *testing.T) {
	for s, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		raise := func(ctx context.Context) {
			require.NoError(t, syscall.Kill(os.Getpid(), s))
			<-ctx.Done()
		}
		var b bytes.Buffer
		require.Equal(t, code, mainCode(&b, func(ctx context.Context) error {
			raise(ctx)
			return fmt.Errorf("reading: %w", ctx.Err())
		}))
		require.Contains(t, b.String(), "ended by signal")
		require.Equal(t, code, mainCode(&b, func(ctx context.Context) error {
			raise(ctx)
			return context.Cause(ctx)
		}))
		require.Equal(t, 0, mainCode(&b, func(ctx context.Context) error {
			raise(ctx)
			return nil
		}), "a role that was asked to stop and did")
		require.Equal(t, 1, mainCode(&b, func(ctx context.Context) error {
			raise(ctx)
			return errors.New("broken")
		}))
	}
}

func TestExecute(t *testing.T) {
	failed := errors.New("failed")
	tree := func(args ...string) *cobra.Command {
		root := &cobra.Command{Use: "root"}
		sub := &cobra.Command{Use: "sub", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return failed }}
		sub.Flags().Int("n", 0, "")
		root.AddCommand(sub)
		root.SetArgs(args)
		root.SetOut(&bytes.Buffer{})
		return root
	}
	require.Equal(t, failed, Execute(t.Context(), tree("sub")))
	require.NoError(t, Execute(t.Context(), tree("--help")))
	for _, args := range [][]string{{"sub", "arg"}, {"sub", "--n", "x"}, {"sub", "--what"}, {"other"}} {
		var exit *ExitError
		require.ErrorAs(t, Execute(t.Context(), tree(args...)), &exit, args)
		require.Equal(t, ExitUsage, exit.Code)
		require.Contains(t, exit.Error(), "--help`")
	}
}

func TestLogger(t *testing.T) {
	for _, c := range []struct {
		args     string
		terminal bool
		want     string
	}{
		{"", false, "level=WARN msg=hot n=1"},
		{"--log-format=json", true, `"msg":"hot","n":1`},
		{"--log-level=error", false, ""},
		{"", true, terminal.Style("93", "WRN") + " hot n=1"},
	} {
		flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
		f := AddLogFlags(flags, slog.LevelWarn)
		require.NoError(t, flags.Parse(strings.Fields(c.args)))
		var b bytes.Buffer
		logger, err := f.logger(&b, c.terminal, true)
		require.NoError(t, err)
		logger.Info("cold")
		logger.Warn("hot", "n", 1)
		require.NotContains(t, b.String(), "cold")
		require.Contains(t, b.String(), c.want)
		if c.want == "" {
			require.Empty(t, b.String())
		}
	}
	for _, f := range []*LogFlags{{format: "xml", level: "info"}, {format: "text", level: "loud"}} {
		_, err := f.Logger()
		require.Equal(t, ExitUsage, exitCode(t.Context(), err))
	}
}

func TestRoleFlags(t *testing.T) {
	require.True(t, events.ValidToken(DefaultInstance()))
	require.Equal(t, "a-b-local-7", instanceName("A.b.local", 7))
	require.Equal(t, "host-7", instanceName("...", 7))
	require.Len(t, instanceName(strings.Repeat("x", 100), 7), 63)
	for args, bad := range map[string]string{
		"": "", "--drain=1s --concurrency=0 --instance=a": "",
		"--instance=A":       `--instance: "A" is not a name`,
		"--concurrency=-1":   "--concurrency: must not be negative, is -1",
		"--concurrency=many": "invalid syntax",
		"--drain=0":          "--drain: must be more than 0, is 0s",
		"--drain=-1m":        "--drain: must be more than 0, is -1m0s",
	} {
		cmd := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { return nil }}
		AddRoleFlags(cmd.Flags())
		cmd.SetArgs(strings.Fields(args))
		err := Execute(t.Context(), cmd)
		if bad == "" {
			require.NoError(t, err, args)
			continue
		}
		require.Equal(t, ExitUsage, exitCode(t.Context(), err), args)
		require.ErrorContains(t, err, bad)
	}
}

func busFlags(t *testing.T, getenv func(string) string, args ...string) *BusFlags {
	t.Helper()
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	f := AddDataFlags(flags, getenv)
	require.NoError(t, flags.Parse(args))
	return f
}

func TestTarget(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		env    []string
		remote bool
		want   string
	}{
		"nothing":           {nil, []string{"HOME", "/users/me"}, false, "/users/me/.local/share/moorebus"},
		"xdg":               {nil, []string{"HOME", "/users/me", "XDG_DATA_HOME", "/data"}, false, "/data/moorebus"},
		"relative xdg":      {nil, []string{"HOME", "/users/me", "XDG_DATA_HOME", "data"}, false, "/users/me/.local/share/moorebus"},
		"data of env":       {nil, []string{"MOOREBUS_DATA", "/d"}, false, "/d"},
		"bus of env":        {nil, []string{"MOOREBUS_DATA", "/d", "NATS_URL", "nats://a"}, true, "nats://a"},
		"data before bus":   {[]string{"--data", "/e"}, []string{"NATS_URL", "nats://a"}, false, "/e"},
		"flag before env":   {[]string{"--nats", "nats://b"}, []string{"NATS_URL", "nats://a"}, true, "nats://b"},
		"credentials alone": {nil, []string{"HOME", "/h", "NATS_USER", "u"}, false, "/h/.local/share/moorebus"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := busFlags(t, env(c.env...), c.args...).Place()
			require.NoError(t, err)
			require.Equal(t, c.remote, got.Remote)
			require.Equal(t, c.want, got.Dir+got.Connect.URL)
		})
	}
	got, err := FindServer("", env())
	require.NoError(t, err)
	require.True(t, got.Remote)
	require.Empty(t, got.From)
	for code, f := range map[int]*BusFlags{
		ExitUsage:  busFlags(t, env(), "--nats", "a", "--data", "b"),
		ExitConfig: busFlags(t, env("NATS_PASSWORD", "p")),
	} {
		_, err := f.Place()
		require.Equal(t, code, exitCode(t.Context(), err))
	}
	_, err = busFlags(t, env()).Place()
	require.Equal(t, ExitConfig, exitCode(t.Context(), err))
}

func TestNamespace(t *testing.T) {
	for _, c := range []struct {
		args, env, want string
		given           bool
	}{{"", "", "default", false}, {"", "blue", "blue", true}, {"red", "blue", "red", true}} {
		name, given, err := busFlags(t, env("MOOREBUS_NAMESPACE", c.env), "--namespace", c.args).Namespace()
		require.NoError(t, err)
		require.Equal(t, c.want, name)
		require.Equal(t, c.given, given)
	}
	_, _, err := busFlags(t, env(), "--namespace", "No").Namespace()
	require.Equal(t, ExitUsage, exitCode(t.Context(), err))
}

var quiet = slog.New(slog.DiscardHandler)

func TestDial(t *testing.T) {
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := busFlags(t, env("NATS_URL", "nats://127.0.0.1:1")).Dial(short, DialOptions{Logger: quiet, Wait: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// What runs, tools and providers say is quoted in a log, and the brief one takes
// everything that slog's own does.
func TestBriefLog(t *testing.T) {
	var b bytes.Buffer
	logger := slog.New(newBriefHandler(&b, &slog.HandlerOptions{Level: slog.LevelInfo}, false)).With("role", "actor")
	line := func() string {
		_, rest, _ := strings.Cut(b.String(), " ") // the time of day
		b.Reset()
		return rest
	}
	logger.Error("no luck", "error", errors.New("it said \x1b]0;owned\x07"), "level", 7, "msg", "hello")
	require.Equal(t, `ERR no luck role=actor error="it said \x1b]0;owned\a" level=7 msg=hello`+"\n", line())
	logger.WithGroup("g").Info("in", "msg", "", "literal", `\x1b[2J x`)
	require.Equal(t, `INF in role=actor g.msg="" g.literal="\\x1b[2J x"`+"\n", line())
	logger.Debug("nothing")
	require.Empty(t, b.String())
}

func TestShellWord(t *testing.T) {
	for text, want := range map[string]string{
		"call_1": "call_1", "": "''", "a b": "'a b'", "$(reboot)": "'$(reboot)'", "it's": `'it'\''s'`, "dir/x-1.yaml": "dir/x-1.yaml",
	} {
		require.Equal(t, want, ShellWord(text))
	}
}

func TestVersion(t *testing.T) {
	var out bytes.Buffer
	root := &cobra.Command{Use: "planner", Args: cobra.ExactArgs(1), RunE: func(*cobra.Command, []string) error { return errors.New("it ran") }}
	root.SetOut(&out)
	AddVersion(root)
	root.SetArgs([]string{"--version"})
	require.NoError(t, Execute(t.Context(), root))
	require.Contains(t, out.String(), "\ntable "+reducer.DefaultTable().Hash()+"\n")

	out.Reset()
	root.SetArgs([]string{"version", "-o", "json"})
	require.NoError(t, Execute(t.Context(), root))
	var facts buildinfo.Facts
	require.NoError(t, json.Unmarshal(out.Bytes(), &facts))
	require.Equal(t, buildinfo.Read(), facts)

	out.Reset()
	program := &cobra.Command{Use: "moorebus"} // does nothing by itself
	program.SetOut(&out)
	AddVersion(program)
	program.SetArgs([]string{"--version"})
	require.NoError(t, Execute(t.Context(), program))
	require.Contains(t, out.String(), "\ntable ")
}

// The context that is selected in the nats CLI names the bus where nothing nearer
// does. Runs that this machine has already go before it, and both are said.
func TestSelectedContext(t *testing.T) {
	home := t.TempDir()
	contexts := filepath.Join(home, ".config", "nats", "context")
	require.NoError(t, os.MkdirAll(contexts, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(contexts, "prod.json"), []byte(`{"url":"nats://u:secret@prod:4222"}`), 0o600))
	selected := filepath.Join(home, ".config", "nats", "context.txt")
	require.NoError(t, os.WriteFile(selected, []byte("prod"), 0o600))
	at := func(pairs ...string) Place {
		t.Helper()
		got, err := busFlags(t, env(append(pairs, "HOME", home)...)).Place()
		require.NoError(t, err)
		return got
	}
	got := at()
	require.True(t, got.Remote)
	require.Equal(t, "nats://u:secret@prod:4222", got.Connect.URL)
	require.Equal(t, "the bus is nats://xxxxx@prod:4222, from the selected nats context prod", got.Note)
	server, err := FindServer("", env("HOME", home, "NATS_CREDS", "/c"))
	require.NoError(t, err)
	require.Equal(t, "the nats context prod", server.From)
	require.Equal(t, "/c", server.Connect.Creds, "the environment goes before the context")
	for _, pairs := range [][]string{{"NATS_URL", "nats://a"}, {"NATS_CONTEXT", "prod"}, {"MOOREBUS_DATA", "/d"}} {
		require.Equal(t, pairs[0], at(pairs...).From)
		require.Empty(t, at(pairs...).Note, "it was named")
	}
	server, err = FindServer("nats://b", env("HOME", home))
	require.NoError(t, err)
	require.Equal(t, "nats://b", server.Connect.URL)
	require.Empty(t, server.Connect.User, "credentials go to the context's own server only")

	own := AddLocalFlags(pflag.NewFlagSet("x", pflag.ContinueOnError), env("HOME", home, "NATS_URL", "nats://a"))
	local, err := own.Place()
	require.NoError(t, err)
	require.False(t, local.Remote)
	require.Contains(t, local.Note, "NATS_URL is not used")

	dir := filepath.Join(home, ".local", "share", "moorebus")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	got = at()
	require.Equal(t, dir, got.Dir)
	require.Equal(t, "this uses data directory "+dir+"; set NATS_CONTEXT=prod to use the nats context that is selected", got.Note)
	server, err = FindServer("", env("HOME", home))
	require.NoError(t, err)
	require.Equal(t, "nats://u:secret@prod:4222", server.Connect.URL, "a role has no directory")

	require.NoError(t, os.WriteFile(selected, []byte("gone"), 0o600))
	_, err = FindServer("", env("HOME", home))
	require.Equal(t, ExitConfig, exitCode(t.Context(), err))
	require.ErrorContains(t, err, "the selected nats context gone: read the context")
}

// TestSay: what a process says is a line for people, or a record where the log is JSON.
func TestSay(t *testing.T) {
	var b bytes.Buffer
	say(&b, slog.LevelError, "planner: ", "use `moorebus init`\nnow")
	require.Equal(t, "planner: use `moorebus init`\nnow\n", b.String())
	b.Reset()
	inJSON.Store(true)
	t.Cleanup(func() { inJSON.Store(false) })
	say(&b, slog.LevelError, "planner: ", "use `moorebus init`\nnow")
	var record map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &record))
	require.Equal(t, "use `moorebus init`\nnow", record["msg"])
	require.Equal(t, "ERROR", record["level"])
	require.Equal(t, 1, strings.Count(b.String(), "\n"))
}
