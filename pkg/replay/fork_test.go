package replay_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/replay"
	"github.com/moorebus/moorebus/pkg/runlog"
)

// renumbered puts records into one shard, in the order in which they are given.
func renumbered(runs ...[]journal.Record) []journal.Record {
	all := slices.Concat(runs...)
	for i := range all {
		all[i].Seq = uint64(i + 1)
	}
	return all
}

// forkedRuns are a run, a fork of it and a fork of that.
func forkedRuns(t *testing.T) (parent, fork, second *recorder) {
	parent = newRecorder(t, 1)
	good(parent)
	fork = newRecorder(t, 2)
	fork.fork(parent, 3, nil)
	fork.on(events.Observing, &events.Continue{})
	fork.step("again", "search", "more")
	fork.on(events.Planning, answer("Forked."))
	second = newRecorder(t, 3)
	second.fork(fork, 2, nil)
	second.on(events.Planning, answer("Forked twice."))
	return parent, fork, second
}

func verifyLog(t *testing.T, log journal.Log) *replay.Report {
	t.Helper()
	report, err := replay.Verify(t.Context(), log, machine(), replay.VerifyOptions{All: true, Workers: 2})
	require.NoError(t, err)
	return report
}

func TestForksAreVerified(t *testing.T) {
	parent, fork, second := forkedRuns(t)
	// The forks stand before what they were forked from.
	log := logOf(t, renumbered(second.own(), fork.own(), parent.own()))
	report := verifyLog(t, log)
	require.Empty(t, report.Findings)
	require.Equal(t, 3, report.Outcomes[replay.Done])
	require.True(t, report.Clean())

	t.Run("orphans", func(t *testing.T) {
		report := verifyLog(t, logOf(t, renumbered(parent.own(), second.own())))
		require.Equal(t, 1, report.Outcomes[replay.Orphaned])
		require.Contains(t, report.Findings[0].Reason, "was forked from "+fork.run.ID+", which is gone")
		require.Equal(t, uint64(1), report.Findings[0].N)
		require.False(t, report.Clean())
		var b bytes.Buffer
		require.NoError(t, report.WriteText(&b))
		require.Contains(t, b.String(), "1 orphaned")
	})
	t.Run("another parent", func(t *testing.T) {
		other := newRecorder(t, 1)
		other.start("another task", nil)
		other.step("a", "search", "b")
		other.step("c", "search", "d")
		report := verifyLog(t, logOf(t, renumbered(other.own(), fork.own())))
		require.Equal(t, 1, report.Outcomes[replay.Diverged], "the fork went on from what is not there")
		require.Contains(t, report.Findings[0].Reason, "the hashes differ")
		require.False(t, report.Clean())
	})
}

func TestForksArePrintedAndCompared(t *testing.T) {
	parent, fork, second := forkedRuns(t)
	log := logOf(t, renumbered(parent.own(), fork.own(), second.own()))
	var b bytes.Buffer
	require.NoError(t, replay.Print(t.Context(), &b, log, machine(), second.run, replay.PrintOptions{State: true}))
	require.Contains(t, b.String(), "idle -> planning")
	require.Contains(t, b.String(), "forked from "+fork.run.ID+" at 2")
	require.Contains(t, b.String(), `"final_answer": "Forked twice."`)
	d, err := replay.Diff(t.Context(), machine(), log, fork.run, log, second.run)
	require.NoError(t, err)
	require.Equal(t, uint64(1), d.N, "they begin elsewhere")
	d, err = replay.Diff(t.Context(), machine(), log, fork.run, log, fork.run)
	require.NoError(t, err)
	require.True(t, d.Equal)

	orphans := logOf(t, renumbered(second.own()))
	var gone *runlog.ParentGoneError
	require.ErrorAs(t, replay.Print(t.Context(), &b, orphans, machine(), second.run, replay.PrintOptions{}), &gone)
	_, err = replay.Diff(t.Context(), machine(), orphans, second.run, orphans, second.run)
	require.ErrorAs(t, err, &gone)
	_, err = replay.Replies(t.Context(), orphans, machine(), second.run)
	require.ErrorAs(t, err, &gone)
}

func TestAForksRepliesBeginWithItsParents(t *testing.T) {
	parent, fork, second := forkedRuns(t)
	log := logOf(t, renumbered(parent.own(), fork.own(), second.own()))
	replies, err := replay.Replies(t.Context(), log, machine(), second.run)
	require.NoError(t, err)
	require.Len(t, replies, second.mem.Control.Replies)
	_, calls := replies[0].Response.(llm.ToolCalls)
	require.True(t, calls, "the first one is the parent's")
	require.Equal(t, "Forked twice.", replies[len(replies)-1].Response.(llm.Text).Content)
}

func TestForksAreFoldedByTheBenchmark(t *testing.T) {
	parent, fork, second := forkedRuns(t)
	measures, err := replay.Bench(t.Context(), logOf(t, renumbered(parent.own(), fork.own(), second.own())), machine(),
		replay.BenchOptions{Least: time.Millisecond, Workers: 1})
	require.NoError(t, err)
	for _, m := range measures {
		require.Positive(t, m.Events, m.What)
	}
	_, err = replay.Bench(t.Context(), logOf(t, renumbered(second.own(), parent.own())), machine(), replay.BenchOptions{Least: time.Millisecond, Workers: 1})
	require.NoError(t, err, "what lacks its parent is left out")
}
