package datadir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/pkg/embedded"
)

// sharing says how a command opens a directory that it shares.
func sharing() Options {
	return Options{DialOptions: cli.DialOptions{Name: "test"}, Serve: &Serve{Listen: "127.0.0.1:0", Token: "t0ken", Share: true}}
}

// Those that begin at the same time wait for the one that starts the server.
func TestSharedDirectoryIsOpenedAtOnce(t *testing.T) {
	dir := t.TempDir()
	conns, errs := make([]*Conn, 3), make([]error, 3)
	var opening sync.WaitGroup
	for i := range conns {
		opening.Go(func() {
			conns[i], errs[i] = Open(t.Context(), busFlags(t, env(), "--data", dir), sharing())
		})
	}
	opening.Wait()
	for i := range conns {
		if conns[i] != nil {
			defer conns[i].Close()
		}
		require.NoError(t, errs[i])
	}
}

// A directory whose server does not listen is refused at once.
func TestSharedDirectoryThatIsHeld(t *testing.T) {
	dir := t.TempDir()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: dir})
	require.NoError(t, err)
	defer server.Shutdown()
	ctx, stop := context.WithTimeout(t.Context(), takeTimeout/2)
	defer stop()
	_, err = Open(ctx, busFlags(t, env(), "--data", dir), sharing())
	var held *embedded.HeldError
	require.ErrorAs(t, err, &held)
	require.NoError(t, ctx.Err())
}

// To stop ends the start of a server.
func TestSharedDirectoryThatIsClosedWhileItIsTaken(t *testing.T) {
	s := &shared{fsync: FsyncRelaxed, settings: embedded.Options{Dir: t.TempDir()}}
	s.life, s.giveUp = context.WithCancel(t.Context())
	s.close()
	s.closed = false
	began := time.Now()
	_, err := s.Dial("tcp", "")
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(began), takeTimeout/2)
}

// A directory that another process is taking is waited for.
func TestSharedDirectoryThatIsBeingTaken(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "moorebus.lock"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	require.NoError(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	_, err = file.WriteString(`{"pid": 1, "starting": true}`)
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, err = Open(ctx, busFlags(t, env(), "--data", dir), sharing())
	require.Error(t, err)
	var held *embedded.HeldError
	require.False(t, errors.As(err, &held), "it does not wait: %v", err)
}
