package metrics_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/rows"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/metrics"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

func TestPage(t *testing.T) {
	const file = "../../docs/metrics.md"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(metrics.Page()), 0o644))
	}
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, metrics.Page(), string(page), "run go test ./internal/metrics -update")
}

// scrape returns what Prometheus gets, as text and by names.
func scrape(t *testing.T, r *metrics.Registry) (string, map[string]*dto.MetricFamily) {
	t.Helper()
	answer := httptest.NewRecorder()
	r.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, answer.Code, answer.Body.String())
	text := answer.Body.String()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	return text, families
}

// series returns the lines of a metric whose labels have all the given parts.
func series(text, name string, parts ...string) (lines []string) {
line:
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue line
			}
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

// everything is a registry in which every metric has a value.
func everything() *metrics.Registry {
	r := metrics.New()
	for _, m := range rows.Metrics() {
		var of meter.Values
		for i := range m.Labels {
			of[i] = "x"
		}
		switch {
		case m.Kind != meter.Gauge:
			r.Add(m, 1, of)
		case m != meter.Build:
			r.Read(func(_ context.Context, emit meter.Emit) { emit(m, 1, of) })
		}
	}
	return r
}

func TestPromlint(t *testing.T) {
	text, families := scrape(t, everything())
	for _, m := range rows.Metrics() {
		require.Contains(t, families, m.Name, "every metric is served")
		require.Equal(t, strings.ToUpper(m.Kind.String()), families[m.Name].GetType().String())
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

// Agents, tools and models may have any number of names, of any kind.
func TestSeriesAreBounded(t *testing.T) {
	r := metrics.New()
	for i := range 5000 {
		r.Add(meter.ToolTime, 1, meter.Values{fmt.Sprintf("tool%d", i), fmt.Sprintf("pool%d", i%300), "ok"})
		r.Add(meter.Transitions, 1, meter.Values{fmt.Sprintf("a%d", i%50), fmt.Sprintf("b%d", i%70), fmt.Sprintf("c%d", i%90)})
	}
	r.Add(meter.Cost, 1, meter.Values{"bad \xff", strings.Repeat("long", 1000)})
	text, _ := scrape(t, r)
	tools := series(text, "moorebus_tool_call_duration_seconds_count")
	require.LessOrEqual(t, len(tools), 2000)
	require.Contains(t, strings.Join(tools, "\n"), `tool="other"`)
	names := map[string]bool{}
	total := 0.0
	for _, line := range tools {
		_, name, _ := strings.Cut(line, `tool="`)
		name, _, _ = strings.Cut(name, `"`)
		names[name] = true
		var n float64
		_, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &n)
		require.NoError(t, err)
		total += n
	}
	require.EqualValues(t, 5000, total, "none is lost")
	require.LessOrEqual(t, len(names), meter.MaxValues+1)
	require.LessOrEqual(t, len(series(text, "moorebus_transitions_total")), 2001)
	require.Len(t, series(text, "moorebus_model_cost_usd_total", `"bad "`), 1)
}

// What reads the bus is given a time, and a scrape of what was counted does not wait for ever.
func TestReadersHaveADeadline(t *testing.T) {
	r := metrics.New()
	r.Read(func(ctx context.Context, emit meter.Emit) {
		_, bounded := ctx.Deadline()
		require.True(t, bounded)
		emit(meter.Waiting, 2, meter.Values{"planning"})
		emit(meter.LogLimit, -1, meter.Values{"0"})
	})
	answer := httptest.NewRecorder()
	r.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), `moorebus_backlog_waiting{pool="",state="planning"} 2`)
	require.Contains(t, string(body), `moorebus_log_limit_bytes{shard="0"} -1`)
}

func BenchmarkAdd(b *testing.B) {
	r := metrics.New()
	b.ReportAllocs()
	for b.Loop() {
		meter.Add(r, meter.Transitions, 1, "planning", "acting", "LlmToolCall")
	}
}
