package verify_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/internal/runprint"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/replay"
)

// recorded is a log with one run.
func recorded(t *testing.T, k int, record func(*recorder)) (journal.Log, events.Run) {
	r := newRecorder(t, k)
	record(r)
	return logOf(t, r.records), r.run
}

func compare(t *testing.T, a, b func(*recorder)) *replay.Difference {
	t.Helper()
	logA, runA := recorded(t, 1, a)
	logB, runB := recorded(t, 2, b)
	d, err := replay.Diff(t.Context(), machine(), logA, runA, logB, runB)
	require.NoError(t, err)
	return d
}

func conversation(id, observation, final string) func(*recorder) {
	return func(r *recorder) {
		r.start("Search", nil)
		p := one(id, "search")
		p.Calls[0].Arguments = "{}"
		r.on(events.Planning, p)
		r.on(events.Acting, success(id, observation))
		r.on(events.Observing, &events.Continue{})
		if final != "" {
			r.on(events.Planning, answer(final))
		}
	}
}

func TestDiffIgnoresIds(t *testing.T) {
	d := compare(t, conversation("call_1", "found", "Here it is."), conversation("another", "found", "Here it is."))
	require.True(t, d.Equal, "%+v", d)
}

func TestDiffNamesTheFirstDifference(t *testing.T) {
	d := compare(t, conversation("call_1", "found", "Here it is."), conversation("another", "lost", "There it is."))
	require.False(t, d.Equal)
	require.Equal(t, uint64(3), d.N)
	require.Len(t, d.Event, 1)
	require.Equal(t, `data.observation: "SUCCESS: found" -> "SUCCESS: lost"`, d.Event[0].String())
	var paths []string
	for _, c := range d.Memory {
		paths = append(paths, c.Path)
	}
	require.Equal(t, []string{"last_observation", "tool_calls.#1.result.success.content"}, paths)
	var b bytes.Buffer
	require.NoError(t, runprint.Difference(&b, d))
	require.Contains(t, b.String(), "the runs differ at event 3\n  a: ToolSuccess, acting -> observing\n")
	require.NoError(t, print.WriteJSON(&b, d))
}

func TestDiffOfLength(t *testing.T) {
	d := compare(t, conversation("a", "found", ""), conversation("a", "found", "Here it is."))
	require.Equal(t, uint64(5), d.N)
	require.Nil(t, d.A)
	require.NotNil(t, d.B)
	var b bytes.Buffer
	require.NoError(t, runprint.Difference(&b, d))
	require.Contains(t, b.String(), "a: the run has no more events")
}

func TestDiffOfIllegalEvents(t *testing.T) {
	garbage := func(text string) func(*recorder) {
		return func(r *recorder) {
			r.start("Search", nil)
			r.append(r.subject(events.Planning, events.Acting), []byte(text))
		}
	}
	require.True(t, compare(t, garbage("same"), garbage("same")).Equal)
	require.Equal(t, uint64(2), compare(t, garbage("one"), garbage("another")).N)
	d := compare(t, garbage("one"), conversation("a", "found", ""))
	require.Equal(t, uint64(2), d.N)
	require.NotEmpty(t, d.A.Illegal)
}

func TestDiffOfNoRun(t *testing.T) {
	log, run := recorded(t, 1, good)
	missing := events.NewRun("default", runID(3), 1)
	_, err := replay.Diff(t.Context(), machine(), log, missing, log, run)
	require.ErrorIs(t, err, journal.ErrNotFound)
	_, err = replay.Diff(t.Context(), machine(), log, run, log, missing)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.ErrorContains(t, err, runID(3))
}
