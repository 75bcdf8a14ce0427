// Package embedded runs a NATS server with JetStream inside the process, on an
// exclusive data directory.
//
// One directory is used by one server at a time: an exclusive file lock is taken
// before the server starts and given back after it has stopped, because two
// servers on one directory lose acknowledged events. The second process gets a
// [HeldError] that names the holder and, if the holder listens, where to join
// it. [Lookup] asks the same without starting anything.
//
// Connections made with [Server.Connect] belong to the caller, who closes them
// before [Server.Shutdown].
package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/diskspace"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Options says how to run the server.
type Options struct {
	// Dir is the data directory; it is made if it is not there. Required.
	Dir string
	// Listen is the TCP address for other processes, host:port; port 0 takes a
	// free one. Empty: only this process can connect.
	Listen string
	// Token is what TCP and in-process connections must present; empty: nothing.
	// [Server.Connect] presents it by itself. Who presents the token of the lock file instead
	// ([Holder]) may watch and change nothing.
	Token string
	// TokenFrom says where other processes of the operator find Token, see [Holder.TokenFrom].
	TokenFrom string
	// Config is the part of nats-server's configuration with accounts, users and TLS, in place of
	// Token. NKey is then the path of the seed of the user as which [Server.Connect] connects;
	// the streams are in that user's account. A directory whose streams are in another account
	// is refused.
	Config, NKey string
	// TLS are the settings under which other processes connect, in place of those of Config. A
	// GetCertificate there can serve another certificate later.
	TLS *tls.Config
	// SyncAlways makes the server flush every message to the disk before it
	// acknowledges it, so that no acknowledged event is lost with the power.
	SyncAlways bool
	// GroupFlush leaves it to [Server.Flush] to flush the streams that it is called for, one
	// flush for all messages that wait. The kernel makes every other write of the server
	// synchronous, by a flag on the files of the data directory (chattr +S), which only works on
	// Linux on ext4. If it does not, Start returns an [ErrNoGroupFlush], or with SyncAlways
	// does without.
	GroupFlush bool
	// Fatal is called once if a flush fails, since what was stored then is not on the disk and
	// may never be. It has to end the process. Nil: the server panics.
	Fatal func(error)
	// MaxPayload is the largest message in bytes, headers included; 0: 1 MiB.
	MaxPayload int
	// StartTimeout bounds the wait for the server; 0: 30 s, since a large log
	// takes seconds to be read.
	StartTimeout time.Duration
	// Reserve is how many bytes have to stay free on the directory's disk, see
	// [Server.Full]; 0: 64 MiB, or a 20th of a small disk.
	Reserve uint64
	// Logger gets the server's warnings and errors; nil: slog's default.
	Logger *slog.Logger
}

// Server is a running server. Its methods are safe for concurrent use.
type Server struct {
	lock         *lock
	dir          string
	identity     identity
	settings     server.Options
	startTimeout time.Duration
	reserve      uint64
	log          *serverLog
	group        bool
	onFatal      func(error)
	flushers     sync.Map // of *flusher, by stream

	full     atomic.Pointer[fullError]
	suspect  bool // the last look found a reason to restart the server
	unwatch  context.CancelFunc
	watching sync.WaitGroup

	// mu is held while the server is restarted.
	mu   sync.RWMutex
	nats *server.Server
}

// Start takes the directory's lock, starts the server and returns when it
// answers. The context bounds the start alone. If another process holds the
// directory the error is a [*HeldError].
func Start(ctx context.Context, o Options) (*Server, error) {
	settings, err := o.settings()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("embedded server: %w", err)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if _, total, known := diskspace.Free(o.Dir); known {
		// The server would take what is free now for its own limit, and refuse to make
		// streams when less is free at its next start. See [Server.Full].
		settings.JetStreamMaxStore = int64(total)
	}
	held, err := acquire(ctx, o.Dir)
	if err != nil {
		return nil, err
	}
	who, err := o.identity(settings)
	if err != nil {
		return nil, errors.Join(err, held.release())
	}
	group, err := o.chooseFlush(settings.StoreDir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("embedded server: %w", err), held.release())
	}
	settings.SyncAlways = o.SyncAlways && !group
	s := &Server{
		identity: who, dir: o.Dir, settings: *settings, startTimeout: o.StartTimeout, reserve: o.Reserve, log: newServerLog(o.Logger),
		group: group, onFatal: o.Fatal,
	}
	if s.nats, err = boot(ctx, s.settings, s.log, o.StartTimeout); err != nil {
		return nil, errors.Join(err, held.release())
	}
	if addr, ok := s.nats.Addr().(*net.TCPAddr); ok && addr != nil {
		s.settings.Port = addr.Port // the same one after a restart
	}
	if err := held.announce(s.listenURL(), watching(settings), o.TokenFrom, s.beyondLoopback() && o.Config == ""); err != nil {
		s.stop()
		return nil, errors.Join(err, held.release())
	}
	s.lock = held
	s.checkRoom()
	watch, stop := context.WithCancel(context.Background())
	s.unwatch = stop
	s.watching.Go(func() { s.watch(watch) })
	return s, nil
}

func (o Options) settings() (*server.Options, error) {
	if o.Dir == "" {
		return nil, errors.New("embedded server: no data directory given")
	}
	settings := &server.Options{
		ServerName: "moorebus-" + strconv.Itoa(os.Getpid()),
		JetStream:  true,
		StoreDir:   filepath.Join(o.Dir, server.JetStreamStoreDir),
		DontListen: true,
		NoSigs:     true,
		SyncAlways: o.SyncAlways,
		MaxPayload: int32(o.MaxPayload),
	}
	if o.Token != "" {
		settings.CustomClientAuthentication = newTokens(o.Token)
	}
	if o.Config != "" {
		if err := settings.ProcessConfigString(o.Config); err != nil {
			return nil, fmt.Errorf("embedded server: %w", err)
		}
	}
	if o.TLS != nil {
		settings.TLS, settings.TLSConfig = true, o.TLS
	}
	if o.Listen == "" {
		return settings, nil
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: want host:port: %w", o.Listen, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: port %q is not a number up to 65535", o.Listen, port)
	}
	settings.DontListen = false
	settings.Host = host
	settings.Port = int(number)
	if number == 0 {
		settings.Port = server.RANDOM_PORT
	}
	return settings, nil
}

// boot starts a server and returns when it answers.
func boot(ctx context.Context, settings server.Options, log *serverLog, timeout time.Duration) (*server.Server, error) {
	inner, err := server.NewServer(&settings)
	if err != nil {
		return nil, fmt.Errorf("embedded server: %w", err)
	}
	operators, _ := settings.CustomClientAuthentication.(*tokens)
	unlock := func() {}
	if operators != nil {
		operators.mu.Lock()
		unlock = sync.OnceFunc(operators.mu.Unlock)
		operators.watchers = nil // that of the server before
	}
	defer unlock()
	log.begin()
	inner.SetLoggerV2(log, false, false, false)
	stop := func() {
		unlock() // else watchers that wait for their account do not end
		inner.Shutdown()
		inner.WaitForShutdown()
	}
	inner.Start()
	if timeout <= 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for !inner.ReadyForConnections(20 * time.Millisecond) {
		fatal := log.fatal()
		if fatal == nil && ctx.Err() == nil {
			continue
		}
		stop()
		return nil, fmt.Errorf("embedded server did not start: %w", errors.Join(fatal, ctx.Err()))
	}
	if !inner.JetStreamEnabled() {
		stop()
		return nil, fmt.Errorf("embedded server: JetStream did not start on %s, see the log", settings.StoreDir)
	}
	if operators != nil {
		if err := operators.link(inner); err != nil {
			stop()
			return nil, fmt.Errorf("embedded server: account of watchers: %w", err)
		}
	}
	return inner, nil
}

// InProcessConn makes the server one to connect to without the network, also across
// its restarts.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nats.InProcessConn()
}

// reconnectWait is how long a client waits before it connects again.
const reconnectWait = 100 * time.Millisecond

// Connect opens a connection that does not pass through the network. The
// options are added to those that it needs.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	all := []nats.Option{nats.InProcessServer(s), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait)}
	if s.identity.connect != nil {
		all = append(all, s.identity.connect)
	}
	conn, err := nats.Connect("", append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded server: %w", err)
	}
	return conn, nil
}

// Reconnect makes all clients but one connect again, so that they learn what has changed. An
// error says that the one is not connected.
func (s *Server) Reconnect(but *nats.Conn) error {
	id, err := but.GetClientID()
	if err != nil {
		return fmt.Errorf("embedded server: %w", err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	all, err := s.nats.Connz(&server.ConnzOptions{Limit: math.MaxInt32})
	if err != nil {
		return fmt.Errorf("embedded server: %w", err)
	}
	for _, c := range all.Conns {
		if c.Cid != id {
			_ = s.nats.DisconnectClientByID(c.Cid) // else it has gone
		}
	}
	return nil
}

// ClientURL returns where other processes reach the server, with no token in
// it, or "" if it does not listen.
func (s *Server) ClientURL() string { return s.listenURL() }

// beyondLoopback reports whether other machines may reach the server.
func (s *Server) beyondLoopback() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	addr, ok := s.nats.Addr().(*net.TCPAddr)
	return ok && addr != nil && !addr.IP.IsLoopback()
}

func (s *Server) listenURL() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	addr, ok := s.nats.Addr().(*net.TCPAddr)
	if !ok || addr == nil {
		return ""
	}
	scheme := "nats://"
	if s.settings.TLSConfig != nil {
		scheme = "tls://"
	}
	if addr.IP.IsUnspecified() {
		return scheme + net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port))
	}
	return scheme + addr.String()
}

// Shutdown stops the server cleanly, waits until it has, and gives the
// directory back. It may be called more than once.
func (s *Server) Shutdown() {
	s.unwatch()
	s.watching.Wait()
	s.stop()
	// The lock ends with the file; a failure to empty the file changes nothing.
	_ = s.lock.release()
}

func (s *Server) stop() {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	s.closeFlushers()
}

// serverLog passes the server's warnings and errors on. The server reports a
// failed start, such as a port in use, only through Fatalf, so the first of
// those is kept.
type serverLog struct {
	out *slog.Logger
	// failed receives errors, sawError says that there was one, and muted that they are not passed
	// on.
	failed          chan struct{}
	sawError, muted atomic.Bool

	mu    sync.Mutex
	first error
}

func newServerLog(out *slog.Logger) *serverLog {
	return &serverLog{out: logger(out), failed: make(chan struct{}, 1)}
}

func logger(out *slog.Logger) *slog.Logger {
	if out == nil {
		return slog.Default()
	}
	return out
}

// begin forgets why an earlier start failed.
func (l *serverLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = nil
}

// mute keeps errors back while it is known why there are some: the server logs one
// for every message that it cannot store.
func (l *serverLog) mute(on bool) { l.muted.Store(on) }

func (l *serverLog) Noticef(string, ...any) {}
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}

func (l *serverLog) Warnf(format string, args ...any) {
	l.out.Warn("nats-server: " + fmt.Sprintf(format, args...))
}

func (l *serverLog) Errorf(format string, args ...any) {
	l.sawError.Store(true)
	select {
	case l.failed <- struct{}{}:
	default: // it is signalled already
	}
	if !l.muted.Load() {
		l.out.Error("nats-server: " + fmt.Sprintf(format, args...))
	}
}

func (l *serverLog) Fatalf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.out.Error("nats-server: " + text)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		l.first = errors.New(text)
	}
}

func (l *serverLog) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}
