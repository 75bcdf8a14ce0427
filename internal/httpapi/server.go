// Package httpapi serves HTTP on top of package control: it starts runs, takes their
// inputs, and shows what the log says.
//
// What it promises to readers: events are the stored bytes, in the log's order; a stream
// can be resumed at any event and misses none; a reader that is slow or goes away costs a
// bounded amount of memory for a bounded time and delays nobody else.
//
// A request that fails is answered with {code, message} and the fields of its
// refusal.Error; [statuses] maps its kind to the status.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/sharedlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// Config configures a [Server].
type Config struct {
	// Control carries out the requests, Feed has what models say. Both required.
	Control *control.Controller
	Feed    journal.Feed
	// Listener is served by Run. Nil: Run serves nothing, see Handler.
	Listener net.Listener
	// Token is what requests must present as a bearer token; empty: none.
	Token string
	// Hosts are further names under which a server without a token may be
	// addressed. Localhost and IP addresses always may; other names are refused,
	// since a web page could take them.
	Hosts []string
	// Drain is how long requests may go on after Run's context ends. Default 8 s.
	Drain time.Duration
	// Heartbeat is the interval of comments on event streams. Default 15 s.
	Heartbeat time.Duration
	// WriteTimeout is how long one write to a client may take. Default 30 s.
	WriteTimeout time.Duration
	// MaxStreams bounds the event streams that are open at once, MaxClientStreams those
	// of one client, by its remote address. A request beyond them is 429. Default
	// [MaxStreams] and [MaxClientStreams].
	MaxStreams, MaxClientStreams int
	// Logger gets requests that fail through no fault of the caller's. Default:
	// discarded.
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
	// followed is the log as event streams follow it, and frames what they show.
	followed *sharedlog.Log
	frames   frames
	streams  openStreams
	counts   counters
	handler  http.Handler

	// closing is closed when Run's context ends, so that streams end.
	closing   chan struct{}
	closeOnce sync.Once
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
	s := &Server{
		cfg: cfg, control: cfg.Control, closing: make(chan struct{}),
		followed: sharedlog.New(cfg.Control.Log, sharedlog.Options{Logger: cfg.Logger}),
		counts:   counters{requests: map[int]int64{}},
		streams:  openStreams{most: cfg.MaxStreams, mostOfClient: cfg.MaxClientStreams, byClient: map[string]int{}},
	}
	s.frames = frames{codec: s.codec(), kept: map[position]*madeFrame{}}
	s.handler = s.routes()
	return s, nil
}

func (s *Server) codec() *events.Codec { return s.control.Store.Machine().Codec() }

// Handler returns the handler of all requests, for a server of one's own. Its event
// streams end with their request, or when Run's context ends.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves the listener until ctx ends. Then event streams end at once, requests get
// the drain time, and Run returns nil. Any other return is an error of the listener.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.closeOnce.Do(func() { close(s.closing) }) })
	defer stop()
	if s.cfg.Listener == nil {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
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
		s.cfg.Logger.Warn("requests were cut short at the end", "reason", err)
		_ = server.Close() // its error says only what Shutdown's said
	}
	<-failed
	return nil
}

// ServeWaiting answers on a listener while there is no bus yet: /healthz says that the
// process lives, everything else 503. The function that it returns ends that and leaves
// the listener to a [Server]; connections that come in between wait.
func ServeWaiting(listener *net.TCPListener) (end func() error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		_ = writeJSON(w, http.StatusOK, map[string]string{"status": "ok"}) // a client that is gone cannot be told so
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, refusal.New(refusal.Unavailable, refusal.CodeUnavailable, "waiting for the bus"))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	// No connection outlives this server: the next request must reach the next
	// one.
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

// keptOpen is a listener that a server cannot close: it only stops accepting,
// by a deadline in the past.
type keptOpen struct{ *net.TCPListener }

func (l keptOpen) Close() error { return l.SetDeadline(time.Unix(1, 0)) }
