package cli

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
)

// Conn is an open bus, and where it was found.
type Conn struct {
	// Bus is the journal.
	Bus *natsbus.Bus
	// NATS is the connection under it.
	NATS *nats.Conn
	// Where says for people what was opened: a URL or a directory. From says what named
	// it, see [Place].
	Where, From string
}

// DialOptions say how a process uses the server of a bus.
type DialOptions struct {
	// Name is what the server's tools show for the connection, such as
	// moorebus/planner/host-17.
	Name string
	// Wait waits for a bus and streams that do not exist yet, without a limit.
	Wait bool
	// Bus tunes the journal. Its Logger is Logger if nil.
	Bus natsbus.Options
	// Logger gets what happens to the bus; nil: slog's default.
	Logger *slog.Logger
}

// Dial opens the bus on the server that flags and environment name, see [FindServer].
func (f *BusFlags) Dial(ctx context.Context, o DialOptions) (*Conn, error) {
	if err := f.Complete(&o); err != nil {
		return nil, err
	}
	at, err := FindServer(f.url, f.getenv)
	if err != nil {
		return nil, err
	}
	conn, err := o.Dial(ctx, at.Connect)
	if err != nil {
		return nil, err
	}
	conn.From = cmp.Or(at.From, "default")
	return conn, nil
}

// Complete sets what the flags say of the bus, and the loggers where there are none.
func (f *BusFlags) Complete(o *DialOptions) (err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Bus.Logger == nil {
		o.Bus.Logger = o.Logger
	}
	o.Bus.GroupCommit, err = f.groupCommit()
	return err
}

// Dial opens the bus on a server.
func (o *DialOptions) Dial(ctx context.Context, connect natsconn.ConnectOptions, more ...nats.Option) (*Conn, error) {
	connect.Name, connect.Logger, connect.Wait = o.Name, o.Logger, o.Wait
	conn, err := natsconn.Connect(ctx, connect, more...)
	if err != nil {
		return nil, err
	}
	open := natsbus.Open
	if o.Wait {
		open = natsbus.Wait
	}
	bus, err := open(ctx, conn, o.Bus)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Conn{Bus: bus, NATS: conn, Where: conn.ConnectedUrlRedacted()}, nil
}
