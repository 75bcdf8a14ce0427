package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tiny are settings with which each benchmark takes a second or two. A benchmark
// without them has no test.
var tiny = map[string]string{
	"throughput": "--runs 3,5 --steps 2 --rounds 1",
	"durable":    "--runs 3 --at-once 2 --steps 2 --rounds 2 --engine-rounds 1 --shards 1,2",
	"latency":    "--runs 2 --steps 2 --rounds 1",
	"split":      "--runs 3 --at-once 2 --steps 2 --rounds 1 --fsync relaxed --floor-rounds 1",
	"long":       "--events 5,20 --total 1000 --rounds 1 --finished 50 --reads 5",
	"shards":     "--runs 3 --steps 2 --rounds 2 --shards 1,3",
	"views":      "--runs 300 --times 2",
}

// ownTests are the benchmarks with tests of their own, which know more of them.
var ownTests = map[string]bool{"http": true, "cost": true, "scale": true, "feed": true, "replay": true, "many": true}

// Every benchmark runs on real servers and processes, and what it shows are
// numbers that can be.
func TestEveryBenchmarkRuns(t *testing.T) {
	measures(t)
	for _, b := range suite() {
		if ownTests[b.name] {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			flags, known := tiny[b.name]
			require.True(t, known, "say in tiny with which settings it is short")
			if cmd := single(b, &options{}); cmd.Flags().Lookup("bin") != nil {
				flags += " --bin " + testBin
			}
			figures := run(t, append([]string{b.name}, strings.Fields(flags)...)...)
			require.NotEmpty(t, figures)
			for _, f := range figures {
				require.Equal(t, b.name, f.Bench)
				require.NotEmpty(t, f.What)
				require.GreaterOrEqual(t, f.Value, 0.0, f.What)
				if f.FloorIs != "" {
					require.Positive(t, f.Floor, f.What)
					require.InEpsilon(t, f.Value, f.Ratio*f.Floor, 1e-9, f.What)
				}
			}
		})
	}
}

// run runs the command and returns the figures that it printed as JSON.
func run(t *testing.T, args ...string) []figure {
	t.Helper()
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs(append(args, "-o", "json"))
	cmd.SetOut(&out)
	require.NoError(t, cmd.ExecuteContext(t.Context()))
	var figures []figure
	require.NoError(t, json.Unmarshal(out.Bytes(), &figures), out.String())
	return figures
}

// What does not depend on the machine holds here as well: one publish, one
// delivery and one ack for each transition, and no read.
func TestMessagesPerTransition(t *testing.T) {
	measures(t)
	t.Parallel()
	met := map[string]bool{}
	for _, f := range run(t, "cost", "--runs", "20", "--rounds", "1") {
		met[f.What] = f.Met
	}
	for _, what := range []string{string(publishes), string(deliveries), string(acks), warmReads} {
		require.True(t, met[what], what)
	}
}

// Alone, since it measures the process: the CPU of a transition stays near that of a bare one. Other work
// on the machine can only add to it, so one sitting of a few within the bound is enough.
func TestCPUPerTransition(t *testing.T) {
	measures(t)
	var f figure
	for range 5 {
		figures, _, err := cost(t.Context(), terms{slots: defaultSlots}, 100, 10)
		require.NoError(t, err)
		at := slices.IndexFunc(figures, func(f figure) bool { return f.What == computed })
		require.GreaterOrEqual(t, at, 0)
		f = figures[at]
		t.Logf("%.0f µs, %.1f of the bare loop's", f.Value, f.Ratio)
		require.Positive(t, f.Value)
		if f.Met {
			return
		}
	}
	t.Errorf("%.1f of the bare loop's: %s", f.Ratio, f.verdict())
}

func TestProfile(t *testing.T) {
	measures(t)
	path := filepath.Join(t.TempDir(), "cpu.out")
	run(t, "throughput", "--runs", "2", "--steps", "1", "--rounds", "1", "--cpuprofile", path)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Positive(t, info.Size())
}

func TestBadSettings(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"throughput --runs 0":              "at least 1",
		"throughput --rounds 0":            "at least 1",
		"durable --shards 0":               "at least 1",
		"latency --runs 0":                 "at least 1",
		"shards --shards 0":                "at least 1",
		"cost --slots 0":                   "at least 1",
		"split --layout both":              `dev or split, not "both"`,
		"long --events 0":                  "at least 1",
		"http --model none":                `scripted or openai, not "none"`,
		"http --warm-up=-1":                "at least 0",
		"throughput -o yaml":               `table or json, not "yaml"`,
		"cost --cpuprofile /nowhere/there": "no such file",
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		require.ErrorContains(t, cmd.ExecuteContext(t.Context()), says, args)
	}
}
