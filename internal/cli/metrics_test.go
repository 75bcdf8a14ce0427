package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func metricsPage(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

var port = regexp.MustCompile(`http://[^ ]*:(\d+)/metrics`)

// Other machines reach the listener without credentials if the address says so: kubelets and
// scrapers have none.
func TestServeMetrics(t *testing.T) {
	var log bytes.Buffer
	var probe Probe
	stop, err := pprofFlags(t, "--metrics-listen", ":0").ServeMetrics(metricsPage("moorebus_x 1\n"), &probe, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	found := port.FindStringSubmatch(log.String())
	require.NotNil(t, found, log.String())
	require.Contains(t, log.String(), "[::]", "an address without a host is every interface's")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		answer, err := client.Get("http://127.0.0.1:" + found[1] + path)
		require.NoError(t, err)
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(body)
	}
	expect := func(path string, wantCode int, want string) {
		t.Helper()
		code, body := get(path)
		require.Equal(t, wantCode, code, body)
		require.Contains(t, body, want)
	}
	expect("/metrics", http.StatusOK, "moorebus_x 1")
	expect("/healthz", http.StatusOK, "ok")
	expect("/readyz", http.StatusServiceUnavailable, "waiting for the bus")
	probe.Set(func(context.Context) error { return errors.New("consumers are missing") })
	expect("/readyz", http.StatusServiceUnavailable, "consumers are missing")
	probe.Set(func(context.Context) error { return nil })
	expect("/readyz", http.StatusOK, "ready")
	expect("/debug/pprof/", http.StatusNotFound, "")
	stop()
	_, err = client.Get("http://127.0.0.1:" + found[1] + "/healthz")
	require.Error(t, err, "it ends when it is stopped")
}

// On loopback no web page reads the metrics, under whatever name it comes.
func TestMetricsOnLoopback(t *testing.T) {
	var log bytes.Buffer
	stop, err := pprofFlags(t, "--metrics-listen", "127.0.0.1:0").ServeMetrics(metricsPage("moorebus_x 1\n"), &Probe{}, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	defer stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for host, status := range map[string]int{"localhost": http.StatusOK, "evil.example": http.StatusForbidden} {
		r, err := http.NewRequest("GET", "http://127.0.0.1:"+port.FindStringSubmatch(log.String())[1]+"/metrics", nil)
		require.NoError(t, err)
		r.Host = host
		answer, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, status, answer.StatusCode, host)
	}
}

func TestServeMetricsIsOff(t *testing.T) {
	var log bytes.Buffer
	stop, err := pprofFlags(t).ServeMetrics(nil, &Probe{}, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	stop()
	require.Empty(t, log.String())
}

func TestServeMetricsBadAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	for address, code := range map[string]int{"9090": ExitUsage, taken.Addr().String(): ExitConfig, "127.0.0.1:port": ExitConfig} {
		_, err := pprofFlags(t, "--metrics-listen", address).ServeMetrics(nil, &Probe{}, quiet)
		require.ErrorContains(t, err, "--metrics-listen: ")
		require.Equal(t, code, exitCode(t.Context(), err), address)
	}
}
