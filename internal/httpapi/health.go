package httpapi

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/internal/refusal"
)

// readyTimeout bounds the requests of /readyz to the bus.
const readyTimeout = 5 * time.Second

func (s *Server) getHealth(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (s *Server) getReady(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := context.WithTimeout(r.Context(), readyTimeout)
	defer stop()
	if err := s.ready(ctx); err != nil {
		return refusal.Wrap(err, refusal.Unavailable, unavailableCode(err), "not ready: %s", err.Error())
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

func (s *Server) ready(ctx context.Context) error {
	select {
	case <-s.closing:
		return errors.New("the gateway is shutting down")
	default:
		return s.control.Ready(ctx)
	}
}

type counters struct {
	clients, dropped atomic.Int64

	mu       sync.Mutex
	requests map[int]int64
}

func (c *counters) request(code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[code]++
}

func (s *Server) metrics() string {
	c := &s.counts
	var b strings.Builder
	metric := func(name, kind, help string, value *atomic.Int64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", name, help, name, kind, name, value.Load())
	}
	metric("moorebus_gateway_runs_started_total", "counter", "Runs that this gateway started.", &s.control.Started)
	metric("moorebus_gateway_events_appended_total", "counter", "Events that this gateway appended for requests.", &s.control.Appended)
	metric("moorebus_gateway_stream_clients", "gauge", "Clients that read an event stream now.", &c.clients)
	metric("moorebus_gateway_stream_clients_lost_total", "counter", "Clients that went away or read too slowly.", &c.dropped)
	name := "moorebus_gateway_http_requests_total"
	fmt.Fprintf(&b, "# HELP %s HTTP requests by status.\n# TYPE %s counter\n", name, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, code := range slices.Sorted(maps.Keys(c.requests)) {
		fmt.Fprintf(&b, "%s{code=%q} %d\n", name, strconv.Itoa(code), c.requests[code])
	}
	return b.String()
}

func (s *Server) getMetrics(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(s.metrics())) // a client that is gone needs no error
	return nil
}

//go:embed index.html
var page []byte

func getPage(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'")
	_, _ = w.Write(page) // a client that is gone needs no error
	return nil
}
