package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/freeport"
	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
)

// TestServer: another process keeps appending and reading across a server that is killed, and
// nothing that was acknowledged is lost.
func TestServer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts processes
	}
	t.Parallel()
	dir := t.TempDir()
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	moorebus := filepath.Join(bin, "moorebus")
	addresses, err := freeport.Addresses(2)
	require.NoError(t, err)
	args := []string{"server", "--data", filepath.Join(dir, "data"), "--nats-listen", addresses[0], "--shards", "2"}
	serve := func() (*exec.Cmd, <-chan struct{}) {
		cmd := exec.Command(moorebus, args...)
		cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), "MOOREBUS_METRICS_LISTEN="+addresses[1])
		ended, err := commandtest.Start(cmd)
		require.NoError(t, err)
		return cmd, ended
	}
	server, ended := serve()
	conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{URL: "nats://" + addresses[0], Logger: quiet, Wait: true})
	require.NoError(t, err)
	defer conn.Close()
	bus, err := natsbus.Wait(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: time.Minute})
	require.NoError(t, err)
	require.Equal(t, 2, bus.Shards())
	run := journaltest.NewRun(t, bus)
	last := journaltest.AppendAll(t, bus, run, "1", "2", "3")

	second, err := exec.Command(moorebus, args...).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(second), "is in use by process")
	checked, err := exec.Command(moorebus, "doctor", "--nats", "nats://"+addresses[0]).CombinedOutput()
	require.NoError(t, err, string(checked))
	require.Regexp(t, `flushed`, string(checked))

	require.NoError(t, server.Process.Kill())
	<-ended
	server, ended = serve()
	require.Eventually(t, func() bool { return bus.Ready(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
	_, err = bus.Append(t.Context(), run, last, journaltest.Entry(run, events.Observing, events.DefaultPool, "4"))
	require.NoError(t, err)
	recs, err := journaltest.Collect(bus.Read(t.Context(), run, 0))
	require.NoError(t, err)
	require.Len(t, recs, 4)
	require.Contains(t, read(t, "http://"+addresses[1]+"/metrics"), "moorebus_disk_full 0\n")
	require.Contains(t, read(t, "http://"+addresses[1]+"/readyz"), "ready")
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	<-ended
	require.True(t, server.ProcessState.Exited(), "it ends in order")
}

// TestServerWithoutGroupFlush: where flushing in groups is impossible, the user is told what to do.
func TestServerWithoutGroupFlush(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it builds a command
	}
	dir, err := os.MkdirTemp("/dev/shm", "moorebus-")
	if err != nil {
		t.Skip("reason: this machine has no /dev/shm: ", err)
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	cmd := exec.Command(filepath.Join(bin, "moorebus"), "server", "--data", dir, "--nats-listen", "127.0.0.1:0", "--fsync", "group")
	var said bytes.Buffer
	cmd.Stderr = &said
	require.Error(t, cmd.Run())
	require.Equal(t, cli.ExitConfig, cmd.ProcessState.ExitCode())
	require.Contains(t, said.String(), "is not on ext4: use --fsync=always")
}
