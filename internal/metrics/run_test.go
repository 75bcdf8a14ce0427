package metrics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/metrics"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

const patience = time.Minute

var quiet = slog.New(slog.DiscardHandler)

type query struct {
	Q string `json:"q"`
}

// site is a host on a real server, and its registry.
type site struct {
	*metrics.Registry
	bus  *natsbus.Bus
	host *host.Host
}

// newSite sets a server up, and runs every role with the tools good and bad if running.
func newSite(t *testing.T, o host.Options, running bool) *site {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{MaxBytes: 4 << 20}))
	s := &site{Registry: metrics.New()}
	s.bus, err = natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet, RequestTimeout: patience, Meter: s.Registry})
	require.NoError(t, err)
	good, err := typed.New(tool.Definition{Name: "good", Description: "Works.", Effect: tool.Pure}, func(context.Context, query) (string, error) { return "yes", nil })
	require.NoError(t, err)
	bad, err := typed.New(tool.Definition{Name: "bad", Description: "Fails.", Effect: tool.Pure}, func(context.Context, query) (string, error) { return "", errors.New("no") })
	require.NoError(t, err)
	o.Tools, err = toolset.New(good, bad)
	require.NoError(t, err)
	o.Bus, o.Metrics, o.Logger = s.bus, s.Registry, quiet
	if o.Providers == nil {
		o.Providers = map[string]llm.Caller{"scripted": scripted.New()}
	}
	s.host, err = host.New(o)
	require.NoError(t, err)
	require.NoError(t, s.host.Announce(t.Context()))
	if running {
		s.run(t)
	}
	return s
}

// run runs every role until the test ends.
func (s *site) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.host.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
}

// await returns the lines of a metric with these parts, once there are any.
func (s *site) await(t *testing.T, name string, parts ...string) []string {
	t.Helper()
	var lines []string
	require.Eventually(t, func() bool {
		text, _ := scrape(t, s.Registry)
		lines = series(text, name, parts...)
		return len(lines) > 0
	}, patience, 10*time.Millisecond, "%s %v", name, parts)
	return lines
}

// start starts a run of an agent with a script and further keys.
func (s *site) start(t *testing.T, script string, keys ...string) events.Run {
	t.Helper()
	body := `{"task": "do it", "agent": {"name": "worker", "llm": {"provider": "scripted", "script": ` + script + `}, "tools": ["good", "bad"]` + strings.Join(keys, "") + `}}`
	var started struct {
		RunID string `json:"run_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.do(t, "POST", "/v1/runs", body)), &started))
	return s.host.Store().Place(events.DefaultNamespace, started.RunID)
}

func (s *site) request(method, path, body string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	s.host.Handler().ServeHTTP(answer, r)
	return answer
}

// do returns the body of a successful answer.
func (s *site) do(t *testing.T, method, path, body string) string {
	t.Helper()
	answer := s.request(method, path, body)
	require.Less(t, answer.Code, 300, answer.Body.String())
	return answer.Body.String()
}

const script = `[{"calls": [{"name": "good", "arguments": {"q": "a"}}]}, {"calls": [{"name": "bad", "arguments": {"q": "b"}}]}, {"text": "Done with it."}]`

// The values after a run with a tool that works and one that fails.
func TestValuesOfARun(t *testing.T) {
	s := newSite(t, host.Options{}, true)
	s.start(t, script)
	var text string
	has := func(name string, parts ...string) {
		t.Helper()
		require.Len(t, series(text, name, parts...), 1, "%s %v", name, parts)
	}
	require.Eventually(t, func() bool { // the run's end is counted by who appended it, and its delivery acknowledged
		text, _ = scrape(t, s.Registry)
		return len(series(text, "moorebus_runs_ended_total")) > 0 && len(series(text, "moorebus_delivery_stage_seconds_count", "acknowledged", "planning", " 3")) > 0
	}, patience, 10*time.Millisecond)
	has("moorebus_runs_started_total", `agent="worker"`, " 1")
	has("moorebus_runs_ended_total", `agent="worker"`, `state="done"`, `type="LlmFinalAnswer"`, " 1")
	has("moorebus_transitions_total", `from="idle"`, `to="planning"`, `type="Start"`, " 1")
	has("moorebus_transitions_total", `from="planning"`, `to="acting"`, `type="LlmToolCall"`, " 2")
	has("moorebus_tool_call_duration_seconds_count", `tool="good"`, `outcome="ok"`, `pool="default"`, " 1")
	has("moorebus_tool_call_duration_seconds_count", `tool="bad"`, `outcome="tool_failed"`, " 1")
	has("gen_ai_client_operation_duration_seconds_count", `gen_ai_provider_name="scripted"`, `error_type=""`, `gen_ai_operation_name="chat"`, `gen_ai_request_model="scripted"`, " 3")
	has("moorebus_delivery_stage_seconds_count", `stage="queued"`, `state="planning"`, " 3")
	has("moorebus_delivery_stage_seconds_count", `stage="worked"`, `state="acting"`, " 2")
	require.NotContains(t, text, "moorebus_redeliveries_total{")
	has("moorebus_gateway_runs_started_total", " 1")
	require.Contains(t, s.do(t, "GET", "/metrics", ""), "moorebus_transitions_total{", "HTTP serves them, too")
}

// What waits is told by the gateway: nobody works here but who announces.
func TestValuesOfWhatWaits(t *testing.T) {
	s := newSite(t, host.Options{}, false)
	began := time.Now()
	for range 3 {
		s.start(t, script)
	}
	text, families := scrape(t, s.Registry)
	value := func(name string, labels ...string) float64 {
		t.Helper()
		lines := series(text, name, labels...)
		require.Len(t, lines, 1, "%s %v", name, labels)
		var v float64
		_, err := fmt.Sscan(lines[0][strings.LastIndex(lines[0], " "):], &v)
		require.NoError(t, err)
		return v
	}
	require.EqualValues(t, 3, value("moorebus_backlog_waiting", `state="planning"`))
	require.EqualValues(t, 0, value("moorebus_backlog_in_flight", `state="planning"`))
	age := value("moorebus_backlog_oldest_seconds", `state="planning"`)
	require.Greater(t, age, 0.0)
	require.LessOrEqual(t, age, time.Since(began).Seconds())
	require.Zero(t, value("moorebus_backlog_oldest_seconds", `state="acting"`, `pool="default"`))
	// The prompt of a run is its task and two tools, about a hundred tokens.
	require.InDelta(t, 3*60, value("moorebus_tokens_waiting"), 3*50)
	require.EqualValues(t, 1, value("moorebus_workers", `role="planner"`))
	require.EqualValues(t, 1, value("moorebus_workers", `role="actor"`, `pool="default"`))
	require.EqualValues(t, 1, value("moorebus_bus_observed"))
	require.EqualValues(t, 3, value("moorebus_log_records", `shard="0"`))
	require.Greater(t, value("moorebus_log_bytes", `shard="0"`), 0.0)
	require.Contains(t, families, "moorebus_log_limit_bytes")

	s.start(t, script)
	text, _ = scrape(t, s.Registry)
	require.EqualValues(t, 3, value("moorebus_backlog_waiting", `state="planning"`), "the bus is not asked at each scrape")
}

// Where the bus is away a scrape ends, and has what was counted.
func TestScrapeWithoutABus(t *testing.T) {
	s := newSite(t, host.Options{}, false)
	s.start(t, script)
	s.bus.Conn().Close()
	began := time.Now()
	text, _ := scrape(t, s.Registry)
	require.Less(t, time.Since(began), 30*time.Second)
	require.Equal(t, []string{"moorebus_bus_observed 0"}, series(text, "moorebus_bus_observed"))
	require.Len(t, series(text, "moorebus_transitions_total"), 1)
	require.Empty(t, series(text, "moorebus_backlog_waiting"))
}
