package datadir

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"
)

// Conn is an open bus, and the server that this process has for it.
type Conn struct {
	cli.Conn
	// Server is the server that was started for it in this process, else nil.
	Server *embedded.Server
	// shared is the directory that this process shares, else nil.
	shared *shared
	// remove removes the copy of a read-only directory, else nil.
	remove func()
}

// Close closes the connection and stops the server if there is one.
func (c *Conn) Close() {
	if c.shared != nil {
		c.shared.giveUp() // the library waits for a dial
	}
	c.NATS.Close()
	if c.Server != nil {
		c.Server.Shutdown()
	}
	if c.shared != nil {
		c.shared.close()
	}
	if c.remove != nil {
		c.remove()
	}
}

// Options say how a command uses the bus; the zero value is a tool that reads.
type Options struct {
	cli.DialOptions
	// Serve starts the server on the data directory for writing: makes the
	// directory, sets the streams up, listens. Nil: the directory is only looked
	// at, and has to be there.
	Serve *Serve

	getenv func(string) string
}

// Serve says how the embedded server runs for others.
type Serve struct {
	// Listen is the address for other processes, host:port; empty: none.
	Listen string
	// Token is what other processes must present, and TokenFrom where they find it, as in
	// [embedded.Options].
	Token, TokenFrom string
	// Config and NKey are accounts and users in place of Token, see [embedded.Options].
	Config, NKey string
	// TLS is that of [embedded.Options].
	TLS *tls.Config
	// Fsync says when the log is flushed to the disk.
	Fsync Fsync
	// Alone refuses a directory that another process serves, instead of joining
	// that process.
	Alone bool
	// Share joins such a process, and serves the directory in its place when it ends.
	Share bool
	// Lead lets one delivery lead a run in a log that has no events yet, see [natsbus.Bus.Agree].
	Lead bool
	// Init says how the streams are set up.
	Init natsbus.InitOptions
}

// Fsync says when the log of an embedded server is flushed to the disk.
type Fsync string

// The values of [Fsync]. The zero value is FsyncAuto.
const (
	// FsyncAuto is FsyncGroup where the data directory can be used so, else FsyncAlways.
	FsyncAuto Fsync = "auto"
	// FsyncGroup flushes before events are acknowledged or delivered, once for all that wait.
	FsyncGroup Fsync = "group"
	// FsyncAlways flushes every event by itself before it is acknowledged.
	FsyncAlways Fsync = "always"
	// FsyncRelaxed leaves it to the server and the system.
	FsyncRelaxed Fsync = "relaxed"
)

// set sets the options of the server.
func (f Fsync) set(o *embedded.Options) {
	o.GroupFlush = f == "" || f == FsyncAuto || f == FsyncGroup
	o.SyncAlways = f == "" || f == FsyncAuto || f == FsyncAlways
}

// syncOf returns what the log is to say of a server.
func (f Fsync) syncOf(server *embedded.Server) natsbus.Sync {
	if server.GroupFlush() {
		return natsbus.SyncGroup
	}
	return natsbus.SyncOf(f != FsyncRelaxed)
}

// ServeFlags are --nats-listen, --fsync and --max-bytes.
type ServeFlags struct {
	listen, fsync string
	maxBytes      agentfile.Size
	flags         *pflag.FlagSet
	getenv        func(string) string
	// Users says that the server has users, so that a listener needs no token.
	Users bool
}

// AddServeFlags adds the flags of commands that start a server: --nats-listen,
// --fsync and --max-bytes. They go with [cli.AddRoleFlags] or [cli.AddInsecureFlag]. getenv is os.Getenv,
// or a test's.
func AddServeFlags(flags *pflag.FlagSet, getenv func(string) string) *ServeFlags {
	f := &ServeFlags{flags: flags, getenv: getenv}
	flags.StringVar(&f.listen, "nats-listen", "", "address of the embedded server for other processes, host:port; they must present NATS_TOKEN (default: none)")
	flags.StringVar(&f.fsync, "fsync", string(FsyncAuto), "when the log is flushed to disk: group (before an event is acknowledged or delivered, once for all that wait), always (each event by itself), relaxed (later), or auto (group if the data directory is on ext4, else always)")
	flags.Var(&f.maxBytes, "max-bytes", "largest size of the log, such as 20GiB (default: as it was set, else half of the disk)")
	return f
}

// Serve returns what the flags say, a usage error, or that of [cli.Guard].
func (f *ServeFlags) Serve() (*Serve, error) {
	switch Fsync(f.fsync) {
	case FsyncAuto, FsyncGroup, FsyncAlways, FsyncRelaxed:
	default:
		return nil, cli.Usage("--fsync: %q is not known; use auto, group, always or relaxed", f.fsync)
	}
	serve := &Serve{Listen: f.listen, Fsync: Fsync(f.fsync), Init: natsbus.InitOptions{MaxBytes: int64(f.maxBytes)}}
	if f.listen == "" || f.Users {
		return serve, nil
	}
	at, err := net.ResolveTCPAddr("tcp", f.listen)
	if err != nil {
		return nil, cli.Usage("--nats-listen: %w", err)
	}
	if serve.Token = f.getenv(cli.NATSTokenVariable); serve.Token != "" {
		serve.TokenFrom = cli.NATSTokenVariable
	}
	return serve, cli.Guard(f.flags, "nats-listen", at, cli.NATSTokenVariable, f.getenv)
}

// Open opens the bus that flags and environment name, see [cli.FindPlace]. A directory that another process serves is joined
// through that process, if it listens; otherwise a server is started in this
// one, which holds the directory until [Conn.Close].
func Open(ctx context.Context, f *cli.BusFlags, o Options) (*Conn, error) {
	o.getenv = f.Getenv
	if err := f.Complete(&o.DialOptions); err != nil {
		return nil, err
	}
	at, err := f.Place()
	if err != nil {
		return nil, err
	}
	if at.Note != "" {
		cli.Say("%s", at.Note)
	}
	open := func() (*Conn, error) { return o.openDir(ctx, at.Dir) }
	if at.Remote {
		open = func() (*Conn, error) { return o.dial(ctx, at.Connect) }
	}
	conn, err := open()
	if err != nil {
		return nil, err
	}
	conn.From = cmp.Or(at.From, "default")
	return conn, nil
}

// dial connects to a server.
func (o *Options) dial(ctx context.Context, connect natsconn.ConnectOptions, more ...nats.Option) (*Conn, error) {
	conn, err := o.Dial(ctx, connect, more...)
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: *conn}, nil
}

func (o *Options) openDir(ctx context.Context, dir string) (*Conn, error) {
	if o.Serve != nil && o.Serve.Share {
		if err := needsUser(dir); err != nil {
			return nil, err
		}
		return o.openShared(ctx, dir)
	}
	server, join, remove, err := o.start(ctx, dir)
	if err != nil {
		return nil, err
	}
	if join != nil {
		conn, err := o.dial(ctx, *join)
		if errors.Is(err, nats.ErrAuthorization) {
			err = cli.NotConfigured("NATS_TOKEN or MOOREBUS_TOKEN is not what the process that serves %s was started with: %w", dir, err)
		}
		return conn, err
	}
	c, err := o.inProcess(ctx, server)
	if err != nil {
		server.Shutdown()
		if remove != nil {
			remove()
		}
		if o.Serve == nil && errors.Is(err, journal.ErrNotReady) {
			// A retry will not help: no other process uses the directory.
			err = fmt.Errorf("data directory %s holds no runs: %s", dir, err.Error())
		}
		return nil, err
	}
	c.Where, c.remove = dir, remove
	return c, nil
}

// needsUser refuses a directory whose server asks for a user: who reads the directory need not be one.
func needsUser(dir string) error {
	if held, err := embedded.Lookup(dir); err == nil && held != nil && strings.HasPrefix(held.URL, "tls://") {
		return cli.NotConfigured("data directory %s is served by process %d, which asks for a user: set NATS_URL=%s, NATS_CA and NATS_NKEY", dir, held.PID, held.URL)
	}
	return nil
}

// start starts the server of a directory, or returns how to join the process that serves it.
// remove, if not nil, is to be called when the server has ended.
func (o *Options) start(ctx context.Context, dir string) (server *embedded.Server, join *natsconn.ConnectOptions, remove func(), err error) {
	if o.Serve == nil || !o.Serve.Alone {
		if err := needsUser(dir); err != nil {
			return nil, nil, nil, err
		}
	}
	settings := embedded.Options{Dir: dir, Logger: o.Logger, Fatal: flushFailed}
	FsyncAuto.set(&settings)
	if s := o.Serve; s != nil {
		settings.Listen, settings.Token, settings.TokenFrom = s.Listen, s.Token, s.TokenFrom
		settings.Config, settings.NKey, settings.TLS = s.Config, s.NKey, s.TLS
		s.Fsync.set(&settings)
	} else if _, err := os.Stat(dir); err != nil {
		return nil, nil, nil, fmt.Errorf("there are no runs to show: %w: start one with `moorebus run`, or name a bus with NATS_URL or another directory with --data", err)
	}
	server, err = embedded.Start(ctx, settings)
	if o.Serve == nil && readOnly(err) {
		server, remove, err = startCopy(ctx, dir, settings)
		return server, nil, remove, err
	}
	var held *embedded.HeldError
	if errors.As(err, &held) && held.URL != "" && (o.Serve == nil || !o.Serve.Alone) {
		o.Logger.Debug("joining the process that serves the data directory", "dir", dir, "url", held.URL, "pid", held.PID)
		token, needs := JoinToken(held.Holder, o.getenv)
		sayWatching(needs)
		return nil, &natsconn.ConnectOptions{URL: held.URL, Token: token}, nil, nil
	}
	if errors.Is(err, embedded.ErrNoGroupFlush) {
		return nil, nil, nil, cli.NotConfigured("--fsync=group: %w: use --fsync=always, or another data directory", err)
	}
	if readOnly(err) {
		err = cli.NotConfigured("data directory %s cannot be written: make it writable, or use another one with --data: %w", dir, err)
	}
	return server, nil, nil, err
}

func (o *Options) inProcess(ctx context.Context, server *embedded.Server) (*Conn, error) {
	conn, err := server.Connect(nats.Name(o.Name))
	if err != nil {
		return nil, err
	}
	if o.Serve != nil {
		init := o.Serve.Init
		init.Storable, init.Sync = server.Storable(), o.Serve.Fsync.syncOf(server)
		// Who connected before that may take the log for one that is flushed in another way.
		init.Resynced = func() error { return server.Reconnect(conn) }
		if err := natsbus.Init(ctx, conn, init); err != nil {
			conn.Close()
			return nil, err
		}
	}
	o.Bus.Full, o.Bus.Flush = server.Full, server.Flush
	bus, err := natsbus.Open(ctx, conn, o.Bus)
	if err == nil && o.Serve != nil && o.Serve.Lead {
		err = bus.Agree(ctx, reducer.Revision)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Conn{Conn: cli.Conn{Bus: bus, NATS: conn}, Server: server}, nil
}

// flushFailed ends the process at once: what was stored last is not on the disk, and nobody may
// act on it.
func flushFailed(err error) {
	cli.Say("the disk failed, see the system's log: %v\nThe process ends, and loses nothing that it acknowledged. Start it again when the disk works.", err)
	os.Exit(cli.ExitFailure)
}
