package cli

import (
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/certs"
)

// The variables of [TLSFlags].
const (
	tlsCertVariable = "MOOREBUS_TLS_CERT"
	tlsKeyVariable  = "MOOREBUS_TLS_KEY"
	// ClientCAVariable is the environment's --client-ca.
	ClientCAVariable = "MOOREBUS_CLIENT_CA"
)

// TLSFlags are --tls-cert, --tls-key and --client-ca: the TLS of a listener.
type TLSFlags struct {
	flags   *pflag.FlagSet
	getenv  func(string) string
	files   certs.Files
	watched *certs.Watched
}

// AddTLSFlags adds them. getenv is os.Getenv, or a test's.
func AddTLSFlags(flags *pflag.FlagSet, getenv func(string) string) *TLSFlags {
	f := &TLSFlags{flags: flags, getenv: getenv}
	flags.StringVar(&f.files.Cert, "tls-cert", getenv(tlsCertVariable), "`file` with the certificate of --listen and its chain, in PEM; read again when it changes ("+tlsCertVariable+", else no TLS)")
	flags.StringVar(&f.files.Key, "tls-key", getenv(tlsKeyVariable), "`file` of the certificate's key, in PEM ("+tlsKeyVariable+")")
	flags.StringVar(&f.files.ClientCA, "client-ca", getenv(ClientCAVariable), "`file` of authorities in PEM: only clients with a certificate of one of them may connect ("+ClientCAVariable+", else every client)")
	return f
}

// Listen listens on the address of --listen, guarded as by [Guard]: the variable of the environment
// holds credentials, and a client's certificate is one. config is nil without --tls-cert. Flags
// that exclude each other are a usage error. Other errors have the code [ExitConfig].
func (f *TLSFlags) Listen(address, variable string, logger *slog.Logger) (listener *net.TCPListener, config *tls.Config, err error) {
	switch {
	case (f.files.Cert == "") != (f.files.Key == ""):
		return nil, nil, Usage("--tls-cert and --tls-key belong together: give both, or neither")
	case f.files.ClientCA != "" && f.files.Cert == "":
		return nil, nil, Usage("--client-ca needs --tls-cert and --tls-key: without TLS, clients show no certificate")
	case f.files.Cert != "":
		if f.watched, err = certs.WatchFiles(f.files, logger); err != nil {
			return nil, nil, NotConfigured("--tls-cert, --tls-key, --client-ca: %w", err)
		}
		config = f.watched.Config("h2", "http/1.1")
	}
	getenv := f.getenv
	if f.files.ClientCA != "" {
		getenv = func(string) string { return "a client's certificate" }
	}
	listener, err = Listen(f.flags, "listen", address, variable, getenv)
	return listener, config, err
}

// Ends returns until when the certificate is valid, by the name http; nil without one, and without
// flags (nil).
func (f *TLSFlags) Ends() map[string]time.Time {
	if f == nil || f.watched == nil {
		return nil
	}
	return map[string]time.Time{"http": f.watched.Ends()[certs.Server]}
}

// Given reports whether any of the flags is on the command line.
func (f *TLSFlags) Given() bool {
	return f.flags.Changed("tls-cert") || f.flags.Changed("tls-key") || f.flags.Changed("client-ca")
}

// Key is the file of the key; empty: there is none.
func (f *TLSFlags) Key() string { return f.files.Key }

// Scheme is that of the listener's URL.
func (f *TLSFlags) Scheme() string {
	if f.files.Cert != "" {
		return "https"
	}
	return "http"
}
