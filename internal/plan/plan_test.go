package plan_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/plan"
)

var update = flag.Bool("update", false, "write the table of docs/operations/capacity.md anew")

// TestPage compares the page's table with the coefficients.
func TestPage(t *testing.T) {
	const file, begin, end = "../../docs/operations/capacity.md", "<!-- coefficients -->\n", "<!-- end -->\n"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(page), begin)
	require.True(t, found)
	table, after, found := strings.Cut(rest, end)
	require.True(t, found)
	if *update {
		table = plan.Table()
		require.NoError(t, os.WriteFile(file, []byte(before+begin+table+end+after), 0o644))
	}
	require.Equal(t, plan.Table(), table, "run go test ./internal/plan -run TestPage -update")
}

// one is one run a second, and two at the peak.
var one = plan.Load{RunsPerDay: 86400, Steps: 10, Calls: 10, Tokens: 5000, ModelTime: 4, CallTime: 1, Retain: 10, Replicas: 3, Peak: 2}

// values are numbers of a plan by name.
type values map[string]float64

func (want values) of(t *testing.T, l plan.Load) {
	t.Helper()
	planned, err := plan.For(l)
	require.NoError(t, err)
	for name, value := range want {
		require.InDelta(t, value, planned.Value(name), 1e-6*value, name)
	}
	for _, line := range planned.Lines {
		require.NotEmpty(t, line.How, line.Name)
		require.NotContains(t, line.How, "%!", line.Name)
	}
}

func TestSmallLoad(t *testing.T) {
	values{
		"runs_per_second": 2, "events_per_run": 32, "events_per_day": 2_764_800, "events_per_second": 64,
		"run_time": 54, "runs_in_progress": 108, "model_calls_in_flight": 88, "tool_calls_in_flight": 20,
		// 460 + 32 × 220 + 5,000 × 1.9
		"disk_per_run": 17_000, "disk_per_day": 1_468_800_000, "log": 14_688_000_000, "disk_of_a_server": 22_032_000_000,
		"runs_stored": 864_000,
		"planners":    2, "actors": 2, "observers": 2, "gateways": 2, "nats_servers": 3, "processors_of_a_server": 2, "shards": 1,
		"nats_connections": 8, "model_connections": 88,
		// 40 MB, 3 × 64 MiB of runs that it keeps, 44 calls of 90 kB and 5,000 × 20 B
		"planner_memory":  40e6 + 201_326_592 + 44*190e3,
		"actor_memory":    40e6 + 201_326_592 + 10*190e3,
		"observer_memory": 40e6 + 201_326_592,
		"gateway_memory":  40e6 + 201_326_592 + 864_000*1_600,
		"server_memory":   200e6 + 864_000*2_400,
		"max_ack_pending": 0,
	}.of(t, one)
}

// TestLargeLoad has two hundred runs a second, and so needs more than one process of
// each role, and with calls of a minute more deliveries than a bus allows by default.
func TestLargeLoad(t *testing.T) {
	l := one
	l.RunsPerDay, l.Calls, l.ModelTime, l.Replicas = 8_640_000, 15, 60, 1
	values{
		// 2 + 2 × 10 + 15 calls + 5 steps with more than one
		"runs_per_second": 200, "events_per_run": 42, "events_per_second": 8_400,
		"model_calls_in_flight": 132_000, "tool_calls_in_flight": 3_000,
		"planners": 516, // 132,000 / 256, more than processors need
		"actors":   47,  // 3,000 / 64
		// 200 × 10 × 0.14 ms / 0.5
		"observers": 1,
		"gateways":  1,
		// 8,400 × 0.12 ms / 0.5 = 2.02
		"processors_of_a_server": 3,
		"shards":                 5, "nats_servers": 1,
		"nats_connections": 565, "max_ack_pending": 132_000,
	}.of(t, l)
}

// TestProcessorsBound has tools and a model that answer at once.
func TestProcessorsBound(t *testing.T) {
	l := one
	l.RunsPerDay, l.ModelTime, l.CallTime, l.Replicas, l.Peak = 86_400_000, 0, 0, 1, 1
	values{
		// 1,000 runs/s × 11 × 0.48 ms / 0.5, × 10 × 0.18, × 10 × 0.14, × 1.1
		"planners": 11, "actors": 4, "observers": 3, "gateways": 3,
		"runs_in_progress": 0,
	}.of(t, l)
}

func TestNoSteps(t *testing.T) {
	l := one
	l.Steps, l.Calls, l.Tokens = 0, 0, 0
	values{"events_per_run": 2, "run_time": 4, "tool_calls_in_flight": 0, "disk_per_run": 900}.of(t, l)
	l.Calls = 3
	_, err := plan.For(l)
	require.ErrorContains(t, err, "--calls is 0 without --steps")
}
