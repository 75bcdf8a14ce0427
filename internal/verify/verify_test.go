package verify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/bench/foldbench"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/verify"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// goodLog is a log of one good run.
func goodLog(t *testing.T) journal.Log {
	r := newRecorder(t, 1)
	good(r)
	return logOf(t, r.records)
}

// withFold is a machine whose fold of a type does something more.
func withFold(typ events.Type, fold reducer.Fold) *reducer.Machine {
	return reducer.NewMachine(reducer.MachineOptions{Folds: map[events.Type]reducer.Fold{typ: fold}})
}

func TestOwnershipIsHeldTo(t *testing.T) {
	log := goodLog(t)
	text := "x"
	for name, c := range map[string]struct {
		on   events.Type
		fold reducer.Fold
		n    uint64
		want string
	}{
		"step": {events.TypeContinue, func(m *reducer.Memory, _ *events.Event) { m.Step++ }, 4, "Continue writes step, which Observing may not do"},
		"step goes back": {events.TypeLLMFinalAnswer, func(m *reducer.Memory, _ *events.Event) { m.Step = 0 }, 5,
			"LlmFinalAnswer clears step, which Planning may not do"},
		"call": {events.TypeToolSuccess, func(m *reducer.Memory, _ *events.Event) { m.CurrentToolCall = nil }, 3,
			"ToolSuccess clears current_tool_call, which Acting may not do"},
		"observation": {events.TypeLLMToolCall, func(m *reducer.Memory, _ *events.Event) { m.LastObservation = &text }, 2,
			"LlmToolCall writes last_observation, which Planning may not do"},
		"answer": {events.TypeToolSuccess, func(m *reducer.Memory, _ *events.Event) { m.FinalAnswer = &text }, 3,
			"ToolSuccess writes final_answer, which Acting may not do"},
		"error": {events.TypeContinue, func(m *reducer.Memory, _ *events.Event) { m.Error = &reducer.RunError{} }, 4,
			"Continue writes error, which Observing may not do"},
		"history": {events.TypeLLMFinalAnswer, func(m *reducer.Memory, _ *events.Event) { m.History = nil }, 5,
			"LlmFinalAnswer replaces history, which Planning may not do"},
		"history in place": {events.TypeLLMFinalAnswer, func(m *reducer.Memory, _ *events.Event) { m.History[0].Code = "changed" }, 5,
			"LlmFinalAnswer replaces history, which Planning may not do"},
		"trace": {events.TypeContinue, func(m *reducer.Memory, _ *events.Event) { m.Trace = nil }, 4,
			"Continue replaces trace, which Observing may not do"},
		"trace twice": {events.TypeContinue, func(m *reducer.Memory, _ *events.Event) { m.Trace = append(m.Trace, reducer.TraceEntry{}) }, 4,
			"Continue adds 2 entries to trace, every event adds one"},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := verify.Log(t.Context(), log, withFold(c.on, c.fold), verify.Options{All: true})
			require.NoError(t, err)
			require.False(t, report.Clean())
			require.Len(t, report.Findings, 1)
			require.Equal(t, c.n, report.Findings[0].N)
			require.Equal(t, c.on, report.Findings[0].Type)
			require.Equal(t, c.want, report.Findings[0].Reason)
			require.Equal(t, verify.Diverged, report.Findings[0].Outcome)
		})
	}
}

func TestSnapshotsAreHeldTo(t *testing.T) {
	// What is not in the memory's JSON does not survive a snapshot.
	hidden := 0
	leaky := withFold(events.TypeLLMFinalAnswer, func(m *reducer.Memory, _ *events.Event) {
		hidden++
		m.Custom = map[string]json.RawMessage{"count": json.RawMessage(strings.Repeat("1", hidden))}
	})
	report, err := verify.Log(t.Context(), goodLog(t), leaky, verify.Options{All: true})
	require.NoError(t, err)
	require.Len(t, report.Findings, 1)
	require.Equal(t, "the fold through a snapshot at event 4 gives another memory: custom.count: 1 -> 11", report.Findings[0].Reason)
	require.Equal(t, uint64(5), report.Findings[0].N)
}

func TestStrict(t *testing.T) {
	r := newRecorder(t, 1)
	r.start("Search", nil)
	r.append(r.subject(events.Planning, events.Acting), []byte("garbage"))
	r.end()
	log := logOf(t, r.records)
	for _, strict := range []bool{false, true} {
		report, err := verify.Log(t.Context(), log, machine(), verify.Options{All: true, Strict: strict})
		require.NoError(t, err)
		require.Equal(t, 1, report.Outcomes[verify.Poisoned])
		require.Equal(t, !strict, report.Clean())
	}
}

func TestVerifyOptions(t *testing.T) {
	log := goodLog(t)
	run := events.NewRun("default", runID(1), 1)
	_, err := verify.Log(t.Context(), log, machine(), verify.Options{})
	require.ErrorContains(t, err, "name runs, or ask for all")
	_, err = verify.Log(t.Context(), log, machine(), verify.Options{All: true, Runs: []events.Run{run}})
	require.ErrorContains(t, err, "but not both")
	_, err = verify.Log(t.Context(), log, machine(), verify.Options{Runs: []events.Run{run, events.NewRun("default", runID(2), 1)}})
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.ErrorContains(t, err, runID(2))
	report, err := verify.Log(t.Context(), log, machine(), verify.Options{All: true, Namespace: "other"})
	require.NoError(t, err)
	require.Zero(t, report.Runs)
}

// manyRuns is a log with shards whose runs are interleaved.
func manyRuns(t testing.TB, shards, runs int) journal.Log {
	log := simtest.New(simtest.Options{Shards: shards})
	var recorders []*recorder
	longest := 0
	for k := range runs {
		r := newRecorder(t, k+1)
		r.run.Shard = events.ShardOf(r.run.ID, shards)
		r.start("Search", nil)
		for i := range k % 5 {
			r.step(fmt.Sprint("call_", i), "search", "found")
		}
		switch k % 3 {
		case 0:
			r.on(events.Planning, answer("It was found."))
		case 1:
			r.on(events.Control, &events.CancelledRun{})
		}
		recorders = append(recorders, r)
		longest = max(longest, len(r.records))
	}
	last := map[string]uint64{}
	for i := range longest {
		for _, r := range recorders {
			if i >= len(r.records) {
				continue
			}
			s, err := events.ParseSubject(r.records[i].Subject)
			require.NoError(t, err)
			last[r.run.ID], err = log.Append(t.Context(), r.run, last[r.run.ID], journal.Entry{Subject: s, Body: r.records[i].Body})
			require.NoError(t, err)
		}
	}
	return log
}

func TestAllShardsAndWorkers(t *testing.T) {
	const runs = 200
	log := manyRuns(t, 3, runs)
	var first *verify.Report
	for _, workers := range []int{1, 2, 7} {
		report, err := verify.Log(t.Context(), log, machine(), verify.Options{All: true, Workers: workers})
		require.NoError(t, err)
		require.Equal(t, runs, report.Runs)
		require.True(t, report.Clean())
		require.Empty(t, report.Findings)
		require.NotZero(t, report.Elapsed)
		report.Elapsed = 0
		if first == nil {
			first = report
		}
		require.Equal(t, first, report)
	}
}

// failing is a log whose scan fails after some records.
type failing struct {
	journal.Log
	after int
	err   error
}

func (f failing) Scan(ctx context.Context, shard int, filter journal.Filter, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		n := 0
		for rec, err := range f.Log.Scan(ctx, shard, filter, after) {
			if n++; n > f.after {
				yield(journal.Record{}, f.err)
				return
			}
			if !yield(rec, err) {
				return
			}
		}
	}
}

func TestErrorsOfTheLogEndIt(t *testing.T) {
	log := manyRuns(t, 3, 50)
	_, err := verify.Log(t.Context(), failing{log, 100, journal.ErrNotReady}, machine(), verify.Options{All: true})
	require.ErrorIs(t, err, journal.ErrNotReady)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = verify.Log(ctx, log, machine(), verify.Options{All: true})
	require.ErrorIs(t, err, context.Canceled)
	_, err = foldbench.Run(t.Context(), failing{log, 100, journal.ErrNotReady}, machine(), foldbench.Options{})
	require.ErrorIs(t, err, journal.ErrNotReady)
}
