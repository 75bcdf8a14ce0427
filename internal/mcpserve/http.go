package mcpserve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Path is where streamable HTTP is served.
const Path = "/mcp"

// idleSession is how long a client's session is kept that sends nothing.
const idleSession = time.Hour

// drain is how long calls may go on after ctx has ended: their runs are cancelled.
const drain = 5 * time.Second

// ServeHTTP serves clients on a listener until ctx ends. With a token every
// request has to present it as a bearer token. Pages of other sites are refused,
// and so are names that are not this machine's where it is reached over loopback.
func (s *Server) ServeHTTP(ctx context.Context, listener net.Listener, token string) error {
	defer s.calls.Wait()
	defer s.end()
	defer s.watch(ctx)()
	server := &http.Server{
		Handler: s.handler(token), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return s.ending }, // event streams end with the calls
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.end()
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer stop()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close() // its error says only what Shutdown's said
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) handler(token string) http.Handler {
	protocol := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.mcp }, &mcp.StreamableHTTPOptions{
		Logger: s.o.Logger, SessionTimeout: idleSession, PropagateRequestCancellation: true,
	})
	mux := http.NewServeMux()
	mux.Handle(Path, authorized(token, protocol))
	return http.NewCrossOriginProtection().Handler(mux)
}

// authorized lets requests with the token pass, if there is one.
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
			http.Error(w, "a token is needed: send Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
