package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
)

// TestServerGetsUsers: a server gets users, and the log that it had without them is refused until
// its directory is renamed as the error says. Nobody gets in without a key then.
func TestServerGetsUsers(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	dir := t.TempDir()
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	addresses, err := freeport.Addresses(1)
	require.NoError(t, err)
	data, site := filepath.Join(dir, "data"), filepath.Join(dir, "site")
	args := []string{"server", "--data", data, "--nats-listen", addresses[0]}
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	serve := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, "moorebus"), args...)
		cmd.Stderr = io.MultiWriter(os.Stderr, log)
		ended, err := commandtest.Start(cmd)
		require.NoError(t, err)
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
		return cmd
	}
	open := func(o natsconn.ConnectOptions) *natsbus.Bus {
		o.Logger, o.Wait = quiet, true
		conn, err := natsconn.Connect(t.Context(), o)
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		bus, err := natsbus.Wait(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: time.Minute})
		require.NoError(t, err)
		return bus
	}
	server := serve(append(args, "--pools", "web")...)
	bus := open(natsconn.ConnectOptions{URL: "nats://" + addresses[0]})
	run := journaltest.NewRun(t, bus)
	journaltest.AppendAll(t, bus, run, "1", "2")
	require.NoError(t, server.Process.Signal(os.Interrupt))

	secure := append(args, "--secure", site, "--host", "127.0.0.1")
	var refused []byte
	require.Eventually(t, func() bool {
		refused, err = exec.Command(filepath.Join(bin, "moorebus"), append(secure, "--nats-listen", "127.0.0.1:0")...).CombinedOutput()
		return err != nil && !strings.Contains(string(refused), "is in use by")
	}, time.Minute, 10*time.Millisecond, "the first one gives the directory back")
	accounts := filepath.Join(data, "jetstream", "jetstream")
	require.Contains(t, string(refused), "rename the directory to LOG")
	require.NoError(t, os.Rename(filepath.Join(accounts, "$G"), filepath.Join(accounts, "LOG")))
	serve(secure...)
	bus = open(natsconn.ConnectOptions{URL: "tls://" + addresses[0], CA: filepath.Join(site, "tls", "ca.pem"), NKey: filepath.Join(site, "keys", "operator.nk")})
	recs, err := journaltest.Collect(bus.Read(t.Context(), run, 0))
	require.NoError(t, err)
	require.Len(t, recs, 2)
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(log.Name())
		return err == nil && strings.Contains(string(text), "a pool that --pools does not name")
	}, time.Minute, 10*time.Millisecond)

	stranger := exec.Command(filepath.Join(bin, "moorebus"), "runs", "--nats", "tls://"+addresses[0])
	stranger.Env = append(os.Environ(), "NATS_CA="+filepath.Join(site, "tls", "ca.pem"))
	said, err := stranger.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), "check NATS_CREDS")
	for _, command := range []string{"runs", "doctor"} {
		local := exec.Command(filepath.Join(bin, "moorebus"), command, "--data", data)
		local.Env = append(os.Environ(), "NATS_URL=")
		said, _ := local.CombinedOutput() // the doctor has found nothing bad
		require.Contains(t, string(said), "set NATS_URL=tls://"+addresses[0]+", NATS_CA and NATS_NKEY", command)
	}
	wrong := exec.Command(filepath.Join(bin, "moorebus"), "server", "--data", filepath.Join(dir, "other"), "--host", "x")
	require.Error(t, wrong.Run())
	require.Equal(t, cli.ExitUsage, wrong.ProcessState.ExitCode())
}
