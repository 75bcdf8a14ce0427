//go:build unix

package natsbus

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/journaltest"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// limited makes the test binary run a server that cannot write files beyond a
// megabyte, as where a disk is full: the other process of TestServerThatStoresNothing.
const limited = "MOOREBUS_TEST_LIMITED_DIR"

func serveLimited(dir string) {
	signal.Ignore(syscall.SIGXFSZ)
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir, SyncAlways: true})
	if err != nil {
		panic(err)
	}
	srv.Start()
	srv.ReadyForConnections(patience)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		panic(err)
	}
	limit.Cur = 1 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		panic(err)
	}
	fmt.Println(srv.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// A server that cannot write to its disk answers pings and questions, but no append.
// That is said soon, in words that name the disk, and once in the log; later appends
// are refused at once. A server that was started again is believed again.
func TestServerThatStoresNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var urls []string
	start := func(unlimited bool) (stop func()) {
		if unlimited {
			srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: portOf(t, urls[0]), NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir})
			require.NoError(t, err)
			srv.Start()
			require.True(t, srv.ReadyForConnections(patience))
			return func() { srv.Shutdown(); srv.WaitForShutdown() }
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), limited+"="+dir)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var url string
		_, err = fmt.Fscanln(out, &url)
		require.NoError(t, err)
		urls = append(urls, url)
		return func() { require.NoError(t, in.Close()); require.NoError(t, cmd.Wait()) }
	}
	stop := start(false)
	conn, err := natsconn.Connect(t.Context(), natsconn.ConnectOptions{URL: urls[0], Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, Init(t.Context(), conn, InitOptions{}))
	var log lines
	bus, err := Open(t.Context(), conn, Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), RequestTimeout: time.Hour})
	require.NoError(t, err)
	err = fill(t, bus)
	require.ErrorIs(t, err, journal.ErrDiskFull)
	require.ErrorIs(t, err, journal.ErrUnknownOutcome, "it was sent")
	require.ErrorIs(t, bus.Ready(t.Context()), journal.ErrDiskFull)
	again := func() error {
		run := journaltest.NewRun(t, bus)
		_, err := bus.Append(t.Context(), run, 0, journaltest.Entry(run, events.Observing, events.DefaultPool, "1"))
		return err
	}
	err = again()
	require.ErrorIs(t, err, journal.ErrDiskFull)
	require.NotErrorIs(t, err, journal.ErrUnknownOutcome, "it was not sent")
	require.Equal(t, 1, strings.Count(log.text(), "nothing can be stored"), log.text())
	stop()
	stop = start(true)
	defer stop()
	require.Eventually(t, func() bool { return conn.IsConnected() && again() == nil }, patience, 50*time.Millisecond)
	require.NoError(t, bus.Ready(t.Context()))
}

func portOf(t *testing.T, url string) (port int) {
	t.Helper()
	_, err := fmt.Sscanf(strings.TrimPrefix(url, nats.DefaultURL[:len("nats://127.0.0.1")]), ":%d", &port)
	require.NoError(t, err)
	return port
}
