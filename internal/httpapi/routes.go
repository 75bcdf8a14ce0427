package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpserver"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/journal"
)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, row := range s.table() {
		handle := row.Handle
		if !row.Open {
			handle = s.authorized(handle)
		}
		mux.HandleFunc(row.Pattern, s.answer(handle, row.Failure))
	}
	for _, pattern := range s.pages.Paths {
		mux.Handle(pattern, s.pages)
	}

	refuse := s.answer(func(http.ResponseWriter, *http.Request) error {
		return refusal.New(refusal.Forbidden, refusal.CodeForbidden, "requests from pages of other sites are refused")
	}, nil)
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(refuse)
	return s.outermost(s.withoutReaders(refuse, origin.Handler(s.router(mux))))
}

// withoutReaders refuses what pages of other sites would read of a server without a token. They do not get
// the answers, but an element such as object reveals whether there is one, so which runs and agents
// exist, and an event stream stays open. Their links to pages work.
func (s *Server) withoutReaders(refuse, next http.Handler) http.Handler {
	if s.cfg.Token != "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpserver.OfAnotherSite(r) && !httpserver.OpensPage(r) {
			refuse.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answer turns an endpoint into a handler. failure is the form of errors, see route.Route; may be nil.
func (s *Server) answer(handle route.Endpoint, failure *route.Failure) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := handle(w, r)
		if err == nil {
			return
		}
		e := route.RefusalOf(err)
		if e.Kind >= refusal.Internal && r.Context().Err() == nil {
			level, reason := slog.LevelWarn, err
			if errors.Is(err, journal.ErrFull) {
				level = slog.LevelDebug // the bus logs it once
			}
			if e.Kind == refusal.Internal && e.Cause != nil {
				reason = e.Cause
			}
			s.cfg.Logger.Log(r.Context(), level, "a request failed", "method", r.Method, "path", r.URL.Path, "reason", reason)
		}
		if failure == nil {
			writeError(w, e)
			return
		}
		setRetryAfter(w, e)
		failure.Write(w, e, route.StatusOf(e.Kind))
	}
}

// requestTimeout bounds requests that are not streams.
const requestTimeout = 30 * time.Second

// whileQuorum bounds the time of a request, and ends it with 503 if it hangs since the log has no quorum.
func (s *Server) whileQuorum(handle route.Endpoint) route.Endpoint {
	return func(w http.ResponseWriter, r *http.Request) error {
		return s.control.WhileQuorum(r.Context(), func(ctx context.Context) error {
			ctx, stop := context.WithTimeout(ctx, requestTimeout)
			defer stop()
			return handle(w, r.WithContext(ctx))
		})
	}
}

// authorized refuses requests without the token, if the server has one.
func (s *Server) authorized(handle route.Endpoint) route.Endpoint {
	if s.cfg.Token == "" {
		return handle
	}
	want := sha256.Sum256([]byte(s.cfg.Token))
	return func(w http.ResponseWriter, r *http.Request) error {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(token)))
		if !strings.EqualFold(scheme, "bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			return refusal.New(refusal.Unauthorized, refusal.CodeUnauthorized, "a token is required: send Authorization: Bearer TOKEN")
		}
		return handle(w, r)
	}
}

// router turns the mux's own errors into refusals.
func (s *Server) router(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own, pattern := mux.Handler(r)
		// A path that is not clean is not redirected: clients of an API do not resend a
		// body to another path.
		if path.Clean(r.URL.Path) != r.URL.Path {
			own, pattern = http.NotFoundHandler(), ""
		}
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		plain := plainAnswer{header: http.Header{}}
		own.ServeHTTP(&plain, r)
		s.answer(func(w http.ResponseWriter, r *http.Request) error {
			if plain.code != http.StatusMethodNotAllowed {
				return refusal.New(refusal.NotFound, refusal.CodeNotFound, "there is nothing at %s", r.URL.Path)
			}
			allow := plain.header.Get("Allow")
			w.Header().Set("Allow", allow)
			return refusal.New(refusal.WrongMethod, refusal.CodeMethodNotAllowed, "%s is not possible at %s; use %s", r.Method, r.URL.Path, allow)
		}, nil)(w, r)
	})
}

// plainAnswer records status and header of an answer.
type plainAnswer struct {
	header http.Header
	code   int
}

func (p *plainAnswer) Header() http.Header            { return p.header }
func (p *plainAnswer) Write(data []byte) (int, error) { return len(data), nil }
func (p *plainAnswer) WriteHeader(code int)           { p.code = code }

// outermost counts requests, checks the host name, and limits a panic to its own request.
func (s *Server) outermost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counted := &countingWriter{ResponseWriter: w, code: http.StatusOK}
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler {
				s.cfg.Logger.Error("a request failed", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				if !counted.began {
					writeError(counted, refusal.Fault("panic: %v", p))
					p = nil
				}
			}
			meter.Add(s.meter, meter.Requests, 1, strconv.Itoa(counted.code))
			if p != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		counted.Header().Set("X-Content-Type-Options", "nosniff")
		if !s.hostAllowed(r) {
			writeError(counted, refusal.New(refusal.Forbidden, refusal.CodeForbidden,
				"the host name %q is not one of this gateway; use localhost or an IP address, allow the name with --host, or set a token", r.Host))
			return
		}
		if trace := r.Header.Get(tracecontext.Header); tracecontext.Valid(trace) { // another form is ignored, as W3C demands
			r = r.WithContext(tracecontext.With(r.Context(), trace))
		}
		next.ServeHTTP(counted, r)
	})
}

// hostAllowed protects a server without a token from DNS rebinding by web pages. With TLS, the certificate
// does.
func (s *Server) hostAllowed(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if s.cfg.Token != "" || r.TLS != nil || !ok || s.cfg.Listener == nil && !local.IP.IsLoopback() {
		return true // an application's own public server checks its names itself
	}
	return httpserver.LocalHost(r.Host, s.cfg.Hosts...)
}

// countingWriter records the status of an answer.
type countingWriter struct {
	http.ResponseWriter
	code  int
	began bool
}

func (c *countingWriter) WriteHeader(code int) {
	if !c.began {
		c.code, c.began = code, true
	}
	c.ResponseWriter.WriteHeader(code)
}

func (c *countingWriter) Write(data []byte) (int, error) {
	c.began = true
	return c.ResponseWriter.Write(data)
}

// Unwrap is for http.ResponseController.
func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
