// Package natsbus opens the journal on NATS JetStream, for programs that bring their own
// workers to a bus. [Connect] and then [Wait] is all that a worker needs; the streams are
// made by `moorebus init`, or by [Init].
//
// The connection stays the caller's. Close it after everything that uses the bus has
// ended.
package natsbus

import (
	"context"
	"log/slog"
	"time"

	inner "github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/natsconn"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// ConnectOptions says where the bus is and who connects. Give one way to authenticate.
type ConnectOptions struct {
	// URL is one server or several with commas; empty: nats://127.0.0.1:4222.
	URL string
	// Creds is the path of a credentials file.
	Creds string
	// User and Password, or Token.
	User, Password, Token string
	// NKey is the path of a file with the seed of an nkey, Seed the seed itself.
	NKey, Seed string
	// CA is the path of a file with certificates to trust.
	CA string
	// Cert and Key are the paths of the client's own certificate.
	Cert, Key string
	// InboxPrefix begins the subjects of answers, for users that may subscribe to no other.
	InboxPrefix string
	// Name is what the server's tools show for the connection.
	Name string
	// Logger gets what happens to the connection; nil: slog's default.
	Logger *slog.Logger
	// Wait makes [Connect] wait for a server that is not there yet, instead of failing.
	Wait bool
}

// FromEnv reads the options from NATS_URL, NATS_CREDS, NATS_USER, NATS_PASSWORD,
// NATS_TOKEN, NATS_NKEY, NATS_NKEY_SEED, NATS_CA, NATS_CERT, NATS_KEY, NATS_INBOX_PREFIX and NATS_CONTEXT,
// which names a context of the nats CLI. getenv is os.Getenv. A context that needs what
// cannot be done here is an error.
func FromEnv(getenv func(string) string) (ConnectOptions, error) {
	o, err := natsconn.FromEnv(getenv)
	return ConnectOptions(o), err
}

// Connect opens a connection that retries indefinitely when it breaks. If the first attempt fails, it
// returns the error or, with Wait, tries until ctx ends. What the server refuses is
// [journal.ErrDenied].
func Connect(ctx context.Context, o ConnectOptions) (*nats.Conn, error) {
	return natsconn.Connect(ctx, natsconn.ConnectOptions(o))
}

// Options says how a bus behaves; the zero value is useful.
type Options struct {
	// Logger gets what the bus waits for and what goes wrong in the background; nil:
	// slog's default.
	Logger *slog.Logger
	// RequestTimeout bounds the wait for one answer of the server, and an append
	// altogether; 0: 5 s.
	RequestTimeout time.Duration
}

func (o Options) inner() inner.Options {
	return inner.Options{Logger: o.Logger, RequestTimeout: o.RequestTimeout}
}

// Open returns the bus of a connection. It is [journal.ErrNotReady] if streams are missing.
func Open(ctx context.Context, conn *nats.Conn, o Options) (journal.Bus, error) {
	return face(inner.Open(ctx, conn, o.inner()))
}

// Wait is [Open] as soon as the bus answers and is set up. It logs what it waits for. The
// error is the context's, or [journal.ErrDenied].
func Wait(ctx context.Context, conn *nats.Conn, o Options) (journal.Bus, error) {
	return face(inner.Wait(ctx, conn, o.inner()))
}

// face keeps a nil bus out of the interface.
func face(bus *inner.Bus, err error) (journal.Bus, error) {
	if err != nil {
		return nil, err
	}
	return bus, nil
}

// InitOptions says how the bus is set up; the zero value is one shard on one server.
type InitOptions struct {
	// Shards is the number of streams; 0: as many as there are, or 1. It cannot be changed
	// once the streams exist.
	Shards int
	// Replicas is on how many servers each stream lies; 0: as it is, or 1.
	Replicas int
	// Pools are the pools of tools in addition to the default one.
	Pools []string
	// States are the states of an application's own graph that workers consume.
	States []events.State
}

// Init creates or updates streams, consumers and buckets. It can be repeated. A user who
// may not do all of it gets [journal.ErrDenied].
func Init(ctx context.Context, conn *nats.Conn, o InitOptions) error {
	return inner.Init(ctx, conn, inner.InitOptions{Shards: o.Shards, Replicas: o.Replicas, Pools: o.Pools, States: o.States})
}
