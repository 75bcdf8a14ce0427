package verify_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write goldens anew")

// corpus has recordings of runs, which are replayed for ever and never recorded anew.
// "moorebus export" makes new ones. A name says what replay finds: broken_ is a log that
// was changed, poison_ one with an illegal record, stray_ one with messages of no run, and
// everything else is right.
const (
	corpus     = "../../testdata/runs"
	recordings = 57
)

func machine() *reducer.Machine { return reducer.NewMachine(reducer.MachineOptions{}) }

func openFile(t testing.TB, path string) *filelog.File {
	t.Helper()
	f, err := filelog.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// writeFile stores records as an exported file.
func writeFile(t testing.TB, path string, records []journal.Record) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, filelog.Write(&b, func(yield func(journal.Record, error) bool) {
		for _, rec := range records {
			if !yield(rec, nil) {
				return
			}
		}
	}))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
}

// logOf stores records in a file of the test and opens it.
func logOf(t testing.TB, records []journal.Record) *filelog.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runs.jsonl")
	number(records)
	writeFile(t, path, records)
	return openFile(t, path)
}

// number gives records that were copied or taken out a sequence number of their
// own, as a log does.
func number(records []journal.Record) {
	for i := range records {
		if i > 0 && records[i].Seq == records[i-1].Seq {
			for j := i; j < len(records); j++ {
				records[j].Seq++
			}
		}
	}
}

// describe is a recording's golden: what replay prints of it, and what it finds.
func describe(t *testing.T, log *filelog.File) string {
	t.Helper()
	var b strings.Builder
	for _, run := range log.Runs() {
		require.NoError(t, runprint.Run(t.Context(), &b, log, machine(), run, runprint.Options{}))
	}
	report, err := verify.Log(t.Context(), log, machine(), verify.Options{All: true, Workers: 2})
	require.NoError(t, err)
	byName, err := verify.Log(t.Context(), log, machine(), verify.Options{Runs: log.Runs()})
	require.NoError(t, err)
	require.Equal(t, report.Outcomes, byName.Outcomes, "scanned and read by name")
	require.Equal(t, report.Findings, byName.Findings)
	report.Elapsed = 0
	b.WriteByte('\n')
	require.NoError(t, report.WriteText(&b))
	return b.String()
}

func TestCorpus(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(corpus, "*.jsonl"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(paths), recordings)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl")
		t.Run(name, func(t *testing.T) {
			got := describe(t, openFile(t, path))
			golden := filepath.Join(corpus, name+".golden")
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
			checkKind(t, name, got)
		})
	}
}

// checkKind holds a golden to its recording's name, so that -update cannot turn a
// broken run into a good one.
func checkKind(t *testing.T, name, got string) {
	t.Helper()
	bad := strings.Contains(got, "\ndiverged  run ")
	poisoned := strings.Contains(got, "\npoisoned  run ")
	require.Equal(t, strings.HasPrefix(name, "broken_"), bad, got)
	require.Equal(t, strings.HasPrefix(name, "poison_"), poisoned, got)
	require.Equal(t, strings.HasPrefix(name, "stray_"), strings.Contains(got, "\nstray  "), got)
}

// TestTampering changes every byte of a good recording in turn: whatever stays
// readable must be found at the changed event or the one after it.
func TestTampering(t *testing.T) {
	r := newRecorder(t, 1)
	good(r)
	last := len(r.records) - 1
	for i := range last {
		for at := 0; at < len(r.records[i].Body); at += 7 {
			records := slices.Clone(r.records)
			records[i].Body = slices.Clone(records[i].Body)
			records[i].Body[at] ^= 1
			report := verifyAll(t, records)
			require.Equal(t, 1, report.Outcomes[verify.Diverged], "event %d byte %d", i+1, at)
			found := report.Findings[0]
			require.Contains(t, []uint64{uint64(i + 1), uint64(i + 2)}, found.N, "event %d byte %d: %s", i+1, at, found.Reason)
			require.False(t, report.Clean())
		}
	}
}

// verifyAll verifies records that are in memory, by the file that they make.
func verifyAll(t testing.TB, records []journal.Record) *verify.Report {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runs.jsonl")
	writeFile(t, path, records)
	f, err := filelog.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	report, err := verify.Log(t.Context(), f, machine(), verify.Options{All: true})
	require.NoError(t, err)
	return report
}

// TestHugeRun verifies a run of 10,000 events and says how long it took.
func TestHugeRun(t *testing.T) {
	r := newRecorder(t, 1)
	r.start("Search for long", func(p *events.Start) { p.Agent.Config.MaxSteps = 10_000 })
	for i := range 3_333 {
		r.step(fmt.Sprintf("call_%d", i), "search", strings.Repeat("found ", 50))
	}
	report := verifyAll(t, r.records)
	require.Equal(t, 1, report.Outcomes[verify.Unfinished])
	require.True(t, report.Clean())
	t.Logf("%d events verified in %s, %.0f events/s", report.Events, report.Elapsed, report.EventsPerSecond())
}
