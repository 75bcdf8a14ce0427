//go:build unix

package embedded

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/diskspace"
)

const patience = time.Minute

// A disk with less room than is kept free takes no writes, and takes them again when
// there is room.
func TestKeepsRoom(t *testing.T) {
	free, _, known := diskspace.Free(".")
	require.True(t, known)
	var lines strings.Builder
	srv, err := Start(t.Context(), Options{Dir: t.TempDir(), Reserve: free << 1, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	require.NoError(t, err)
	defer srv.Shutdown()
	var full *fullError
	require.ErrorAs(t, srv.Full(), &full)
	require.ErrorContains(t, full, "the disk of "+srv.dir+" is full")
	srv.unwatch()
	srv.watching.Wait()
	srv.checkRoom()
	srv.reserve = free >> 4
	srv.checkRoom()
	require.NoError(t, srv.Full())
	require.Equal(t, 2, strings.Count(lines.String(), "\n"), "a line for each change: %s", lines.String())
}

// unwatched starts a server whose disk nobody looks at but the test.
func unwatched(t *testing.T, dir string) *Server {
	srv, err := Start(t.Context(), Options{Dir: dir, Reserve: 1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(srv.Shutdown)
	srv.unwatch()
	srv.watching.Wait()
	return srv
}

// An error that a restart does not mend is no reason for one.
func TestOtherErrorsAreNoReasonToRestart(t *testing.T) {
	dir := t.TempDir()
	srv := unwatched(t, dir)
	conn, err := srv.Connect()
	require.NoError(t, err)
	publish(t, conn)
	conn.Close()
	store := srv.nats.JetStreamConfig().StoreDir
	srv.Shutdown()
	require.NoError(t, os.Mkdir(filepath.Join(store, "$G", "streams", "TORN"), 0o700))

	srv = unwatched(t, dir)
	require.NotEmpty(t, srv.nats.Healthz(&server.HealthzOptions{}).Error, "a directory without a stream")
	for range 3 {
		srv.log.Errorf("authentication error")
		srv.checkRoom()
		require.NoError(t, srv.Full())
		require.False(t, srv.log.sawError.Load())
	}
}

// A server counts as ill when two looks in a row say so.
func TestJetStreamEnded(t *testing.T) {
	srv := unwatched(t, t.TempDir())
	require.NoError(t, srv.nats.DisableJetStream())
	srv.checkRoom()
	require.NoError(t, srv.Full())
	srv.checkRoom()
	require.ErrorContains(t, srv.Full(), "JetStream ended")
	require.NoError(t, srv.restart(t.Context()))
	srv.checkRoom()
	require.NoError(t, srv.Full())
}

func TestWriteError(t *testing.T) {
	for _, c := range []struct {
		kind   server.HealthZErrorType
		text   string
		reason bool
		known  bool
	}{
		{server.HealthzErrorConn, "failed to be ready for connections after 1ms: server", false, false},
		{server.HealthzErrorStream, "JetStream stream '$G > S' could not be recovered", false, true},
		{server.HealthzErrorAccount, "JetStream account 'A' could not be resolved", false, true},
		{server.HealthzErrorStream, "JetStream stream '$G > S' write error: no space left on device", true, true},
	} {
		reason, known := writeError(&server.HealthStatus{Errors: []server.HealthzError{{Type: c.kind, Error: c.text}}})
		require.Equal(t, c.known, known, c.text)
		require.Equal(t, c.reason, reason != "", c.text)
	}
	_, known := writeError(&server.HealthStatus{})
	require.True(t, known)
}

// A restart that does not help is tried again ever more rarely; one for want of room
// is not delayed by those before.
func TestRestartsThatDoNotHelp(t *testing.T) {
	var r restarts
	now := time.Now()
	after := func(d time.Duration, full *fullError) bool {
		now = now.Add(d)
		return r.due(full, now)
	}
	ill := &fullError{Free: 2, Need: 1, Reason: "JetStream ended"}
	require.True(t, after(0, ill))
	for _, pause := range []time.Duration{restartPauses.First, 2 * restartPauses.First, 4 * restartPauses.First, 8 * restartPauses.First, restartPauses.Max, restartPauses.Max} {
		require.False(t, after(time.Millisecond, nil), "it works until something is stored")
		require.False(t, after(pause-2*time.Millisecond, ill))
		require.True(t, after(time.Millisecond, ill))
	}
	require.False(t, after(restartPauses.First, ill))
	require.False(t, after(0, &fullError{Free: 0, Need: 1, Reason: "JetStream ended"}), "there is no room")
	require.True(t, after(0, ill))
	require.False(t, after(restartPauses.Max+1, nil))
	require.True(t, after(0, ill))
	require.True(t, after(restartPauses.First, ill), "it begins anew")
}

// limited makes the test binary run a server whose files may not grow beyond what it
// is told: the other process of TestDiskIsFull.
const limited = "MOOREBUS_TEST_LIMITED_DIR"

// largest is how many bytes a file of that server may have: writing more fails, as
// where a disk is full.
const largest = 1 << 20

func init() { others[limited] = serveLimited }

func limitFiles(bytes uint64) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		panic(err)
	}
	limit.Cur = bytes
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		panic(err)
	}
}

// serveLimited serves until it may read no more, and says what Full returns for each
// line: "room" after giving its files room again.
func serveLimited(dir string) {
	signal.Ignore(syscall.SIGXFSZ)
	srv, err := Start(context.Background(), Options{Dir: dir, Listen: "127.0.0.1:0", SyncAlways: true, Reserve: 1})
	if err != nil {
		panic(err)
	}
	limitFiles(largest)
	fmt.Println(srv.ClientURL())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == "room" {
			limitFiles(1 << 40)
		}
		fmt.Println(srv.Full())
	}
	srv.Shutdown()
	os.Exit(0)
}

// TestDiskIsFull fills a server's files until it cannot write, gives it room, and
// finds it storing again: with the same address, and with everything that it had
// acknowledged.
func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), limited+"="+t.TempDir())
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := make(chan string, 1)
	go func() { text, _ := io.ReadAll(log); said <- string(text) }()
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	conn, err := nats.Connect(lines.Text(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	defer conn.Close()
	last := publish(t, conn)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(500*time.Millisecond))
	require.NoError(t, err)
	body := []byte(strings.Repeat("x", 100<<10))
	for ; err == nil && last < 100; last++ {
		_, err = js.Publish(t.Context(), "s", body)
	}
	require.Less(t, last, uint64(100), "it is never full")
	last--
	ask := func(line string) string {
		_, err := fmt.Fprintln(in, line)
		require.NoError(t, err)
		require.True(t, lines.Scan())
		return lines.Text()
	}
	// The disk itself has room, so the server is started again, in vain.
	require.Eventually(t, func() bool {
		_, _ = js.Publish(t.Context(), "s", body)
		return strings.Contains(ask("full?"), "cannot write")
	}, patience, 10*time.Millisecond)
	ask("room")
	require.Eventually(t, func() bool { return ask("full?") == "<nil>" }, patience, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		ack, err := js.Publish(t.Context(), "s", []byte("y"))
		return err == nil && ack.Sequence > last
	}, patience, 10*time.Millisecond)
	for seq := uint64(1); seq <= last; seq++ {
		stream, err := js.Stream(t.Context(), "S")
		require.NoError(t, err)
		_, err = stream.GetMsg(t.Context(), seq)
		require.NoError(t, err, "what was acknowledged is there")
	}
	require.NoError(t, in.Close())
	text := <-said
	require.NoError(t, cmd.Wait())
	require.Contains(t, text, "nothing is stored any more")
	require.Contains(t, text, "the disk has free space again")
}
