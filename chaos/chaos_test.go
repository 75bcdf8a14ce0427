package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/stretchr/testify/require"
)

// bin has the commands under test.
var bin string

// TestMain builds them.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Short() {
		var err error
		if bin, err = commandtest.Build("cmd", "./cmd/...", "./chaos", "github.com/nats-io/nats-server/v2"); err != nil {
			fmt.Fprintln(os.Stderr, "chaos:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// short plays a short game, with a seed that is printed: it is another one each time.
func short(t *testing.T, o options) *report {
	t.Helper()
	if testing.Short() {
		t.Skip("-short") // reason: a game takes half a minute
	}
	o.bin, o.dir, o.seed = bin, t.TempDir(), uint64(time.Now().UnixNano())%1_000_000
	o.keep, o.inFlight, o.pause, o.settleTime = true, 24, 250*time.Millisecond, time.Minute
	t.Logf("go run ./chaos --seed %d --runs %d --shards %d --cluster=%v --outage=false --in-flight %d --pause %s", o.seed, o.runs, o.shards, o.cluster, o.inFlight, o.pause)
	var progress, printed strings.Builder
	r, err := play(t.Context(), o, &progress)
	if r != nil {
		r.print(&printed)
	}
	t.Logf("%s%s", &progress, &printed)
	if err != nil || len(r.findings) > 0 {
		logs(t, o.dir)
	}
	require.NoError(t, err)
	require.Empty(t, r.findings)
	parseLogs(t, o.dir)
	return r
}

// parseLogs parses every line that a role logged, and holds its keys to docs/operations/logs.md.
// Lines of the Go runtime or of a library beside the log would be found, too.
func parseLogs(t *testing.T, dir string) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("..", "docs", "operations", "logs.md"))
	require.NoError(t, err)
	_, table, there := strings.Cut(string(doc), "## Keys")
	require.True(t, there)
	said := map[string]bool{}
	for _, role := range []string{"planner", "actor", "observer", "gateway", "telemetry"} {
		files, err := filepath.Glob(filepath.Join(dir, "logs", role+"-*.log"))
		require.NoError(t, err)
		require.NotEmpty(t, files, role)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "--- started ") {
					continue
				}
				var entry map[string]any
				require.NoError(t, json.Unmarshal([]byte(line), &entry), "%s: %s", file, line)
				require.Equal(t, role, entry["role"], line)
				said[fmt.Sprint(entry["msg"])] = true
				for key := range entry {
					builtin := slices.Contains([]string{"time", "level", "msg"}, key)
					require.True(t, builtin || strings.Contains(table, "`"+key+"`"), "docs/operations/logs.md does not list the key %s: %s", key, line)
				}
			}
		}
	}
	for _, decision := range []string{"a run started", "a run ended"} {
		require.True(t, said[decision], "%q was not logged", decision)
	}
}

// logs shows the end of every process's log, whose folder goes with the test.
func logs(t *testing.T, dir string) {
	t.Helper()
	const most = 4 << 10
	files, err := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		t.Logf("--- %s\n%s", filepath.Base(file), text[max(0, len(text)-most):])
	}
}

// TestChaos is `make chaos`, shorter.
func TestChaos(t *testing.T) {
	t.Parallel()
	r := short(t, options{runs: 24, shards: 2, faultTime: 7 * time.Second})
	require.NotEmpty(t, r.faults[kill], "nothing was killed")
}

// TestChaosCluster is `make chaos-cluster`, shorter.
func TestChaosCluster(t *testing.T) {
	t.Parallel()
	r := short(t, options{runs: 8, shards: 1, cluster: true, faultTime: 7 * time.Second})
	require.NotEmpty(t, r.faults[kill], "nothing was killed")
}

// The same seed gives the same runs and the same faults.
func TestSeedsRepeat(t *testing.T) {
	t.Parallel()
	o, began := options{runs: 40, seed: 5, pause: time.Second}, time.UnixMilli(1)
	require.Equal(t, newScenarios(o, began), newScenarios(o, began))
	one, two := newSchedule(o), newSchedule(o)
	for range 100 {
		require.Equal(t, one.next(), two.next())
	}
	other := o
	other.seed++
	require.NotEqual(t, newScenarios(o, began), newScenarios(other, began))
}

// Every kind of run, meddling and fault is drawn soon.
func TestTheMixHasEverything(t *testing.T) {
	t.Parallel()
	o := options{runs: 300, seed: 1, pause: time.Second, cluster: true}
	drawn := map[string]bool{}
	for _, p := range newScenarios(o, time.UnixMilli(1)) {
		drawn[p.kind], drawn[p.mode], drawn[fmt.Sprint("openai ", p.openai)], drawn[fmt.Sprint("fails ", p.fails)] = true, true, true, true
		for _, m := range p.meddling {
			drawn[m.kind] = true
		}
		for _, r := range p.replies {
			for _, c := range r.Calls {
				drawn[c.Name], drawn[p.verdict(c.ID).decision] = true, true
			}
		}
	}
	s := newSchedule(o)
	for range 300 {
		f := s.next()
		drawn[f.kind], drawn[fmt.Sprint("server ", f.server)], drawn[fmt.Sprint("leader ", f.leader)], drawn[fmt.Sprint("all ", f.all)] = true, true, true, true
		require.Positive(t, f.after)
	}
	for _, want := range slices.Concat(kinds, toolNames(), []string{
		"lonely", lonely, helper, deputy, lonePay, askHuman, pick, glance, "tally", "charge", "fork",
		"sing", "task", "chat", "openai true", "openai false", "fails true", "message", "pause", "cancel",
		"approved", "rejected", "modified", kill, stop, term, "server true", "server false", "leader true", "all true",
	}) {
		require.True(t, drawn[want], "%s is never drawn", want)
	}
}
