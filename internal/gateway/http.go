package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// maxBody bounds what a request may send, in bytes.
	maxBody = 1 << 20
	// requestTimeout bounds requests that are not streams.
	requestTimeout  = 30 * time.Second
	bodyTimeout     = 30 * time.Second
	namespaceHeader = "Moorebus-Namespace"
)

// serve serves the listener until ctx ends, then lets requests finish.
func (g *Gateway) serve(ctx context.Context) error {
	server := &http.Server{
		Handler: g.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(g.cfg.Listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("gateway: serving HTTP on %s: %w", g.cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	grace, stop := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.Drain)
	defer stop()
	if err := server.Shutdown(grace); err != nil {
		g.cfg.Logger.Warn("requests were cut short at the end", "reason", err)
		_ = server.Close() // its error says only what Shutdown's said
	}
	<-failed
	return nil
}

// endpoint answers a request; its error becomes the answer.
type endpoint func(w http.ResponseWriter, r *http.Request) error

// routes builds the gateway's HTTP.
func (g *Gateway) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, handle := range map[string]endpoint{
		"POST /v1/runs":                g.postRun,
		"GET /v1/runs":                 g.getRuns,
		"GET /v1/runs/{id}":            g.getRun,
		"GET /v1/runs/{id}/events":     g.getRunEvents,
		"POST /v1/runs/{id}/inputs":    g.postInputs,
		"POST /v1/runs/{id}/decisions": g.postDecision,
		"POST /v1/runs/{id}/cancel":    g.control(g.Cancel),
		"POST /v1/runs/{id}/pause":     g.control(g.Pause),
		"POST /v1/runs/{id}/resume":    g.control(g.Resume),
		"POST /v1/runs/{id}/close":     g.control(g.Close),
		"POST /v1/runs/{id}/budget":    g.postBudget,
		"POST /v1/runs/{id}/fork":      g.postFork,
		"GET /v1/events":               g.getEvents,
		"GET /v1/agents":               g.getAgents,
		"GET /v1/agents/{name}":        g.getAgent,
		"PUT /v1/agents/{name}":        g.putAgent,
		"GET /v1/tools":                g.getTools,
		"GET /metrics":                 g.getMetrics,
	} {
		mux.HandleFunc(pattern, g.answer(g.authorized(handle)))
	}
	mux.HandleFunc("GET /healthz", g.answer(g.getHealth))
	mux.HandleFunc("GET /readyz", g.answer(g.getReady))
	mux.HandleFunc("GET /{$}", g.answer(getPage))

	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(g.answer(func(http.ResponseWriter, *http.Request) error {
		return fault(http.StatusForbidden, CodeForbidden, "requests from other sites' pages are refused")
	}))
	return g.outermost(origin.Handler(g.router(mux)))
}

// router gives the mux's own answers the form of all others.
func (g *Gateway) router(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own, pattern := mux.Handler(r)
		// A path that is not clean is not redirected: no client of an API
		// follows that with its body.
		if path.Clean(r.URL.Path) != r.URL.Path {
			own, pattern = http.NotFoundHandler(), ""
		}
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		plain := plainAnswer{header: http.Header{}}
		own.ServeHTTP(&plain, r)
		allow := plain.header.Get("Allow")
		g.answer(func(w http.ResponseWriter, r *http.Request) error {
			if plain.code != http.StatusMethodNotAllowed {
				return notFound(CodeNotFound, "there is nothing at %s", r.URL.Path)
			}
			w.Header().Set("Allow", allow)
			return fault(http.StatusMethodNotAllowed, CodeMethodNotAllowed, "%s is not possible at %s; use %s", r.Method, r.URL.Path, allow)
		})(w, r)
	})
}

// plainAnswer takes an answer of which only status and header matter.
type plainAnswer struct {
	header http.Header
	code   int
}

func (p *plainAnswer) Header() http.Header            { return p.header }
func (p *plainAnswer) Write(data []byte) (int, error) { return len(data), nil }
func (p *plainAnswer) WriteHeader(code int)           { p.code = code }

// outermost counts requests, holds them to the names of this host, and keeps a
// panic from ending anything but its own request.
func (g *Gateway) outermost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counted := &countingWriter{ResponseWriter: w, code: http.StatusOK}
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler {
				g.cfg.Logger.Error("a request failed", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				if !counted.began {
					writeError(counted, fault(http.StatusInternalServerError, CodeInternal, "the gateway failed; its log has the reason"))
					p = nil
				}
			}
			g.counts.request(counted.code)
			if p != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		counted.Header().Set("X-Content-Type-Options", "nosniff")
		if !g.hostAllowed(r) {
			writeError(counted, fault(http.StatusForbidden, CodeForbidden, "the host name %q is not this gateway's; use localhost or an address, allow the name (--host), or set a token", r.Host))
			return
		}
		next.ServeHTTP(counted, r)
	})
}

// hostAllowed keeps web pages from reaching a gateway without a token under a name of
// their own (DNS rebinding).
func (g *Gateway) hostAllowed(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if g.cfg.Token != "" || !ok || g.cfg.Listener == nil && !local.IP.IsLoopback() {
		return true // a server of somebody else's that other machines reach knows its names
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil || slices.Contains(g.cfg.Hosts, host)
}

// countingWriter notes the status of an answer.
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

// Unwrap gives http.ResponseController what it needs.
func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// answer makes an endpoint a handler.
func (g *Gateway) answer(handle endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := handle(w, r)
		if err == nil {
			return
		}
		e := asError(err)
		if e.Status >= http.StatusInternalServerError && r.Context().Err() == nil {
			level := slog.LevelWarn
			if errors.Is(err, journal.ErrFull) {
				level = slog.LevelDebug // the bus says it, once
			}
			g.cfg.Logger.Log(r.Context(), level, "a request failed", "method", r.Method, "path", r.URL.Path, "reason", err)
		}
		writeError(w, e)
	}
}

func writeError(w http.ResponseWriter, e *Error) {
	after := e.RetryAfter
	if after <= 0 && e.Status == http.StatusServiceUnavailable {
		after = time.Second
	}
	if after > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
	// A client that is gone cannot be told so.
	_ = writeJSON(w, e.Status, e)
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%w: answer: %w", errInternal, err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // a client that is gone cannot be told so
	return nil
}

// authorized lets requests with the token pass, if there is one.
func (g *Gateway) authorized(handle endpoint) endpoint {
	if g.cfg.Token == "" {
		return handle
	}
	want := sha256.Sum256([]byte(g.cfg.Token))
	return func(w http.ResponseWriter, r *http.Request) error {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(token)))
		if !strings.EqualFold(scheme, "bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			return fault(http.StatusUnauthorized, CodeUnauthorized, "a token is needed: send Authorization: Bearer TOKEN")
		}
		return handle(w, r)
	}
}

// bounded is the context of a request that is not a stream.
func bounded(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), requestTimeout)
}

func namespace(r *http.Request) string { return r.Header.Get(namespaceHeader) }

// readBody reads a request's body within its bounds of size and time.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	// Servers that know no deadlines have bounds of their own.
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, fault(http.StatusRequestEntityTooLarge, CodeTooLarge, "the body is larger than %d bytes", large.Limit)
	}
	if err != nil {
		return nil, wrap(err, http.StatusBadRequest, CodeBadRequest, "the body could not be read to its end: %s", err.Error())
	}
	_ = control.SetReadDeadline(time.Time{})
	return data, nil
}

// readJSON reads a request's body as one JSON object onto into. A body that is
// empty leaves into as it is, where that is allowed.
func readJSON(w http.ResponseWriter, r *http.Request, optional bool, into any) error {
	data, err := readBody(w, r)
	if err != nil || optional && len(strings.TrimSpace(string(data))) == 0 {
		return err
	}
	node, err := strict.ParseJSON(data)
	if err != nil {
		return err
	}
	return decodeObject(node, into)
}

func decodeObject(node *strict.Node, into any) error {
	if node.Kind != strict.Object {
		return badRequest(CodeBadRequest, "the body is %s, want a JSON object", node.Kind)
	}
	return strict.Decode(node, into)
}

// listed writes names for a message.
func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// parameters returns the query's values, each key once at most; keys that the
// endpoint does not know are refused.
func parameters(r *http.Request, known ...string) (map[string]string, error) {
	values := map[string]string{}
	query, err := parseQuery(r)
	if err != nil {
		return nil, err
	}
	for key, all := range query {
		if !slices.Contains(known, key) {
			return nil, badRequest(CodeBadParameter, "%.100q: unknown parameter; there are: %s", key, listed(known))
		}
		if len(all) > 1 {
			return nil, badRequest(CodeBadParameter, "%s: stands there twice", key)
		}
		values[key] = all[0]
	}
	return values, nil
}

// number reads a parameter that is a number from 1; missing is what an absent
// one stands for.
func number(values map[string]string, key string, missing uint64) (uint64, error) {
	text, given := values[key]
	if !given {
		return missing, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		return 0, badRequest(CodeBadParameter, "%s: %.100q is not a number from 1", key, text)
	}
	return n, nil
}
