package datadir

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

const (
	// joinTimeout bounds the connection to the process that serves a shared directory.
	joinTimeout = 5 * time.Second
	// takeTimeout bounds the start of a server on it.
	takeTimeout = time.Minute
)

// shared is a data directory that several processes use. One of them serves it, and the others
// are connected to that one. When it ends, in whatever way, the first of the others to connect
// again serves the directory. Make it with [Options.openShared].
type shared struct {
	settings embedded.Options
	init     natsbus.InitOptions
	fsync    Fsync
	getenv   func(string) string
	// life is the context of the dials; giveUp ends it.
	life   context.Context
	giveUp context.CancelFunc

	mu     sync.Mutex
	server *embedded.Server // nil: another process serves
	token  string           // of the server that was dialled last
	closed bool
	failed error // why the last dial failed
}

// openShared opens a directory that other processes may have open, too.
func (o *Options) openShared(ctx context.Context, dir string) (*Conn, error) {
	fsync := o.Serve.Fsync
	switch fsync {
	case FsyncGroup:
		return nil, cli.NotConfigured("--fsync=group: the data directory is shared with other processes, and the one that flushes may end: use --fsync=always")
	case "", FsyncAuto:
		fsync = FsyncAlways
	}
	s := &shared{init: o.Serve.Init, fsync: fsync, getenv: o.getenv, settings: embedded.Options{
		Dir: dir, Listen: o.Serve.Listen, Token: o.Serve.Token, TokenFrom: o.Serve.TokenFrom, Logger: o.Logger, Fatal: flushFailed,
	}}
	fsync.set(&s.settings)
	s.life, s.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, s.giveUp)()
	var conn *Conn
	err := startPauses.Do(ctx, func(ctx context.Context) (err error) {
		conn, err = o.dial(ctx, natsconn.ConnectOptions{}, nats.SetCustomDialer(s), nats.TokenHandler(s.tokenNow), nats.IgnoreDiscoveredServers())
		if failed := s.failure(); err != nil && failed != nil {
			err = failed // the library does not say why it could not connect
		}
		if err != nil && !starting(err) {
			return retry.Stop(err)
		}
		return err
	}, nil)
	if err != nil {
		s.close()
		return nil, err
	}
	conn.Where, conn.shared = dir, s
	return conn, nil
}

// startPauses separate attempts to open a directory whose server another process is starting.
var startPauses = retry.Policy{First: 50 * time.Millisecond, Budget: takeTimeout}

// starting reports whether another process is starting the server of the directory, or is
// setting its streams up.
func starting(err error) bool {
	var held *embedded.HeldError
	if errors.As(err, &held) {
		return held.URL == "" && (held.Starting || held.PID == 0)
	}
	return errors.Is(err, journal.ErrNotReady) || errors.Is(err, nats.ErrNoResponders)
}

// failure returns why the last dial failed, or nil.
func (s *shared) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Dial connects to the server of the directory, which it starts if nobody serves.
func (s *shared) Dial(_, _ string) (conn net.Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.failed = err }()
	if s.server != nil {
		return s.server.InProcessConn()
	}
	if s.closed {
		return nil, net.ErrClosed
	}
	ctx, stop := context.WithTimeout(s.life, takeTimeout)
	defer stop()
	server, err := embedded.Start(ctx, s.settings)
	var held *embedded.HeldError
	if errors.As(err, &held) && held.URL != "" {
		at, err := url.Parse(held.URL)
		if err != nil {
			return nil, fmt.Errorf("the address of process %d: %w", held.PID, err)
		}
		var needs string
		s.token, needs = JoinToken(held.Holder, s.getenv)
		sayWatching(needs)
		return (&net.Dialer{Timeout: joinTimeout}).DialContext(ctx, "tcp", at.Host)
	}
	if err != nil {
		return nil, err
	}
	if err := s.setUp(ctx, server); err != nil {
		server.Shutdown()
		return nil, err
	}
	s.server, s.token = server, s.settings.Token
	return server.InProcessConn()
}

// setUp sets the streams up on a server that was started.
func (s *shared) setUp(ctx context.Context, server *embedded.Server) error {
	conn, err := server.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	init := s.init
	init.Storable, init.Sync = server.Storable(), natsbus.SyncOf(s.fsync != FsyncRelaxed)
	init.Resynced = func() error { return server.Reconnect(conn) }
	return natsbus.Init(ctx, conn, init)
}

// tokenNow returns the token of the server that was dialled last.
func (s *shared) tokenNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// close stops the server if this process has it. Nothing dials afterwards.
func (s *shared) close() {
	s.giveUp()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.server != nil {
		s.server.Shutdown()
		s.server = nil
	}
}
