package datadir

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/cli"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/embedded"
)

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

// Connect connects to the bus that flags and environment name. A directory that no process serves is
// served by this one meanwhile; it is made if create is set and it is named. command is the name of
// the command.
func Connect(ctx context.Context, f *cli.BusFlags, command string, create bool, o Options) (*Raw, error) {
	o.getenv = f.Getenv
	at, err := f.SetupPlace(command)
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
