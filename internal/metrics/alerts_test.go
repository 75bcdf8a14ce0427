package metrics_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/moorebus/moorebus/internal/certs"
	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/sharedlog"
	"github.com/moorebus/moorebus/internal/telemetry"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
)

// tried has for each alert what makes its condition true on a real bus, and sees it in the
// metrics. Times are shorter than the alert's.
var tried = map[string]func(t *testing.T){
	"MoorebusDown":              nil, // up is Prometheus's own: cli.TestServeMetrics shows that a stopped process does not answer
	"MoorebusBusNotSeen":        TestScrapeWithoutABus,
	"MoorebusBacklogOld":        TestValuesOfWhatWaits,
	"MoorebusToolErrors":        TestValuesOfARun,
	"MoorebusNoWorkers":         tryNoWorkers,
	"MoorebusRunsFail":          tryFailures,
	"MoorebusModelErrors":       tryFailures,
	"MoorebusCertificateEnds":   tryCertificate,
	"MoorebusDiskLow":           tryDisk,
	"MoorebusDiskFull":          tryDisk,
	"MoorebusLogNearlyFull":     tryLog,
	"MoorebusRunsStalled":       tryStall,
	"MoorebusRunsPoisoned":      tryPoison,
	"MoorebusFeedLag":           tryFeed,
	"MoorebusBudgetsUsedUp":     tryBudget,
	"MoorebusBudgetNearlySpent": tryDailyBudget,
	"MoorebusWebhookGivenUp":    tryWebhook,
	"MoorebusTelemetryLag":      tryTelemetry,
}

func TestAlertsCanBeTrue(t *testing.T) {
	if testing.Short() {
		t.Skip("reason: a run stalls for seconds")
	}
	for _, a := range alerts(t) {
		try, there := tried[a.Alert]
		require.True(t, there, "%s is not tried", a.Alert)
		if try != nil {
			t.Run(a.Alert, func(t *testing.T) {
				t.Parallel()
				try(t)
			})
		}
	}
	require.Len(t, tried, len(alerts(t)))
}

func tryNoWorkers(t *testing.T) {
	s := newSite(t, host.Options{}, false)
	require.NoError(t, s.host.Withdraw(t.Context()))
	text, _ := scrape(t, s.Registry)
	require.Equal(t, []string{`moorebus_workers{pool="",role="planner"} 0`}, series(text, "moorebus_workers", "planner"))
	require.Equal(t, []string{`moorebus_workers{pool="default",role="actor"} 0`}, series(text, "moorebus_workers", "actor"))
}

func tryFailures(t *testing.T) {
	s := newSite(t, host.Options{}, true)
	s.start(t, `[{"error": {"kind": "auth", "message": "no such key"}}]`)
	s.await(t, "moorebus_runs_ended_total", `state="error"`, `agent="worker"`)
	s.await(t, "gen_ai_client_operation_duration_seconds_count", `error_type="auth"`)
}

func tryDisk(t *testing.T) {
	dir := t.TempDir()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: dir, Logger: quiet, Reserve: 1 << 60})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	r := metrics.New()
	r.ReadDisk(dir, server.Full)
	text, families := scrape(t, r)
	require.Equal(t, []string{"moorebus_disk_full 1"}, series(text, "moorebus_disk_full"))
	free, size := families["moorebus_disk_free_bytes"].GetMetric()[0].GetGauge().GetValue(), families["moorebus_disk_size_bytes"].GetMetric()[0].GetGauge().GetValue()
	require.Greater(t, free, 0.0)
	require.Less(t, free, size)
}

func tryCertificate(t *testing.T) {
	dir := t.TempDir()
	_, err := certs.Make(certs.Options{Dir: dir, Server: certs.Server, For: 13 * 24 * time.Hour, Now: time.Now()})
	require.NoError(t, err)
	watched, err := certs.Watch(dir, certs.Server, nil)
	require.NoError(t, err)
	r := metrics.New()
	r.ReadCertificates(watched.Ends)
	_, families := scrape(t, r)
	least := math.Inf(1)
	for _, m := range families["moorebus_certificate_left_seconds"].GetMetric() {
		least = min(least, m.GetGauge().GetValue())
	}
	require.InDelta(t, 13*86400, least, 600)
}

func tryLog(t *testing.T) {
	s := newSite(t, host.Options{}, false)
	var noise [40 << 10]byte
	part := func() float64 {
		sizes, err := s.bus.ShardSizes(t.Context())
		require.NoError(t, err)
		return float64(sizes[0].Bytes) / float64(sizes[0].MaxBytes)
	}
	for part() < 0.86 {
		_, err := rand.Read(noise[:])
		require.NoError(t, err)
		s.start(t, `[{"text": "Done with it."}]`, `, "system_prompt": "`+hex.EncodeToString(noise[:])+`"`)
	}
	_, families := scrape(t, s.Registry)
	value := func(name string) float64 { return families[name].GetMetric()[0].GetGauge().GetValue() }
	require.Greater(t, value("moorebus_log_bytes")/value("moorebus_log_limit_bytes"), 0.85)
}

func tryStall(t *testing.T) {
	hangs := llm.CallerFunc(func(ctx context.Context, _ llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	s := newSite(t, host.Options{StallAfter: 2 * time.Second, Providers: map[string]llm.Caller{"scripted": hangs}}, true)
	s.start(t, script)
	s.await(t, "moorebus_runs_stalled_total", `result="redriven"`, " 1")
	s.await(t, "moorebus_runs_stalled_total", `result="ended"`, " 1")
}

func tryPoison(t *testing.T) {
	s := newSite(t, host.Options{}, false)
	run := s.start(t, script)
	subject := events.Subject{Run: run, From: events.Planning, To: events.Acting, Pool: events.DefaultPool}
	_, err := s.bus.Conn().Request(subject.String(), []byte("nonsense"), patience)
	require.NoError(t, err)
	s.run(t)
	s.await(t, "moorebus_runs_poisoned_total", " 1")
}

func tryFeed(t *testing.T) {
	s := newSite(t, host.Options{}, false)
	streams := sse.New(sse.Options{Log: sharedlog.New(s.bus, sharedlog.Options{}), Meter: s.Registry, Logger: quiet})
	ctx, stop := context.WithCancel(t.Context())
	out := make(chan sse.Record)
	done := streams.Follow(ctx, 0, journal.Filter{}, 0, out)
	began := time.Now()
	s.start(t, script)
	require.Eventually(t, func() bool { return time.Since(began) > 700*time.Millisecond }, patience, 10*time.Millisecond, "the client reads nothing meanwhile")
	<-out
	s.await(t, "moorebus_gateway_stream_delay_seconds_count", " 1")
	text, _ := scrape(t, s.Registry)
	require.Len(t, series(text, "moorebus_gateway_stream_delay_seconds_bucket", `le="0.1"`, " 0"), 1)
	stop()
	<-done
}

func tryBudget(t *testing.T) {
	s := newSite(t, host.Options{}, true)
	for range 11 {
		s.start(t, `[{"calls": [{"name": "good", "arguments": {"q": "a"}}], "usage": {"input": 900, "output": 200}}, {"text": "Done with it."}]`, `, "budget": {"max_total_tokens": 1000}`)
	}
	require.Eventually(t, func() bool {
		text, _ := scrape(t, s.Registry)
		var n int
		_, err := fmt.Sscan(strings.TrimPrefix(series(text, "moorebus_runs_over_budget_total")[0], "moorebus_runs_over_budget_total "), &n)
		return err == nil && n > 10
	}, patience, 10*time.Millisecond)
	s.await(t, "gen_ai_client_token_usage_sum", `gen_ai_token_type="input"`, " 9900")
}

func tryDailyBudget(t *testing.T) {
	s := newSite(t, host.Options{}, true)
	s.do(t, "PUT", "/v1/quotas/default", `{"daily": {"tokens": 1000}, "active": 1}`)
	s.start(t, `[{"text": "Done with it.", "usage": {"input": 800, "output": 100}}]`)
	s.await(t, "moorebus_quota_budget_used_ratio", `budget="tokens"`, `namespace="default"`, " 0.9")
	s.await(t, "moorebus_quota_admitted_total", `namespace="default"`, " 1")
	s.await(t, "moorebus_quota_queued_runs", `namespace="default"`, " 0")
	s.await(t, "moorebus_quota_active_runs", `namespace="default"`, " 0")
	s.start(t, `[{"text": "Done with it.", "usage": {"input": 800, "output": 100}}]`)
	s.await(t, "moorebus_quota_budget_used_ratio", `budget="tokens"`, " 1.8")
	refused := `{"task": "do it", "agent": {"name": "worker", "llm": {"provider": "scripted", "script": [{"text": "Done with it."}]}}}`
	require.Eventually(t, func() bool { return s.request("POST", "/v1/runs", refused).Code == 429 }, patience, 10*time.Millisecond)
	s.await(t, "moorebus_quota_refused_total", `code="budget_exhausted"`)
}

func tryWebhook(t *testing.T) {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	t.Cleanup(receiver.Close)
	s := newSite(t, host.Options{Features: all.Features().With("webhooks", webhooks.Made(webhooks.Settings{
		Allowed: webhooks.Loopback(), Retries: []time.Duration{time.Millisecond},
	}))}, true)
	s.do(t, "PUT", "/v1/webhooks/ops", `{"url": "`+receiver.URL+`", "on": ["ended"]}`)
	s.start(t, `[{"text": "Done with it."}]`)
	s.await(t, "moorebus_webhook_attempts_total", `outcome="failed"`, " 1")
	s.await(t, "moorebus_webhook_attempts_total", `outcome="given_up"`, " 1")
	s.await(t, "moorebus_webhook_waiting", " 0")
}

// away is a receiver of spans that acknowledges nothing until it is there.
type away struct{ there chan struct{} }

func (a away) UploadTraces(context.Context, []*tracepb.ResourceSpans) error {
	select {
	case <-a.there:
		return nil
	default:
		return errors.New("it is away")
	}
}

func tryTelemetry(t *testing.T) {
	s := newSite(t, host.Options{}, true)
	s.start(t, script)
	s.await(t, "moorebus_runs_ended_total", `state="done"`)
	ctx, stop := context.WithCancel(t.Context())
	receiver := away{make(chan struct{})}
	ended := make(chan error, 1)
	x := telemetry.New(telemetry.Config{
		Log: s.bus, Leases: s.bus, KV: s.bus, Machine: s.host.Store().Machine(), Sender: receiver, From: time.Unix(1, 0), Delay: time.Millisecond, Meter: s.Registry,
	})
	go func() { ended <- x.Run(ctx) }()
	s.await(t, "moorebus_telemetry_failures_total")
	lags := func() bool {
		text, _ := scrape(t, s.Registry)
		return !slices.Equal(series(text, "moorebus_telemetry_lag_seconds"), []string{"moorebus_telemetry_lag_seconds 0"})
	}
	require.Eventually(t, lags, patience, 10*time.Millisecond)
	close(receiver.there)
	s.await(t, "moorebus_telemetry_spans_total", `result="sent"`)
	require.Eventually(t, func() bool { return !lags() }, patience, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}
