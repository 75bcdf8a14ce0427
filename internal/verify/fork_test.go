package verify_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/bench/foldbench"
	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/replay"
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

func verifyLog(t *testing.T, log journal.Log) *verify.Report {
	t.Helper()
	report, err := verify.Log(t.Context(), log, machine(), verify.Options{All: true, Workers: 2})
	require.NoError(t, err)
	return report
}

func TestForksAreVerified(t *testing.T) {
	parent, fork, second := forkedRuns(t)
	// The forks stand before what they were forked from.
	log := logOf(t, renumbered(second.own(), fork.own(), parent.own()))
	report := verifyLog(t, log)
	require.Empty(t, report.Findings)
	require.Equal(t, 3, report.Outcomes[verify.Done])
	require.True(t, report.Clean())

	t.Run("orphans", func(t *testing.T) {
		report := verifyLog(t, logOf(t, renumbered(parent.own(), second.own())))
		require.Equal(t, 1, report.Outcomes[verify.Orphaned])
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
		require.Equal(t, 1, report.Outcomes[verify.Diverged], "the fork went on from what is not there")
		require.Contains(t, report.Findings[0].Reason, "the hashes differ")
		require.False(t, report.Clean())
	})
}

func TestForksArePrintedAndCompared(t *testing.T) {
	parent, fork, second := forkedRuns(t)
	log := logOf(t, renumbered(parent.own(), fork.own(), second.own()))
	var b bytes.Buffer
	require.NoError(t, runprint.Run(t.Context(), &b, log, machine(), second.run, runprint.Options{State: true}))
	require.Contains(t, b.String(), "idle → planning")
	require.Contains(t, b.String(), "from event 2 of "+fork.run.ID)
	require.Contains(t, b.String(), `"final_answer": "Forked twice."`)
	d, err := replay.Diff(t.Context(), machine(), log, fork.run, log, second.run)
	require.NoError(t, err)
	require.Equal(t, &replay.Common{Run: fork.run.ID, N: 2}, d.Common)
	require.Equal(t, uint64(5), d.N, "three events of the first run, one of the fork's, and this one")
	d, err = replay.Diff(t.Context(), machine(), log, fork.run, log, fork.run)
	require.NoError(t, err)
	require.True(t, d.Equal)

	orphans := logOf(t, renumbered(second.own()))
	var gone *runlog.ParentGoneError
	require.ErrorAs(t, runprint.Run(t.Context(), &b, orphans, machine(), second.run, runprint.Options{}), &gone)
	_, err = replay.Diff(t.Context(), machine(), orphans, second.run, orphans, second.run)
	require.ErrorAs(t, err, &gone)
	_, err = replay.Model(t.Context(), orphans, machine(), second.run)
	require.ErrorAs(t, err, &gone)
}

func TestAForksRepliesBeginWithItsParents(t *testing.T) {
	parent, fork, second := forkedRuns(t)
	log := logOf(t, renumbered(parent.own(), fork.own(), second.own()))
	said := replies(t, log, second.run)
	require.Len(t, said, second.mem.Control.Replies)
	_, calls := said[0].(llm.ToolCalls)
	require.True(t, calls, "the first one is the parent's")
	require.Equal(t, "Forked twice.", said[len(said)-1].(llm.Text).Content)
}

func TestForksAreFoldedByTheBenchmark(t *testing.T) {
	parent, fork, second := forkedRuns(t)
	measures, err := foldbench.Run(t.Context(), logOf(t, renumbered(parent.own(), fork.own(), second.own())), machine(),
		foldbench.Options{Least: time.Millisecond, Workers: 1})
	require.NoError(t, err)
	for _, m := range measures {
		require.Positive(t, m.Events, m.What)
	}
	_, err = foldbench.Run(t.Context(), logOf(t, renumbered(second.own(), parent.own())), machine(), foldbench.Options{Least: time.Millisecond, Workers: 1})
	require.NoError(t, err, "what lacks its parent is left out")
}

func diff(t *testing.T, log journal.Log, a, b *recorder) (*replay.Difference, string) {
	t.Helper()
	d, err := replay.Diff(t.Context(), machine(), log, a.run, log, b.run)
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, runprint.Difference(&text, d))
	return d, text.String()
}

func paths(changes []replay.Change) []string {
	all := []string{}
	for _, c := range changes {
		all = append(all, c.Path)
	}
	return all
}

// A run and a fork of it part where the fork goes on differently, and nothing that
// only a fork's beginning brings is a difference.
func TestDiffAlignsAForkWithItsParent(t *testing.T) {
	parent := newRecorder(t, 1)
	parent.start("Search", nil)
	parent.on(events.Planning, one("c1", "pay"))
	parent.on(events.Acting, &events.ToolCallStarted{CallID: "c1"})
	parent.on(events.Acting, success("c1", "paid"))
	parent.on(events.Observing, &events.Continue{})
	parent.on(events.Planning, answer("It is paid."))

	same := newRecorder(t, 2)
	same.fork(parent, 3, nil) // the call that had begun begins once more
	same.on(events.Acting, &events.ToolCallStarted{CallID: "c1"})
	same.on(events.Acting, success("c1", "paid"))
	same.on(events.Observing, &events.Continue{})
	other := newRecorder(t, 3)
	other.fork(parent, 3, nil)
	other.on(events.Acting, &events.ToolCallStarted{CallID: "c1"})
	other.on(events.Acting, success("c1", "paid twice"))
	same.on(events.Planning, answer("It is paid."))
	log := logOf(t, renumbered(parent.own(), same.own(), other.own()))

	d, text := diff(t, log, parent, same)
	require.True(t, d.Equal, text)
	require.Equal(t, "b is a fork of run "+parent.run.ID+" at event 3\nthey have run "+parent.run.ID+" up to event 3 in common\ntheir events after that do not differ\n", text)

	d, text = diff(t, log, other, parent)
	require.Equal(t, &replay.Fork{Run: parent.run.ID, At: 3}, d.ForkA)
	require.Equal(t, uint64(4), d.N)
	require.Contains(t, text, "the runs differ at event 3 of a, which is event 4 of b\n  a: ToolSuccess, acting -> observing\n")
	require.Equal(t, []string{"data.observation"}, paths(d.Event))
	require.Equal(t, []string{"last_observation", "tool_calls.#1.result.success.content"}, paths(d.Memory))

	d, text = diff(t, log, same, other)
	require.Equal(t, &replay.Common{Run: parent.run.ID, N: 3}, d.Common)
	require.Contains(t, text, "the runs differ at event 3\n")
	require.NotNil(t, d.ForkB)
	var b bytes.Buffer
	require.NoError(t, print.WriteJSON(&b, d))
	require.Contains(t, b.String(), `"fork_b": {`)
}

// Two forks of one run have in common what both have of it.
func TestDiffAlignsForksOfOneRun(t *testing.T) {
	parent := newRecorder(t, 1)
	parent.start("Search", nil)
	parent.step("c1", "search", "found")
	parent.step("c2", "search", "found more")
	early := newRecorder(t, 2)
	early.fork(parent, 4, func(p *events.Forked) { p.Patch = []byte(`{"task":"Another."}`); p.Task = "Another." })
	late := newRecorder(t, 3)
	late.fork(parent, 6, nil)
	log := logOf(t, renumbered(parent.own(), early.own(), late.own()))
	d, text := diff(t, log, late, early)
	require.Equal(t, &replay.Common{Run: parent.run.ID, N: 4}, d.Common)
	require.Equal(t, uint64(5), d.N)
	require.Nil(t, d.B)
	require.Contains(t, text, "a is a fork of run "+parent.run.ID+" at event 6\nb is a fork of run "+parent.run.ID+` at event 4, with the patch {"task":"Another."}`+"\n")
	require.Contains(t, text, "the runs differ at event 5\n")
	require.Contains(t, text, "b: the run has no more events\n")
}

func TestDiffOfOneRun(t *testing.T) {
	parent, fork, _ := forkedRuns(t)
	log := logOf(t, renumbered(parent.own(), fork.own()))
	d, text := diff(t, log, fork, fork)
	require.True(t, d.Equal)
	require.Nil(t, d.Common, text)
}
