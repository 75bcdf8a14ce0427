package record_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/filelog"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// follower applies the patches of a run's memory to what the memory was.
type follower struct {
	t    rapid.TB
	mem  *reducer.Memory
	d    *record.Differ
	text []byte
}

func follow(t rapid.TB, mem *reducer.Memory) *follower {
	d, err := record.NewDiffer(mem)
	require.NoError(t, err)
	return &follower{t, mem, d, []byte(reducertest.Canonical(mem))}
}

// next holds that the patch leads to what the memory is now.
func (f *follower) next() {
	ops, err := f.d.Next(f.mem)
	require.NoError(f.t, err)
	f.text = patched(f.t, f.text, ops)
	require.JSONEq(f.t, reducertest.Canonical(f.mem), string(f.text), "event %d: %v", f.mem.N, ops)
}

// TestPatches: the patches of any legal run, and of a fork of it, give its memory after every
// event.
func TestPatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run := reducertest.NewRun(nil)
		extend(t, run, rapid.IntRange(2, 40).Draw(t, "events"))
		if at := uint64(rapid.IntRange(1, len(run.Records)).Draw(t, "at")); rapid.Bool().Draw(t, "fork") {
			fork, err := run.Fork(at, events.Forked{})
			if err == nil {
				extend(t, fork, 10)
			}
		}
	})
}

// extend appends events to a run and follows them.
func extend(t *rapid.T, run *reducertest.Run, n int) {
	var f *follower
	for range n {
		next := reducertest.Next(t, run)
		if next.Payload == nil {
			return
		}
		if f == nil && run.Mem.N > 0 {
			f = follow(t, run.Mem)
		}
		_, _, err := run.Append(next.Origin, next.Payload)
		require.NoError(t, err)
		if f != nil {
			f.next()
		}
	}
}

// readerOf returns a Reader of a log, and access to it.
func readerOf(log journal.Log) (*record.Reader, *runs.Editor) {
	store := runlog.New(runlog.Options{Log: log})
	a := &runs.Editor{Store: store, Log: log, Table: store.Machine().Table(), Namespace: events.DefaultNamespace}
	return record.New(a, list.New(a, nil)), a
}

// TestGoldenStates: applied one after another to the first line, the patches of the golden runs
// give what GET /v1/runs/{id}?at=N shows, of poisoned runs and forks too.
func TestGoldenStates(t *testing.T) {
	files, err := filepath.Glob("../../../testdata/runs/*.jsonl")
	require.NoError(t, err)
	shown := 0
	for _, name := range files {
		log, err := filelog.Open(name)
		require.NoError(t, err)
		reader, a := readerOf(log)
		for _, run := range log.Runs() {
			states, err := reader.States(t.Context(), run.Namespace, run.ID, 1, 0)
			require.NoError(t, err)
			var memory []byte
			for now, err := range states {
				if err != nil {
					require.Nil(t, memory) // runs of another table, and forks whose parents are not there
					break
				}
				if now.Delta == nil {
					require.Nil(t, memory)
					memory = now.Memory
				} else {
					memory = patched(t, memory, now.Delta)
				}
				want, err := a.State(t.Context(), run.Namespace, run.ID, now.N)
				require.NoError(t, err)
				require.JSONEq(t, string(want.Memory), string(memory), "%s: event %d", name, now.N)
				shown++
			}
		}
		require.NoError(t, log.Close())
	}
	require.Greater(t, shown, 100)
}

func patched(t rapid.TB, memory []byte, ops []record.Op) []byte {
	text, err := json.Marshal(ops)
	require.NoError(t, err)
	patch, err := jsonpatch.DecodePatch(text)
	require.NoError(t, err)
	memory, err = patch.Apply(memory)
	require.NoError(t, err, "%s", text)
	return memory
}

// loop is a run of about n events that calls a tool again and again.
func loop(t testing.TB, n int) *reducertest.Run {
	run := reducertest.NewRun(nil)
	start := reducertest.StartOf("find it", events.ModeTask)
	start.Agent.Config.MaxSteps = n
	add := func(p events.Payload) {
		origin := run.Mem.State
		_, _, err := run.Append(origin, p)
		require.NoError(t, err)
	}
	add(start)
	for i := 0; run.Mem.N+3 <= uint64(n); i++ {
		id := fmt.Sprint("call_", i)
		add(&events.LLMToolCall{ToolCallReply: events.ToolCallReply{Calls: []events.Call{{ID: id, Name: "alpha", Arguments: `{"q":"x"}`}}, Confidence: 1, Model: "m", Usage: events.Usage{Input: 10, Output: 5, Total: 15}}})
		add(&events.ToolSuccess{Outcome: &events.ToolOutcome{CallID: id, Success: true, Observation: `SUCCESS: {"flight":"HAT001","price":120.5}`, Code: "ok"}})
		add(&events.Continue{})
	}
	return run
}

// BenchmarkStates makes the lines of runs of 1,282 and 10,007 events.
func BenchmarkStates(b *testing.B) {
	for _, n := range []int{1282, 10007} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { statesOf(b, loop(b, n)) })
	}
}

func statesOf(b *testing.B, run *reducertest.Run) {
	log := simtest.New(simtest.Options{})
	for i, rec := range run.Records {
		subject, err := events.ParseSubject(rec.Subject)
		require.NoError(b, err)
		_, err = log.Append(b.Context(), run.ID, uint64(i), journal.Entry{Subject: subject, Body: rec.Body})
		require.NoError(b, err)
	}
	reader, _ := readerOf(log)
	lines, bytes, zipped := 0, 0, new(bytes.Buffer)
	for b.Loop() {
		lines, bytes = 0, 0
		zipped.Reset()
		zip, _ := gzip.NewWriterLevel(zipped, gzip.BestSpeed)
		states, err := reader.States(b.Context(), "", run.ID.ID, 1, 0)
		require.NoError(b, err)
		for now, err := range states {
			require.NoError(b, err)
			line, err := json.Marshal(now)
			require.NoError(b, err)
			lines, bytes = lines+1, bytes+len(line)+1
			_, _ = zip.Write(append(line, '\n'))
		}
		require.NoError(b, zip.Close())
	}
	b.ReportMetric(float64(lines), "events")
	b.ReportMetric(float64(bytes), "bytes")
	b.ReportMetric(float64(zipped.Len()), "gzipped-bytes")
}
