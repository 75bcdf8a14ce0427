package embedded

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// holdDir makes the test binary hold a data directory until it is killed: the
// other process of TestAnotherProcess.
const holdDir = "MOOREBUS_TEST_HOLD_DIR"

// others are what the test binary does where a variable names a directory for it: it
// is the other process of a test.
var others = map[string]func(dir string){holdDir: hold}

func TestMain(m *testing.M) {
	for name, run := range others {
		if dir := os.Getenv(name); dir != "" {
			run(dir)
		}
	}
	goleak.VerifyTestMain(m)
}

func hold(dir string) {
	srv, err := Start(context.Background(), Options{Dir: dir, Listen: "127.0.0.1:0", Token: "secret"})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(srv.ClientURL())
	select {}
}

var quiet = slog.New(slog.DiscardHandler)

func start(t *testing.T, o Options) *Server {
	t.Helper()
	o.Logger = quiet
	srv, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(srv.Shutdown)
	return srv
}

func connect(t *testing.T, srv *Server) *nats.Conn {
	t.Helper()
	conn, err := srv.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// publish stores a message and returns how many there are.
func publish(t *testing.T, conn *nats.Conn) uint64 {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	ack, err := js.Publish(t.Context(), "s", []byte("x"))
	require.NoError(t, err)
	return ack.Sequence
}

func TestKeepsItsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dir")
	for want := uint64(1); want <= 3; want++ {
		srv := start(t, Options{Dir: dir, SyncAlways: want%2 == 0})
		require.Empty(t, srv.ClientURL())
		conn := connect(t, srv)
		require.Equal(t, want, publish(t, conn))
		conn.Close()
		srv.Shutdown()
		srv.Shutdown()
	}
	require.DirExists(t, filepath.Join(dir, "jetstream"))
}

func TestListens(t *testing.T) {
	srv := start(t, Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Token: "secret", MaxPayload: 2 << 20})
	_, err := nats.Connect(srv.ClientURL())
	require.ErrorIs(t, err, nats.ErrAuthorization)
	conn, err := nats.Connect(srv.ClientURL(), nats.Token("secret"))
	require.NoError(t, err)
	defer conn.Close()
	require.EqualValues(t, 1, publish(t, conn))
	require.EqualValues(t, 2, publish(t, connect(t, srv)))
	require.EqualValues(t, 2<<20, conn.MaxPayload())
}

func TestUnspecifiedAddress(t *testing.T) {
	srv := start(t, Options{Dir: t.TempDir(), Listen: ":0"})
	conn, err := nats.Connect(srv.ClientURL())
	require.NoError(t, err)
	conn.Close()
}

func TestSecondOpener(t *testing.T) {
	dir := t.TempDir()
	who, err := Lookup(dir)
	require.NoError(t, err)
	require.Nil(t, who)
	srv := start(t, Options{Dir: dir, Listen: "127.0.0.1:0", Token: "secret", TokenFrom: "a variable"})
	_, err = Start(t.Context(), Options{Dir: dir, Logger: quiet})
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, os.Getpid(), held.PID)
	require.Equal(t, srv.ClientURL(), held.URL)
	require.Equal(t, "a variable", held.TokenFrom)
	require.NotEqual(t, "secret", held.Token)
	require.WithinDuration(t, time.Now(), held.Started, time.Minute)
	require.ErrorContains(t, err, fmt.Sprint("process ", os.Getpid()))
	require.ErrorContains(t, err, held.URL)
	require.NotContains(t, err.Error(), "secret")

	info, err := os.Stat(filepath.Join(dir, lockName))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	who, err = Lookup(dir)
	require.NoError(t, err)
	require.Equal(t, &held.Holder, who)

	srv.Shutdown()
	who, err = Lookup(dir)
	require.NoError(t, err)
	require.Nil(t, who)
	start(t, Options{Dir: dir})
}

// TestAnotherProcess joins a server of another process, and takes its directory
// after that process was killed.
func TestAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), holdDir+"="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "nats://")

	_, err = Start(t.Context(), Options{Dir: dir, Logger: quiet})
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, cmd.Process.Pid, held.PID)
	conn, err := nats.Connect(held.URL, nats.Token("secret"))
	require.NoError(t, err)
	require.EqualValues(t, 1, publish(t, conn))
	conn.Close()

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	who, err := Lookup(dir)
	require.NoError(t, err)
	require.Nil(t, who, "what a dead process left does not count")
	require.EqualValues(t, 2, publish(t, connect(t, start(t, Options{Dir: dir}))))
}

func TestRefusals(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no directory":   {Options{}, "no data directory"},
		"a file":         {Options{Dir: file}, "data directory"},
		"no port":        {Options{Dir: t.TempDir(), Listen: "localhost"}, "want host:port"},
		"port too large": {Options{Dir: t.TempDir(), Listen: "localhost:99999"}, "not a number"},
		"port in use":    {Options{Dir: t.TempDir(), Listen: taken.Addr().String()}, "address already in use"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Logger = quiet
			_, err := Start(t.Context(), c.o)
			require.ErrorContains(t, err, c.want)
			if c.o.Dir != "" && c.o.Dir != file {
				who, err := Lookup(c.o.Dir)
				require.NoError(t, err)
				require.Nil(t, who, "the lock was given back")
			}
		})
	}
}

func TestContextEnds(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	_, err := Start(ended, Options{Dir: dir, Logger: quiet})
	require.ErrorIs(t, err, context.Canceled)
	start(t, Options{Dir: dir})
}
