package cli

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/moorebus/moorebus/internal/httpserver"
)

// metricsVariable is the environment's --metrics-listen.
const metricsVariable = "MOOREBUS_METRICS_LISTEN"

// MetricsFlag is --metrics-listen: where metrics and probes are served; empty: nowhere.
type MetricsFlag struct{ address string }

// AddMetricsFlag adds --metrics-listen. [AddRoleFlags] has it already. getenv is os.Getenv, or a
// test's.
func AddMetricsFlag(flags *pflag.FlagSet, getenv func(string) string) *MetricsFlag {
	f := &MetricsFlag{}
	flags.StringVar(&f.address, "metrics-listen", getenv(metricsVariable),
		"`address` to serve /metrics, /healthz and /readyz on, as in :9090, without credentials and for every machine that can reach it ("+metricsVariable+", else none)")
	return f
}

// Probe knows whether a process is ready to work. The zero value is not. It is safe for
// concurrent use.
type Probe struct {
	check atomic.Pointer[func(context.Context) error]
}

// Set says what makes the process ready from now on: a check that returns nil.
func (p *Probe) Set(check func(context.Context) error) { p.check.Store(&check) }

// Ready returns nil if the process is ready, else why it is not.
func (p *Probe) Ready(ctx context.Context) error {
	check := p.check.Load()
	if check == nil {
		return errors.New("waiting for the bus")
	}
	return (*check)(ctx)
}

// probeTimeout bounds one check of readiness. Probes wait for 5 s.
const probeTimeout = 4 * time.Second

// ServeMetrics serves /metrics, /healthz and /readyz where --metrics-listen says, until stop
// is called; without the flag it does nothing. /healthz is 200 from the start, /readyz as the
// probe says.
//
// The listener asks for no credentials, even if other machines can reach it, and an address
// without a host listens on every interface. Scrapers and kubelets have no credentials, somebody
// set the flag on purpose, and the metrics contain names and numbers and no text of a run. On
// loopback it refuses requests of web pages. An invalid address is a usage error. If it cannot
// listen, it fails with [ExitConfig].
func (f *MetricsFlag) ServeMetrics(metrics http.Handler, probe *Probe, logger *slog.Logger) (stop func(), err error) {
	if f.address == "" {
		return func() {}, nil
	}
	if _, _, err := net.SplitHostPort(f.address); err != nil {
		return nil, Usage("--metrics-listen: %q is not an address; use host:port, as in :9090 or 127.0.0.1:9090", f.address)
	}
	listener, err := net.Listen("tcp", f.address)
	if err != nil {
		return nil, NotConfigured("--metrics-listen: %w", err)
	}
	server := httpserver.New(httpserver.Options{Handler: httpserver.WithoutPages(listener.Addr(), probes(metrics, probe)), Logger: logger})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.ServeUntilClosed(listener); err != nil {
			logger.Warn("metrics are no longer served", "reason", err)
		}
	}()
	logger.Info("serving metrics", "url", "http://"+listener.Addr().String()+"/metrics")
	return func() {
		_ = server.Close() // a scraper repeats an interrupted scrape
		<-ended
	}, nil
}

func probes(metrics http.Handler, probe *Probe) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeProbe(w, http.StatusOK, "ok", "") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, stop := context.WithTimeout(r.Context(), probeTimeout)
		defer stop()
		if err := probe.Ready(ctx); err != nil {
			writeProbe(w, http.StatusServiceUnavailable, "not ready", err.Error())
			return
		}
		writeProbe(w, http.StatusOK, "ready", "")
	})
	return mux
}

func writeProbe(w http.ResponseWriter, code int, status, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(struct { // a probe that is gone needs no error
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}{status, reason})
}
