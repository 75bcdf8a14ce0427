package datadir

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(pairs ...string) func(string) string {
	values := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	return from(values)
}

func busFlags(t *testing.T, getenv func(string) string, args ...string) *cli.BusFlags {
	t.Helper()
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	f := cli.AddDataFlags(flags, getenv)
	require.NoError(t, flags.Parse(args))
	return f
}

// exitCode is the code that an error has of its own, else that of any failure.
func exitCode(err error) int {
	var own *cli.ExitError
	if errors.As(err, &own) {
		return own.Code
	}
	return cli.ExitFailure
}

var quiet = slog.New(slog.DiscardHandler)

// TestOpenDirectory walks through a data directory's life: missing, made by who
// serves it, joined by others, refused where joining is not wanted, looked at.
func TestOpenDirectory(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "data")
	f := busFlags(t, env(), "--data", dir)
	_, err := Open(ctx, f, Options{DialOptions: cli.DialOptions{Logger: quiet}})
	require.ErrorContains(t, err, "there are no runs to show")
	require.Equal(t, cli.ExitFailure, exitCode(err))

	serve := &Serve{Listen: "127.0.0.1:0", Token: "secret", Init: natsbus.InitOptions{Shards: 2}}
	server, err := Open(ctx, f, Options{DialOptions: cli.DialOptions{Logger: quiet}, Serve: serve})
	require.NoError(t, err)
	require.NotNil(t, server.Server)
	require.Equal(t, dir, server.Where)
	joined, err := Open(ctx, f, Options{DialOptions: cli.DialOptions{Logger: quiet}})
	require.NoError(t, err)
	require.Nil(t, joined.Server)
	require.Equal(t, 2, joined.Bus.Shards())
	joined.Close()
	_, err = Open(ctx, f, Options{DialOptions: cli.DialOptions{Logger: quiet}, Serve: &Serve{Alone: true}})
	require.ErrorContains(t, err, "is in use by process")
	require.Equal(t, cli.ExitFailure, exitCode(err))
	server.Close()

	offline, err := Open(ctx, f, Options{DialOptions: cli.DialOptions{Logger: quiet}})
	require.NoError(t, err)
	require.NotNil(t, offline.Server)
	require.Equal(t, 2, offline.Bus.Shards())
	_, err = Open(ctx, f, Options{DialOptions: cli.DialOptions{Logger: quiet}})
	require.ErrorContains(t, err, "is in use by process", "who does not listen cannot be joined")
	offline.Close()

	empty := busFlags(t, env(), "--data", t.TempDir())
	_, err = Open(ctx, empty, Options{DialOptions: cli.DialOptions{Logger: quiet}})
	require.ErrorContains(t, err, "holds no runs")
	require.Equal(t, cli.ExitFailure, exitCode(err))
}

func TestOpenRemote(t *testing.T) {
	ctx := t.Context()
	away := busFlags(t, env("NATS_URL", "nats://127.0.0.1:1"))
	_, err := Open(ctx, away, Options{DialOptions: cli.DialOptions{Logger: quiet}})
	require.True(t, cli.BusAway(err), "%v", err)
}

func TestServeFlags(t *testing.T) {
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	f := AddServeFlags(flags, env())
	s, err := f.Serve()
	require.NoError(t, err)
	require.Equal(t, FsyncAuto, s.Fsync)
	require.NoError(t, flags.Parse([]string{"--fsync=relaxed", "--nats-listen=127.0.0.1:0"}))
	s, err = f.Serve()
	require.NoError(t, err)
	require.Equal(t, Serve{Listen: "127.0.0.1:0", Fsync: FsyncRelaxed}, *s)
	f.fsync = "never"
	_, err = f.Serve()
	require.Equal(t, cli.ExitUsage, exitCode(err))
}

func TestNATSListenersBeyondLoopbackNeedCredentials(t *testing.T) {
	serve := func(address string, getenv func(string) string, args ...string) (*Serve, error) {
		flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
		cli.AddRoleFlags(flags)
		f := AddServeFlags(flags, getenv)
		require.NoError(t, flags.Parse(append(args, "--nats-listen", address)))
		return f.Serve()
	}
	_, err := serve("0.0.0.0:4222", env())
	require.Equal(t, cli.ExitConfig, exitCode(err))
	require.ErrorContains(t, err, "set NATS_TOKEN")
	s, err := serve("0.0.0.0:4222", env("NATS_TOKEN", "secret"))
	require.NoError(t, err)
	require.Equal(t, "secret", s.Token)
	_, err = serve("0.0.0.0:4222", env(), "--insecure-no-auth")
	require.NoError(t, err)
	_, err = serve("nowhere", env())
	require.Equal(t, cli.ExitUsage, exitCode(err))
}
