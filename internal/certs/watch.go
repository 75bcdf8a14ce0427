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

// Watched is a server's certificate that is read again when its files change. A pair that
// cannot be read is logged once, and the one before it stays in use.
type Watched struct {
	dir, name string
	logger    *slog.Logger

	mu     sync.Mutex
	looked time.Time
	seen   string
	pair   *tls.Certificate
}

// Watch reads the certificate and the key of that name in a directory.
func Watch(dir, name string, logger *slog.Logger) (*Watched, error) {
	w := &Watched{dir: dir, name: name, logger: cmp.Or(logger, slog.Default())}
	pair, err := w.read()
	if err != nil {
		return nil, err
	}
	w.pair, w.seen = pair, w.stamp()
	return w, nil
}

// Config returns the settings of a server with the certificate of each moment.
func (w *Watched) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return w.current(), nil },
	}
}

// Ends returns until when the certificate and its authority's are valid. An authority whose
// file is not there is left out.
func (w *Watched) Ends() map[string]time.Time {
	ends := map[string]time.Time{Server: w.current().Leaf.NotAfter}
	if der, err := decode(filepath.Join(w.dir, Authority+".pem")); err == nil {
		if c, err := x509.ParseCertificate(der); err == nil {
			ends[authority] = c.NotAfter
		}
	}
	return ends
}

// current returns the certificate as its files are, or were when they could be read.
func (w *Watched) current() *tls.Certificate {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.looked) < looks {
		return w.pair
	}
	w.looked = time.Now()
	stamp := w.stamp()
	if stamp == w.seen {
		return w.pair
	}
	w.seen = stamp
	pair, err := w.read()
	if err != nil {
		w.logger.Warn("the new certificate cannot be used, so the one before it stays", "file", w.path(".pem"), "reason", err)
		return w.pair
	}
	w.pair = pair
	w.logger.Info("took a new certificate", "file", w.path(".pem"), "deadline", pair.Leaf.NotAfter)
	return w.pair
}

func (w *Watched) path(suffix string) string { return filepath.Join(w.dir, w.name+suffix) }

func (w *Watched) read() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(w.path(".pem"), w.path(".key"))
	if err != nil {
		return nil, err
	}
	return &pair, nil
}

// stamp changes when a file does.
func (w *Watched) stamp() (all string) {
	for _, suffix := range []string{".pem", ".key"} {
		if info, err := os.Stat(w.path(suffix)); err == nil {
			all += fmt.Sprintf("%d %d;", info.ModTime().UnixNano(), info.Size())
		}
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
