// Package httpserver makes the HTTP servers of every listener, with the same limits. A client
// that is slow, silent or gone holds a connection and its memory for a bounded time only: while it
// connects, sends a request, reads an answer, and between two requests. Streams may last forever,
// as long as their client reads.
package httpserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// The limits of a connection.
const (
	// HeaderTimeout bounds a TLS handshake, and the time for a request's header.
	HeaderTimeout = 10 * time.Second
	// ReadTimeout bounds the time for an entire request, from its first byte on.
	ReadTimeout = time.Minute
	// IdleTimeout is how long a connection may wait for its next request.
	IdleTimeout = 2 * time.Minute
	// WriteTimeout is the default of [Options.WriteTimeout].
	WriteTimeout = 30 * time.Second
	// MaxHeader bounds a request's header, in bytes.
	MaxHeader = 64 << 10
)

// Options are the settings of a [Server].
type Options struct {
	// Handler answers requests. Required.
	Handler http.Handler
	// TLS has the certificate. Nil: connections are not encrypted.
	TLS *tls.Config
	// WriteTimeout is how long a client may read nothing of an answer.
	WriteTimeout time.Duration
	// Context is the one of all requests. Nil: that of package http.
	Context context.Context
	// Logger gets what goes wrong with connections; at level debug what goes wrong with TLS
	// handshakes, since any port scanner causes that. Default: discarded.
	Logger *slog.Logger
}

// Server is an HTTP server with limits. Everything but Serve is of package http.
type Server struct{ *http.Server }

// New returns a server that serves nothing yet.
func New(o Options) *Server {
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = WriteTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &http.Server{
		Handler: bounded(o.Handler, o.WriteTimeout), TLSConfig: o.TLS,
		ReadHeaderTimeout: HeaderTimeout, ReadTimeout: ReadTimeout, IdleTimeout: IdleTimeout, MaxHeaderBytes: MaxHeader,
		// Deadlines of single streams do not end a connection of which nobody reads.
		HTTP2:    &http.HTTP2Config{WriteByteTimeout: o.WriteTimeout},
		ErrorLog: log.New(lines{o.Logger}, "", 0),
	}
	if o.Context != nil {
		s.BaseContext = func(net.Listener) context.Context { return o.Context }
	}
	return &Server{s}
}

// Serve serves a listener, with TLS if the options have it, until the server is closed. The error is
// never nil.
func (s *Server) Serve(l net.Listener) error {
	if s.TLSConfig != nil {
		return s.ServeTLS(l, "", "")
	}
	return s.Server.Serve(l)
}

// ServeUntilClosed is Serve without the error of a server that was closed.
func (s *Server) ServeUntilClosed(l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// lines logs what package http writes, a line at a time.
type lines struct{ logger *slog.Logger }

func (l lines) Write(line []byte) (int, error) {
	level := slog.LevelWarn
	if bytes.Contains(line, []byte("TLS handshake error")) {
		level = slog.LevelDebug
	}
	l.logger.Log(context.Background(), level, string(bytes.TrimSpace(line)))
	return len(line), nil
}

// bounded gives the answers of a handler their deadlines. Package http takes that of a request back when
// its body was read, and that of an answer when it is complete.
func bounded(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &writer{ResponseWriter: w, control: http.NewResponseController(w), timeout: timeout}
		if r.ProtoMajor == 1 && r.ContentLength != 0 {
			answer.asks = time.Now().Add(ReadTimeout)
		}
		defer answer.arm() // what is buffered is written after the handler
		next.ServeHTTP(answer, r)
	})
}

// part is how much a client has to read within the timeout, in bytes.
const part = 64 << 10

// writer gives each write its own deadline.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	// asks is until when the rest of the request may come. Package http first reads what the handler
	// did not read, and then answers. Zero: the request is complete.
	asks time.Time
}

func (w *writer) arm() {
	from := time.Now()
	if w.asks.After(from) {
		from = w.asks
	}
	_ = w.control.SetWriteDeadline(from.Add(w.timeout))
}

// disarm takes the deadline back: with HTTP/2 it would end the stream between two writes.
func (w *writer) disarm() { _ = w.control.SetWriteDeadline(time.Time{}) }

// Write writes in parts, each of which the client has to read in time.
func (w *writer) Write(data []byte) (n int, err error) {
	defer w.disarm()
	for {
		now := data[n:min(n+part, len(data))]
		w.arm()
		wrote, err := w.ResponseWriter.Write(now)
		n += wrote
		if err != nil || n == len(data) {
			return n, err
		}
	}
}

// FlushError is for http.ResponseController.
func (w *writer) FlushError() error {
	w.arm()
	defer w.disarm()
	return w.control.Flush()
}

// Flush is for handlers that use http.Flusher.
func (w *writer) Flush() { _ = w.FlushError() }

// SetWriteDeadline does nothing: the writer has its own deadlines.
func (w *writer) SetWriteDeadline(time.Time) error { return nil }

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
