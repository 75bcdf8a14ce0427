package mcpserve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/httpserver"
)

// Path is where streamable HTTP is served.
const Path = "/mcp"

// maxSessions bounds the sessions, which live for idleSession though nobody holds a connection.
const maxSessions = 4096

// idleSession is how long an idle client keeps its session.
const idleSession = time.Hour

// maxBody bounds a request's body, in bytes. A run's first event may have 1 MiB.
const maxBody = 4 << 20

// drain is how long calls may take to end after ctx ended: their runs are cancelled.
const drain = 5 * time.Second

// ServeHTTP serves clients on a listener until ctx ends. If token is not empty, every request
// must send it as a bearer token. Cross-origin requests are refused, and over loopback so are
// requests for other host names. config has the settings of TLS; nil: nothing is encrypted.
func (s *Server) ServeHTTP(ctx context.Context, listener net.Listener, config *tls.Config, token string) error {
	defer s.cancelOpen(ctx)
	defer s.calls.Wait()
	defer s.shutDown()
	defer s.watch(ctx)()
	// Event streams end with the calls.
	server := httpserver.New(httpserver.Options{Handler: s.handler(token), TLS: config, Context: s.ending, Logger: s.o.Logger})
	failed := make(chan error, 1)
	go func() { failed <- server.ServeUntilClosed(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.shutDown()
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer stop()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close() // Shutdown's error is enough
	}
	return <-failed
}

func (s *Server) handler(token string) http.Handler {
	server := func(*http.Request) *mcp.Server { return s.mcp }
	sessions := mcp.NewStreamableHTTPHandler(server, &mcp.StreamableHTTPOptions{
		Logger: s.o.Logger, SessionTimeout: idleSession, PropagateRequestCancellation: true,
	})
	requests := mcp.NewStreamableHTTPHandler(server, &mcp.StreamableHTTPOptions{
		Logger: s.o.Logger, Stateless: true, PropagateRequestCancellation: true,
	})
	mux := http.NewServeMux()
	mux.Handle(Path, authorized(token, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") >= stateless {
			requests.ServeHTTP(w, r)
			return
		}
		if r.Header.Get("Mcp-Session-Id") == "" && s.sessions() >= s.most {
			w.Header().Set("Retry-After", "60")
			http.Error(w, fmt.Sprintf("this server has %d sessions, its limit: end some with DELETE, or try again later", s.most), http.StatusServiceUnavailable)
			return
		}
		sessions.ServeHTTP(w, r)
	})))
	return http.NewCrossOriginProtection().Handler(http.MaxBytesHandler(mux, maxBody))
}

// sessions returns how many sessions there are.
func (s *Server) sessions() (n int) {
	for range s.mcp.Sessions() {
		n++
	}
	return n
}

// authorized refuses requests without the token, if there is one.
func authorized(token string, next http.Handler) http.Handler {
	if token == "" {
		return next
	}
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(given)))
		if !strings.EqualFold(scheme, "bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a token is required: send Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
