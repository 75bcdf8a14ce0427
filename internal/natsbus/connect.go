package natsbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
)

// ConnectOptions says where the bus is and who connects. Only one way to
// authenticate should be given.
type ConnectOptions struct {
	// URL is one server or several with commas; empty: nats://127.0.0.1:4222.
	URL string
	// Creds is the path of a credentials file.
	Creds string
	// User and Password, or Token.
	User, Password, Token string
	// NKey is the path of a file with the seed of an nkey.
	NKey string
	// CA is the path of a file with certificates to trust.
	CA string
	// Cert and Key are the paths of the client's own certificate.
	Cert, Key string
	// InboxPrefix is what subjects of answers begin with, for users that may
	// subscribe to no other; empty: what a context file says, or the library's.
	InboxPrefix string
	// Name is what the server's tools show for the connection.
	Name string
	// Logger gets what happens to the connection; nil: slog's default.
	Logger *slog.Logger
	// Wait makes Connect wait for a server that is not there yet, instead of
	// failing; roles set it.
	Wait bool
}

const (
	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 250 * time.Millisecond
	connectTimeout  = 5 * time.Second
	pingInterval    = 10 * time.Second
	drainWait       = 5 * time.Second
)

// Connect opens a connection that reconnects for ever. If the first attempt
// fails, it either returns the error or, with Wait, tries until ctx ends.
func Connect(ctx context.Context, o ConnectOptions) (*nats.Conn, error) {
	opts, err := o.options()
	if err != nil {
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	url := o.URL
	if url == "" {
		url = nats.DefaultURL
	}
	connected := make(chan struct{}, 1)
	opts = append(opts, nats.RetryOnFailedConnect(o.Wait), nats.ConnectHandler(func(*nats.Conn) { connected <- struct{}{} }))
	conn, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus at %s: %w", redact(url), connectError(err))
	}
	if conn.IsConnected() {
		return conn, nil
	}
	o.logger().Warn("waiting for the bus", "url", redact(url))
	closed := conn.StatusChanged(nats.CLOSED)
	defer conn.RemoveStatusListener(closed)
	select {
	case <-connected:
		return conn, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-closed:
		err = errors.Join(nats.ErrConnectionClosed, conn.LastError())
	}
	conn.Close()
	return nil, fmt.Errorf("connect to the bus at %s: %w", redact(url), connectError(err))
}

func connectError(err error) error {
	if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
		return fmt.Errorf("%w: check NATS_CREDS, NATS_NKEY, NATS_USER and NATS_PASSWORD, or NATS_CONTEXT: %w", journal.ErrDenied, err)
	}
	if errors.Is(err, nats.ErrNoServers) {
		return fmt.Errorf("no server answers there, check NATS_URL: %w", err)
	}
	return err
}

func (o ConnectOptions) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.Default()
	}
	return o.Logger
}

func (o ConnectOptions) options() ([]nats.Option, error) {
	log := o.logger()
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		nats.DrainTimeout(drainWait),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if sub != nil {
				log.Warn("bus", "subject", sub.Subject, "error", err)
				return
			}
			log.Warn("bus", "error", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("the bus went away, reconnecting", "error", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { log.Info("the bus is back", "url", c.ConnectedUrlRedacted()) }),
	}
	auth, err := o.auth()
	return append(opts, auth...), err
}

func (o ConnectOptions) auth() ([]nats.Option, error) {
	var opts []nats.Option
	if o.Creds != "" {
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	if o.NKey != "" {
		option, err := nats.NkeyOptionFromSeed(o.NKey)
		if err != nil {
			return nil, fmt.Errorf("nkey file %s: %w", o.NKey, err)
		}
		opts = append(opts, option)
	}
	if o.User != "" {
		opts = append(opts, nats.UserInfo(o.User, o.Password))
	}
	if o.Token != "" {
		opts = append(opts, nats.Token(o.Token))
	}
	if o.CA != "" {
		opts = append(opts, nats.RootCAs(o.CA))
	}
	if o.Cert != "" {
		opts = append(opts, nats.ClientCert(o.Cert, o.Key))
	}
	if o.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	return opts, nil
}
