package backup_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natstest"
	"github.com/moorebus/moorebus/pkg/events"
)

// process runs the command and kills it after the time, unless that is 0. It returns its exit
// code, -1 if it was killed.
func process(t *testing.T, program string, after time.Duration, args ...string) (code int, said string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := os.CreateTemp(t.TempDir(), "out")
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Close()) }()
	cmd.Stdout, cmd.Stderr = out, out
	ended, err := commandtest.Start(cmd)
	require.NoError(t, err)
	if after > 0 {
		select {
		case <-ended:
		case <-time.After(after):
			_ = cmd.Process.Signal(syscall.SIGKILL) // it may have ended
		}
	}
	<-ended
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	return cmd.ProcessState.ExitCode(), string(text)
}

func natsWorld(t *testing.T, shards int) (*world, string) {
	server := natstest.Start(t, natstest.Options{})
	conn, err := nats.Connect(server.URL)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return openWorld(t, conn, natsbus.InitOptions{Shards: shards}), server.URL
}

// A backup that is killed leaves the last complete one, and the next goes on. A restore that is
// killed is repeated until it is complete, and stores nothing twice.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts and kills processes for some seconds
	}
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	program := filepath.Join(bin, "moorebus")
	one, url := natsWorld(t, 2)
	var runs []events.Run
	write := func(n int) {
		for range n {
			run := one.Open()
			for range 10 {
				one.Append(run, events.Control, &events.CustomMemorySet{Key: "k", Value: []byte(`"v"`)})
			}
			one.Append(run, events.Control, &events.CancelledRun{})
			runs = append(runs, run)
			_, err := one.Bus.PutBlob(t.Context(), "default", []byte("large "+run.ID))
			require.NoError(t, err)
		}
	}
	write(80)
	dir := filepath.Join(t.TempDir(), "backup")
	args := []string{"backup", dir, "--incremental", "--nats", url}
	began := time.Now()
	code, said := process(t, program, 0, "backup", filepath.Join(t.TempDir(), "first"), "--nats", url)
	require.Zero(t, code, said)
	took := time.Since(began)
	const moments = 5
	killed, complete := 0, 0
	for i := range moments {
		if code, _ = process(t, program, took*time.Duration(i+1)/(moments+1), args...); code != 0 {
			killed++
		} else {
			complete++
			write(10)
		}
		_, err := backup.Open(t.Context(), dir, time.Time{})
		if complete > 0 {
			require.NoError(t, err)
		}
	}
	require.Positive(t, killed)
	code, said = process(t, program, 0, args...)
	require.Zero(t, code, said)
	require.Empty(t, files(t, dir, "*/*.tmp"))
	code, said = process(t, program, 0, "backup", "verify", dir)
	require.Zero(t, code, said)

	two, url := natsWorld(t, 3)
	killed = 0
	for i := 1; ; i++ {
		code, said = process(t, program, took*time.Duration(i)/4, "restore", dir, "--nats", url)
		if code == 0 {
			break
		}
		require.Equal(t, -1, code, said)
		killed++
	}
	require.Positive(t, killed)
	for _, run := range runs {
		require.Equal(t, one.Bodies(run), two.Bodies(run))
	}
	two.Verified()
}

// A backup that repeats survives that the bus goes away, and ends with a signal.
func TestEvery(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it starts and stops processes
	}
	bin, err := commandtest.Build("cmd", "./cmd/moorebus")
	require.NoError(t, err)
	server := natstest.Start(t, natstest.Options{})
	conn, err := nats.Connect(server.URL)
	require.NoError(t, err)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{}))
	conn.Close()
	cmd := exec.Command(filepath.Join(bin, "moorebus"), "backup", filepath.Join(t.TempDir(), "backup"), "--every", "10ms", "--nats", server.URL)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	ended, err := commandtest.Start(cmd)
	require.NoError(t, err)
	lines := bufio.NewScanner(said)
	await := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("it ended without saying %q: %v", text, lines.Err())
	}
	await("backed up")
	await("backed up") // again, although nothing is new
	server.Stop()
	await("backup failed")
	server.Start()
	await("backed up")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	for lines.Scan() { // what it says until it ends must not block it
	}
	<-ended
	require.Zero(t, cmd.ProcessState.ExitCode())
}
