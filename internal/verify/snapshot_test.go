package verify_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
)

func TestStoredSnapshotsAreHeldToTheFold(t *testing.T) {
	bench := workertest.New(t, simtest.Options{Shards: 2}, nil)
	var runs []events.Run
	for range 3 {
		id := bench.Start(reducertest.StartOf("find it", events.ModeTask))
		runs = append(runs, id)
		for _, m := range []string{"a", "b"} {
			bench.Append(id, events.Control, &events.UserMessage{MessageID: m, Content: m})
		}
	}
	take := func(id events.Run, spoil func(*ports.Snapshot)) {
		run := bench.Store.Acquire(id)
		defer bench.Store.Release(run)
		run.Lock()
		defer run.Unlock()
		s, err := run.Snapshot()
		require.NoError(t, err)
		spoil(&s)
		require.NoError(t, bench.Journal.PutSnapshot(t.Context(), id, s))
	}
	check := func(o verify.Options) *verify.Report {
		o.Snapshots = bench.Journal
		report, err := verify.Log(t.Context(), bench.Journal, bench.Machine, o)
		require.NoError(t, err)
		return report
	}
	forge := func(s *ports.Snapshot) {
		s.Memory = json.RawMessage(strings.Replace(string(s.Memory), `"task":"find it"`, `"task":"lose it"`, 1))
	}
	take(runs[0], func(*ports.Snapshot) {})
	take(runs[1], func(s *ports.Snapshot) { s.Fold = "0/x"; forge(s) })
	bench.Append(runs[0], events.Control, &events.UserMessage{MessageID: "c", Content: "c"})
	require.True(t, check(verify.Options{All: true}).Clean(), "a true one, and one that nobody uses")

	take(runs[2], forge)
	bench.Append(runs[2], events.Control, &events.CancelledRun{})
	for _, o := range []verify.Options{{All: true}, {Runs: runs}} {
		report := check(o)
		require.False(t, report.Clean())
		require.Len(t, report.Findings, 1)
		require.Equal(t, runs[2].ID, report.Findings[0].Run)
		require.Equal(t, verify.Diverged, report.Findings[0].Outcome)
		require.Equal(t, `the stored snapshot of event 3 is another memory: task: "find it" -> "lose it"`, report.Findings[0].Reason)
	}
	require.True(t, check(verify.Options{Runs: runs[:2]}).Clean())
}
