package gateway

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moorebus/moorebus/pkg/journal"
)

// readyTimeout bounds the questions that /readyz asks the bus.
const readyTimeout = 5 * time.Second

func (g *Gateway) getHealth(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (g *Gateway) getReady(w http.ResponseWriter, r *http.Request) error {
	ctx, stop := context.WithTimeout(r.Context(), readyTimeout)
	defer stop()
	err := g.Ready(ctx)
	if errors.Is(err, journal.ErrFull) {
		return wrap(err, http.StatusServiceUnavailable, fullCode(err), "not ready: %s", err.Error())
	}
	if err != nil {
		return wrap(err, http.StatusServiceUnavailable, CodeUnavailable, "not ready: %s", err.Error())
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// Ready returns nil if the bus answers, and its streams and the consumers that
// the gateway needs are there.
func (g *Gateway) Ready(ctx context.Context) error {
	select {
	case <-g.closing:
		return fmt.Errorf("the gateway is shutting down")
	default:
	}
	for shard := range g.log.Shards() {
		if _, err := g.log.Last(ctx, shard); err != nil {
			return err
		}
	}
	if _, err := g.cfg.Queue.AckWait(ctx, inbox); err != nil {
		return err
	}
	if g.cfg.Ready != nil {
		return g.cfg.Ready(ctx)
	}
	return nil
}

// counters are what /metrics shows.
type counters struct {
	started, appended, clients, dropped atomic.Int64

	mu       sync.Mutex
	requests map[int]int64
}

func newCounters() *counters { return &counters{requests: map[int]int64{}} }

func (c *counters) request(code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[code]++
}

// text writes the counters in Prometheus's text format.
func (c *counters) text() string {
	var b strings.Builder
	metric := func(name, kind, help string, value *atomic.Int64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", name, help, name, kind, name, value.Load())
	}
	metric("moorebus_gateway_runs_started_total", "counter", "Runs that this gateway started.", &c.started)
	metric("moorebus_gateway_events_appended_total", "counter", "Events that this gateway appended for requests.", &c.appended)
	metric("moorebus_gateway_stream_clients", "gauge", "Clients that read an event stream now.", &c.clients)
	metric("moorebus_gateway_stream_clients_lost_total", "counter", "Clients that went away or read too slowly.", &c.dropped)
	name := "moorebus_gateway_http_requests_total"
	fmt.Fprintf(&b, "# HELP %s HTTP requests by status.\n# TYPE %s counter\n", name, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	codes := make([]int, 0, len(c.requests))
	for code := range c.requests {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	for _, code := range codes {
		fmt.Fprintf(&b, "%s{code=%q} %d\n", name, strconv.Itoa(code), c.requests[code])
	}
	return b.String()
}

func (g *Gateway) getMetrics(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(g.counts.text())) // a client that is gone cannot be told so
	return nil
}

//go:embed index.html
var page []byte

func getPage(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'")
	_, _ = w.Write(page) // a client that is gone cannot be told so
	return nil
}
