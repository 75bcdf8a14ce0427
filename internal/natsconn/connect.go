// Package natsconn connects to NATS servers: where they are and who connects, as the
// environment and the contexts of the nats CLI say it, what the user may publish, and what a
// server's monitoring says of the server.
package natsconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
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
	// NKey is the path of a file with the seed of an nkey, Seed the seed itself.
	NKey, Seed string
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
	firstReason     = time.Second
	nextReason      = time.Minute
)

// Connect opens a connection that reconnects forever. If the first attempt
// fails, it either returns the error or, with Wait, tries until ctx ends. more are options that
// go before those that follow from o.
func Connect(ctx context.Context, o ConnectOptions, more ...nats.Option) (*nats.Conn, error) {
	opts, err := o.options()
	if err != nil {
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	for _, path := range []string{o.NKey, o.Creds} {
		if at, err := os.Stat(path); err == nil && at.Mode().Perm()&0o004 != 0 {
			o.logger().Warn("every user of this machine can read the key of this process: take that away with chmod 600", "file", path)
		}
	}
	url := o.URL
	if url == "" {
		url = nats.DefaultURL
	}
	connected := make(chan struct{}, 1)
	var failed atomic.Pointer[error]
	tell := func(c *nats.Conn) { go o.tellWhy(c, &failed) }
	opts = append(opts, nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { failed.Store(&err) }),
		nats.DisconnectErrHandler(func(c *nats.Conn, err error) {
			if err != nil {
				o.logger().Warn("the bus went away, reconnecting", "reason", err)
				tell(c)
			}
		}))
	opts = append(append(opts, more...), nats.RetryOnFailedConnect(o.Wait), nats.ConnectHandler(func(*nats.Conn) { connected <- struct{}{} }))
	conn, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus at %s: %w", redact(url), connectError(err))
	}
	if conn.IsConnected() {
		return conn, nil
	}
	o.logger().Warn("waiting for the bus", "url", redact(url))
	tell(conn)
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

// tellWhy logs why the bus is not reached, after a second and then every minute, until conn is
// connected or closed. The library keeps failures of the dial in failed, later ones itself.
func (o ConnectOptions) tellWhy(conn *nats.Conn, failed *atomic.Pointer[error]) {
	ended := conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer conn.RemoveStatusListener(ended)
	for pause := firstReason; !conn.IsConnected() && !conn.IsClosed(); pause = nextReason {
		select {
		case <-ended:
			return
		case <-time.After(pause):
		}
		reason := conn.LastError()
		if dial := failed.Swap(nil); reason == nil && dial != nil {
			reason = *dial
		}
		if reason != nil {
			o.logger().Warn("the bus is not reached", "reason", connectError(reason))
		}
	}
}

// WhileOpen returns a context that ends with ctx, or when conn is closed: the library gives up
// when the server refuses the user twice. Then the cause says why. stop ends it, too.
func WhileOpen(ctx context.Context, conn *nats.Conn) (open context.Context, stop func()) {
	open, end := context.WithCancelCause(ctx)
	closed := conn.StatusChanged(nats.CLOSED)
	go func() {
		defer conn.RemoveStatusListener(closed)
		select {
		case <-closed:
			end(fmt.Errorf("the bus is lost: %w", connectError(errors.Join(nats.ErrConnectionClosed, conn.LastError()))))
		case <-open.Done():
		}
	}()
	return open, func() { end(nil) }
}

func connectError(err error) error {
	if untrusted := new(tls.CertificateVerificationError); errors.As(err, &untrusted) {
		return fmt.Errorf("the server's certificate is refused: set NATS_CA to the ca.pem of its authority; if it has expired or lacks the server's name, renew it (`moorebus certs --renew --host NAME`): %w", err)
	}
	if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
		return fmt.Errorf("%w: check NATS_CREDS, NATS_NKEY, NATS_NKEY_SEED, NATS_USER and NATS_PASSWORD, or NATS_CONTEXT: %w", journal.ErrDenied, err)
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
				log.Warn("bus", "subject", sub.Subject, "reason", err)
				return
			}
			log.Warn("bus", "reason", err)
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
	if o.Seed != "" {
		option, err := fromSeed(o.Seed)
		if err != nil {
			return nil, err
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

// SeedVariable is the environment variable with the seed of an nkey. Unlike a file, no other process of
// the same user can read it.
const SeedVariable = "NATS_NKEY_SEED"

// fromSeed authenticates with the nkey of a seed.
func fromSeed(seed string) (nats.Option, error) {
	bad := errors.New(SeedVariable + " is not the seed of a user's nkey, which begins with SU; NATS_NKEY names a file with one")
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(seed)))
	if err != nil {
		return nil, bad // the error itself could show the seed
	}
	public, err := pair.PublicKey()
	if err != nil || !nkeys.IsValidPublicUserKey(public) {
		return nil, bad
	}
	return nats.Nkey(public, pair.Sign), nil
}

// FromEnv reads the options from NATS_URL, NATS_CREDS, NATS_USER, NATS_PASSWORD,
// NATS_TOKEN, NATS_NKEY, NATS_NKEY_SEED, NATS_CA, NATS_CERT, NATS_KEY, NATS_INBOX_PREFIX and
// NATS_CONTEXT. NATS_CONTEXT names one of the nats CLI's contexts,
// `$XDG_CONFIG_HOME/nats/context/<name>.json`; what the other variables say goes
// before what is in the file. A context that wants something of a connection that
// cannot be had here is an error. The context that is selected in the nats CLI does
// not count, see [SelectedContext].
func FromEnv(getenv func(string) string) (ConnectOptions, error) {
	name := getenv("NATS_CONTEXT")
	if name == "" {
		return overlay(ConnectOptions{}, getenv)
	}
	o, err := FromContext(getenv, name)
	if err != nil {
		return ConnectOptions{}, fmt.Errorf("NATS_CONTEXT=%s: %w", name, err)
	}
	return o, nil
}

// FromContext is [FromEnv] with the context of that name, whatever NATS_CONTEXT says.
func FromContext(getenv func(string) string, name string) (ConnectOptions, error) {
	o, err := readContext(getenv, name)
	if err != nil {
		return ConnectOptions{}, err
	}
	return overlay(o, getenv)
}

// overlay puts what the environment says over o.
func overlay(o ConnectOptions, getenv func(string) string) (ConnectOptions, error) {
	// Credentials of the environment replace those of the context altogether.
	for _, key := range []string{"NATS_CREDS", "NATS_USER", "NATS_TOKEN", "NATS_NKEY", SeedVariable} {
		if getenv(key) != "" {
			o.Creds, o.User, o.Password, o.Token, o.NKey, o.Seed = "", "", "", "", "", ""
		}
	}
	for key, field := range map[string]*string{
		"NATS_URL": &o.URL, "NATS_CREDS": &o.Creds, "NATS_USER": &o.User, "NATS_PASSWORD": &o.Password,
		"NATS_TOKEN": &o.Token, "NATS_NKEY": &o.NKey, SeedVariable: &o.Seed, "NATS_CA": &o.CA,
		"NATS_CERT": &o.Cert, "NATS_KEY": &o.Key, "NATS_INBOX_PREFIX": &o.InboxPrefix,
	} {
		if value := getenv(key); value != "" {
			*field = value
		}
	}
	if o.Password != "" && o.User == "" {
		return ConnectOptions{}, errors.New("NATS_PASSWORD is set without NATS_USER: set both or neither")
	}
	if o.NKey != "" && o.Seed != "" {
		return ConnectOptions{}, errors.New("NATS_NKEY and " + SeedVariable + " are both set: set one of them")
	}
	if (o.Cert == "") != (o.Key == "") {
		return ConnectOptions{}, errors.New("one of NATS_CERT and NATS_KEY is set without the other: set both or neither")
	}
	return o, nil
}

// SelectedContext returns the name of the context that the nats CLI uses where it is
// given none (`nats context select`), empty if none is selected.
func SelectedContext(getenv func(string) string) string {
	name, err := os.ReadFile(filepath.Join(contextDir(getenv), "context.txt"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// contextDir is where the nats CLI keeps its settings.
func contextDir(getenv func(string) string) string {
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		dir = filepath.Join(getenv("HOME"), ".config")
	}
	return filepath.Join(dir, "nats")
}

// contextFile is a context of the nats CLI; what is not named here does not matter.
type contextFile struct {
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	CA          string `json:"ca"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	InboxPrefix string `json:"inbox_prefix"`

	// What follows cannot be had.
	SocksProxy string `json:"socks_proxy"`
	NSC        string `json:"nsc"`
	JWT        string `json:"user_jwt"`
	Seed       string `json:"user_seed"`
	Domain     string `json:"jetstream_domain"`
	APIPrefix  string `json:"jetstream_api_prefix"`
	TLSFirst   bool   `json:"tls_first"`
}

// check returns an error that names what the context wants and cannot be had.
func (c *contextFile) check() error {
	first := ""
	if c.TLSFirst {
		first = "true"
	}
	for _, setting := range [][2]string{
		{"socks_proxy", c.SocksProxy}, {"nsc", c.NSC}, {"user_jwt", c.JWT}, {"user_seed", c.Seed},
		{"jetstream_domain", c.Domain}, {"jetstream_api_prefix", c.APIPrefix}, {"tls_first", first},
	} {
		if setting[1] != "" {
			return fmt.Errorf("the context sets %s, which moorebus cannot do; use another context, or set NATS_URL and NATS_CREDS or their like", setting[0])
		}
	}
	return nil
}

func readContext(getenv func(string) string, name string) (ConnectOptions, error) {
	if name != filepath.Base(name) || name == "." || name == ".." {
		return ConnectOptions{}, errors.New("it is the name of a context, not a path: see `nats context ls`")
	}
	path := filepath.Join(contextDir(getenv), "context", name+".json")
	body, err := os.ReadFile(path)
	if err != nil {
		return ConnectOptions{}, fmt.Errorf("read the context, see `nats context ls`: %w", err)
	}
	var c contextFile
	if err := json.Unmarshal(body, &c); err != nil {
		return ConnectOptions{}, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.check(); err != nil {
		return ConnectOptions{}, fmt.Errorf("%s: %w", path, err)
	}
	o := ConnectOptions{
		URL: cmp.Or(c.URL, nats.DefaultURL), User: c.User, Password: c.Password, Token: c.Token, Creds: c.Creds,
		NKey: c.NKey, CA: c.CA, Cert: c.Cert, Key: c.Key, InboxPrefix: c.InboxPrefix,
	}
	for _, field := range []*string{&o.Creds, &o.NKey, &o.CA, &o.Cert, &o.Key} {
		if rest, ok := strings.CutPrefix(*field, "~/"); ok {
			*field = filepath.Join(getenv("HOME"), rest)
		}
	}
	return o, nil
}

// Server returns where the bus is, for people: without passwords.
func (o ConnectOptions) Server() string { return redact(cmp.Or(o.URL, nats.DefaultURL)) }

// redact takes passwords out of a list of URLs.
func redact(list string) string {
	parts := strings.Split(list, ",")
	for i, part := range parts {
		if u, err := url.Parse(strings.TrimSpace(part)); err == nil && u.User != nil {
			u.User = url.User("xxxxx")
			parts[i] = u.String()
		}
	}
	return strings.Join(parts, ",")
}
