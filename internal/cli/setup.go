package cli

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/embedded"
)

// AddSetupFlags adds --nats and --data, for commands that set a bus up or ask about that.
func AddSetupFlags(flags *pflag.FlagSet, getenv func(string) string) *BusFlags {
	f := &BusFlags{getenv: getenv}
	f.addURL(flags)
	flags.StringVar(&f.data, "data", "", "data directory to use instead of a bus (default MOOREBUS_DATA, else "+filepath.Join("$XDG_DATA_HOME", appName)+" if it exists)")
	return f
}

// Raw is a connection to a bus that need not be set up.
type Raw struct {
	NATS *nats.Conn
	// server is nil unless this process serves a data directory.
	server *embedded.Server
	// remove is that of a Conn.
	remove func()
	// Note tells people where the bus is; else empty.
	Note string
}

// Close closes the connection and stops the server if there is one.
func (r *Raw) Close() {
	r.NATS.Close()
	if r.server != nil {
		r.server.Shutdown()
		if r.remove != nil {
			r.remove()
		}
	}
}

// Complete sets what a server of this process knows about itself.
func (r *Raw) Complete(o *natsbus.InitOptions) {
	if r.server == nil {
		return
	}
	o.Storable, o.Sync = r.server.Storable(), FsyncAuto.syncOf(r.server)
	o.Resynced = func() error { return r.server.Reconnect(r.NATS) }
}

// Options are those with which the bus is opened.
func (r *Raw) Options(logger *slog.Logger) natsbus.Options {
	o := natsbus.Options{Logger: logger}
	if r.server != nil {
		o.Full, o.Flush = r.server.Full, r.server.Flush
	}
	return o
}

// setupPlace returns the server that is named, else the data directory. A directory that nobody
// names is not made. command is for the error.
func (f *BusFlags) setupPlace(command string) (Place, error) {
	at, err := FindPlace(f.url, f.data, f.getenv)
	if err != nil || at.Remote || at.From != "default" {
		return at, err
	}
	server, err := FindServer(f.url, f.getenv)
	switch {
	case err != nil || server.From != "":
		return server, err
	case at.Missing():
		return at, NotConfigured("no bus is named: set NATS_URL or use --nats, as in `moorebus %s --nats nats://127.0.0.1:4222`; of `moorebus dev` name the data directory with --data", command)
	}
	at.Note = "this is data directory " + at.Dir
	return at, nil
}

// Raw connects to the bus that flags and environment name. A directory that no process serves is
// served by this one meanwhile; it is made if create is set and it is named. command is the name of
// the command.
func (f *BusFlags) Raw(ctx context.Context, command string, create bool, o OpenOptions) (*Raw, error) {
	o.getenv = f.getenv
	at, err := f.setupPlace(command)
	if err != nil {
		return nil, err
	}
	connect := &at.Connect
	if !at.Remote {
		if create {
			o.Serve = &Serve{}
		}
		server, join, remove, err := o.start(ctx, at.Dir)
		if err != nil {
			return nil, err
		}
		if join == nil {
			return serving(server, remove, o.Name, at.Note)
		}
		connect = join
	}
	connect.Name, connect.Logger, connect.Wait = o.Name, o.Logger, o.Wait
	conn, err := natsconn.Connect(ctx, *connect)
	if err != nil {
		return nil, err
	}
	return &Raw{NATS: conn, Note: at.Note}, nil
}

func serving(server *embedded.Server, remove func(), name, note string) (*Raw, error) {
	conn, err := server.Connect(nats.Name(name))
	if err != nil {
		server.Shutdown()
		if remove != nil {
			remove()
		}
		return nil, fmt.Errorf("the server of the data directory: %w", err)
	}
	return &Raw{NATS: conn, server: server, remove: remove, Note: note}, nil
}
