// Package httpapi serves HTTP on top of package control: it starts runs, accepts their inputs,
// and shows their logs.
//
// Events are the stored bytes, in the order of the log. A stream can be resumed at any event
// and misses none. A slow or lost client costs bounded memory for a bounded time and delays no
// other client.
//
// The answer to a failed request is {code, message} and the fields of its refusal.Error.
// [statuses] maps kinds to statuses.
package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/httpapi/openapi"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/httpapi/web"
	"github.com/moorebus/moorebus/internal/httpserver"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/sharedlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Config configures a [Server].
type Config struct {
	// Control carries out the requests, Feed has live text. Both required.
	Control *control.Controller
	Feed    journal.Feed
	// Rows are further requests, which are answered as those of the core. Faces answer others.
	Rows  []route.Route
	Faces []route.Face
	// Pages are further pages of the console.
	Pages []web.Page
	// Listener is served by Run, with TLS if there are settings of it. Nil: Run serves
	// nothing, see Handler.
	Listener net.Listener
	TLS      *tls.Config
	// Token is the bearer token that requests must send. Empty: none.
	Token string
	// Hosts are host names that requests to a server without a token may use, besides
	// localhost and IP addresses. Other names are refused: they could belong to a web
	// page.
	Hosts []string
	// Drain is how long requests may take after Run's context ended. Default 8 s.
	Drain time.Duration
	// Heartbeat is the interval of comments on event streams. Default 15 s.
	Heartbeat time.Duration
	// WriteTimeout is how long one write to a client may take. Default 30 s.
	WriteTimeout time.Duration
	// MaxStreams bounds the open event streams, MaxClientStreams those of one remote
	// address. A request beyond them is 429. Default [MaxStreams] and
	// [MaxClientStreams].
	MaxStreams, MaxClientStreams int
	// Metrics serves GET /metrics. Nil: there are none.
	Metrics http.Handler
	// Logger gets failures that are not the caller's fault. Default: discarded.
	Logger *slog.Logger
}

// The defaults of [Config.MaxStreams] and [Config.MaxClientStreams].
const (
	MaxStreams       = 4096
	MaxClientStreams = 1024
)

// Server serves HTTP. Its methods are safe for concurrent use.
type Server struct {
	cfg     Config
	control *control.Controller
	meter   meter.Meter
	// streams end when Run's context ends, frames are what they send.
	streams *sse.Streams
	frames  frames
	handler http.Handler
	// pages is the console.
	pages *web.Console
	// openAPI returns the description of all requests.
	openAPI func() ([]byte, error)
}

// New returns a server.
func New(cfg Config) (*Server, error) {
	if cfg.Control == nil || cfg.Feed == nil {
		return nil, errors.New("httpapi: Control and Feed are required")
	}
	for value, usual := range map[*time.Duration]time.Duration{
		&cfg.Drain: 8 * time.Second, &cfg.Heartbeat: 15 * time.Second, &cfg.WriteTimeout: 30 * time.Second,
	} {
		if *value <= 0 {
			*value = usual
		}
	}
	for value, usual := range map[*int]int{&cfg.MaxStreams: MaxStreams, &cfg.MaxClientStreams: MaxClientStreams} {
		if *value <= 0 {
			*value = usual
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = http.HandlerFunc(noMetrics)
	}
	s := &Server{
		cfg: cfg, control: cfg.Control, meter: cfg.Control.Store.Meter(),
		streams: sse.New(sse.Options{
			Log: sharedlog.New(cfg.Control.Log, sharedlog.Options{Logger: cfg.Logger}), Heartbeat: cfg.Heartbeat,
			WriteTimeout: cfg.WriteTimeout, Max: cfg.MaxStreams, MaxClient: cfg.MaxClientStreams, Meter: cfg.Control.Store.Meter(), Logger: cfg.Logger,
		}),
	}
	var err error
	if s.pages, err = web.New(cfg.Pages); err != nil {
		return nil, err
	}
	s.frames = frames{codec: s.codec(), kept: map[position]*madeFrame{}}
	s.openAPI = sync.OnceValues(func() ([]byte, error) { return openapi.Document(s.table()) })
	s.handler = s.routes()
	if s.meter != nil {
		s.meter.Read(s.readCounts)
	}
	return s, nil
}

func (s *Server) codec() *events.Codec { return s.control.Store.Machine().Codec() }

// Handler returns the handler of all requests, for another server. Its event streams end with
// their request, or when Run's context ends.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves the listener until ctx ends. Then event streams end at once, requests get
// the drain time, and Run returns nil. Any other return is an error of the listener.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.streams.Close)
	defer stop()
	// The function above runs in its own goroutine, perhaps after Run's return.
	defer func() {
		if ctx.Err() != nil {
			s.streams.Close()
		}
	}()
	if s.cfg.Listener == nil {
		<-ctx.Done()
		return nil
	}
	server := httpserver.New(httpserver.Options{Handler: s.handler, TLS: s.cfg.TLS, WriteTimeout: s.cfg.WriteTimeout, Logger: s.cfg.Logger})
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(s.cfg.Listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("gateway: serving HTTP on %s: %w", s.cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	grace, stopGrace := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Drain)
	defer stopGrace()
	if err := server.Shutdown(grace); err != nil {
		s.cfg.Logger.Warn("requests were interrupted by the shutdown", "reason", err)
		_ = server.Close() // Shutdown's error is enough
	}
	<-failed
	return nil
}

// ServeWaiting serves a listener, with TLS unless config is nil, until the bus is there: /healthz is 200, everything else 503.
// The returned function stops that and leaves the listener to a [Server]. Connections that
// come in between wait.
func ServeWaiting(listener *net.TCPListener, config *tls.Config, logger *slog.Logger) (end func() error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		_ = route.WriteJSON(w, http.StatusOK, health{"ok"}) // a client that is gone needs no error
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, refusal.New(refusal.Unavailable, refusal.CodeUnavailable, "waiting for the bus"))
	})
	server := httpserver.New(httpserver.Options{Handler: mux, TLS: config, Logger: logger})
	// No connection outlives this server: the next request must reach the next one.
	server.SetKeepAlivesEnabled(false)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(keptOpen{listener}) }()
	return func() error {
		err := server.Close()
		<-ended
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		return listener.SetDeadline(time.Time{})
	}
}

// keptOpen is a listener that a server cannot close. Close only stops Accept, by a deadline in
// the past.
type keptOpen struct{ *net.TCPListener }

func (l keptOpen) Close() error { return l.SetDeadline(time.Unix(1, 0)) }

// readyTimeout bounds the requests of /readyz to the bus. Probes wait for 5 s.
const readyTimeout = 4 * time.Second

// health is the answer to a probe.
type health struct {
	Status string `json:"status"`
}

func (s *Server) getHealth(w http.ResponseWriter, _ *http.Request) error {
	return route.WriteJSON(w, http.StatusOK, health{"ok"})
}

func (s *Server) getReady(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := context.WithTimeout(r.Context(), readyTimeout)
	defer stop()
	if err := s.ready(ctx); err != nil {
		return refusal.Wrap(err, refusal.Unavailable, route.UnavailableCode(err), "not ready: %s", err.Error())
	}
	return route.WriteJSON(w, http.StatusOK, health{"ready"})
}

func (s *Server) ready(ctx context.Context) error {
	select {
	case <-s.streams.Closing():
		return errors.New("the gateway is shutting down")
	default:
		return s.control.Ready(ctx)
	}
}

func (s *Server) getMetrics(w http.ResponseWriter, r *http.Request) error {
	s.cfg.Metrics.ServeHTTP(w, r)
	return nil
}

// readCounts counts the event streams at a scrape.
func (s *Server) readCounts(_ context.Context, emit meter.Emit) {
	emit(meter.FeedClients, float64(s.streams.Clients.Load()), meter.Values{})
}

// noMetrics answers where nothing is counted.
func noMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
}

func (s *Server) getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	document, err := s.openAPI()
	if err != nil {
		return refusal.Fault("openapi.json: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(document) // a client that is gone needs no error
	return nil
}
