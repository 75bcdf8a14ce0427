package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// place is where runs are: one of a bus, a connection, a URL and a directory, or
// nothing for a directory that does not stay.
type place struct {
	bus  journal.Bus
	conn *nats.Conn
	url  string
	dir  string
}

// embedded reports whether the place is a server of this process.
func (p place) embedded() bool { return p.bus == nil && p.conn == nil && p.url == "" }

// needs is what a bus has to have.
type needs struct {
	pools  []string
	states []events.State
}

// open returns the bus, and what lets go of it.
func (p place) open(ctx context.Context, n needs, logger *slog.Logger) (bus journal.Bus, release func(), err error) {
	switch {
	case p.bus != nil:
		return p.bus, func() {}, nil
	case p.conn != nil:
		bus, err := connected(ctx, p.conn, n, natsbus.Options{Logger: logger})
		return bus, func() {}, err
	case p.url != "":
		return p.dial(ctx, n, logger)
	}
	return p.serve(ctx, n, logger)
}

// connected opens the bus of a connection, and sets it up if nobody did.
func connected(ctx context.Context, conn *nats.Conn, n needs, o natsbus.Options) (journal.Bus, error) {
	bus, err := natsbus.Open(ctx, conn, o)
	if errors.Is(err, journal.ErrNotReady) {
		if err := natsbus.Init(ctx, conn, natsbus.InitOptions{Pools: n.pools, States: n.states}); err != nil {
			return nil, err
		}
		bus, err = natsbus.Open(ctx, conn, o)
	}
	if err != nil {
		return nil, err // not a nil *natsbus.Bus in an interface
	}
	return bus, nil
}

func (p place) dial(ctx context.Context, n needs, logger *slog.Logger) (journal.Bus, func(), error) {
	o, err := natsconn.FromEnv(os.Getenv)
	if err != nil {
		return nil, nil, err
	}
	o.URL, o.Name, o.Logger = p.url, "moorebus/agent", logger
	conn, err := natsconn.Connect(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	bus, err := connected(ctx, conn, n, natsbus.Options{Logger: logger})
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return bus, conn.Close, nil
}

// serve starts an embedded server.
func (p place) serve(ctx context.Context, n needs, logger *slog.Logger) (journal.Bus, func(), error) {
	dir, remove := p.dir, func() {}
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "moorebus-"); err != nil {
			return nil, nil, err
		}
		remove = func() { _ = os.RemoveAll(dir) }
	}
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir, SyncAlways: true, Logger: logger})
	if err != nil {
		remove()
		return nil, nil, err
	}
	shutdown := func() { server.Shutdown(); remove() }
	conn, err := server.Connect()
	if err != nil {
		shutdown()
		return nil, nil, err
	}
	closeAll := func() { conn.Close(); shutdown() }
	if err := natsbus.Init(ctx, conn, natsbus.InitOptions{Pools: n.pools, States: n.states, Alone: true, Storable: server.Storable(), Sync: natsbus.SyncAlways}); err != nil {
		closeAll()
		return nil, nil, err
	}
	bus, err := connected(ctx, conn, n, natsbus.Options{Logger: logger, Full: server.Full})
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return bus, closeAll, nil
}
