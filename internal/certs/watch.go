package certs

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// looks separates two looks at the files of a [Watched].
const looks = time.Second

// Files are those of a server: its certificate and whatever stands behind it, its key, and the
// authorities that sign the certificates of its clients. ClientCA may be empty: clients need none.
type Files struct{ Cert, Key, ClientCA string }

// Watched is a server's certificate that is read again when its files change. Files that cannot
// be used are logged once, and those before them stay in use until they can.
type Watched struct {
	files Files
	// ca is the authority of the certificate; empty: its file is not known.
	ca     string
	logger *slog.Logger

	mu     sync.Mutex
	looked time.Time
	// stamped is the stamp of the files that are in use, said what was logged of others.
	stamped, said string
	loaded
}

// loaded is what the files hold. clients is nil without authorities.
type loaded struct {
	pair    *tls.Certificate
	clients *x509.CertPool
}

// Watch reads the certificate and the key of that name in a directory.
func Watch(dir, name string, logger *slog.Logger) (*Watched, error) {
	w, err := WatchFiles(Files{Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key")}, logger)
	if err == nil {
		w.ca = filepath.Join(dir, Authority+".pem")
	}
	return w, err
}

// WatchFiles reads a certificate. It logs a warning if the certificate has ended or has not begun, and
// if every user of the machine can read the key.
func WatchFiles(files Files, logger *slog.Logger) (*Watched, error) {
	w := &Watched{files: files, logger: cmp.Or(logger, slog.Default()), looked: time.Now()}
	w.stamped = w.stamp()
	var err error
	if w.loaded, err = files.read(); err != nil {
		return nil, err
	}
	if err := valid(w.pair.Leaf); err != nil {
		w.logger.Warn("clients will refuse the certificate", "file", files.Cert, "reason", err)
	}
	if info, err := os.Stat(files.Key); err == nil && info.Mode().Perm()&0o004 != 0 {
		w.logger.Warn("every user of this machine can read the key: run chmod o-r", "file", files.Key)
	}
	return w, nil
}

// Config returns the settings of a server with the certificate of each moment, and, where there
// are authorities of clients, with those of each moment. protocols are those of ALPN.
func (w *Watched) Config(protocols ...string) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return w.current().pair, nil },
	}
	if w.files.ClientCA == "" {
		return c
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.SessionTicketsDisabled = true // a client whose authority was removed would come back with a ticket
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := c.Clone()
		now.ClientCAs, now.GetConfigForClient = w.current().clients, nil
		return now, nil
	}
	return c
}

// Ends returns until when the certificate and its authority's are valid. An authority whose
// file is not there is omitted.
func (w *Watched) Ends() map[string]time.Time {
	ends := map[string]time.Time{Server: w.current().pair.Leaf.NotAfter}
	if w.ca == "" {
		return ends
	}
	if der, err := decode(w.ca); err == nil {
		if c, err := x509.ParseCertificate(der); err == nil {
			ends[authority] = c.NotAfter
		}
	}
	return ends
}

// current returns what the files hold, or held when they could be used.
func (w *Watched) current() loaded {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.looked) < looks {
		return w.loaded
	}
	w.looked = time.Now()
	stamp := w.stamp()
	if stamp == w.stamped {
		return w.loaded
	}
	next, err := w.files.read()
	if err == nil && valid(w.pair.Leaf) == nil {
		err = valid(next.pair.Leaf)
	}
	if err != nil { // it may be usable later, as it is
		if said := stamp + err.Error(); said != w.said {
			w.said = said
			w.logger.Warn("the new certificate cannot be used, so the one before it stays", "file", w.files.Cert, "reason", err)
		}
		return w.loaded
	}
	w.loaded, w.stamped = next, stamp
	w.logger.Info("took a new certificate", "file", w.files.Cert, "deadline", next.pair.Leaf.NotAfter)
	return w.loaded
}

func (f *Files) read() (l loaded, err error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return l, fmt.Errorf("%s and %s: %w", f.Cert, f.Key, err)
	}
	if f.ClientCA == "" {
		return loaded{pair: &pair}, nil
	}
	text, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return l, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(text) {
		return l, fmt.Errorf("%s has no certificate in PEM", f.ClientCA)
	}
	return loaded{&pair, clients}, nil
}

// valid returns an error if a certificate has ended or has not begun.
func valid(c *x509.Certificate) error {
	switch now := time.Now(); {
	case now.After(c.NotAfter):
		return fmt.Errorf("it ended on %s", c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("it begins on %s", c.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// stamp changes when a file does.
func (w *Watched) stamp() (all string) {
	for _, file := range []string{w.files.Cert, w.files.Key, w.files.ClientCA} {
		if info, err := os.Stat(file); err == nil {
			all += fmt.Sprintf("%d %d", info.ModTime().UnixNano(), info.Size())
		}
		all += ";"
	}
	return all
}

// Server and authority are the names under which the ends of certificates are reported.
const (
	Server    = "server"
	authority = "authority"
)

// EndsOf returns until when the certificates of a server are valid, as a client saw them when
// it connected: nil without TLS, or without a connection.
func EndsOf(connection func() (tls.ConnectionState, error)) map[string]time.Time {
	state, err := connection()
	if err != nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	ends := map[string]time.Time{Server: state.PeerCertificates[0].NotAfter}
	for _, chain := range state.VerifiedChains {
		if last := chain[len(chain)-1]; len(chain) > 1 {
			ends[authority] = last.NotAfter
		}
	}
	return ends
}
