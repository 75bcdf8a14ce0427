package runlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker/workertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// counted is a log that counts the records that were read.
type counted struct {
	journal.Log
	records int
}

func (c *counted) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		for rec, err := range c.Log.Read(ctx, run, after) {
			c.records++
			if !yield(rec, err) {
				return
			}
		}
	}
}

// longRun is a run of n events.
func longRun(bench *workertest.Bench, n int) events.Run {
	id := bench.Start(start())
	for i := 1; i < n; i++ {
		bench.Append(id, events.Control, message(fmt.Sprint(i)))
	}
	return id
}

// take stores a snapshot of the run as it is.
func take(t *testing.T, bench *workertest.Bench, id events.Run) ports.Snapshot {
	t.Helper()
	run := bench.Store.Acquire(id)
	defer bench.Store.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(t, run.Refresh(t.Context()))
	s, err := run.Snapshot()
	require.NoError(t, err)
	require.NoError(t, bench.Journal.PutSnapshot(t.Context(), id, s))
	return s
}

// load reads the run into a new store. It returns the memory, how many records
// were read, and what was logged.
func load(t *testing.T, log journal.Log, snapshots ports.Snapshots, id events.Run, read func(*runlog.Run) error) (string, int, string) {
	t.Helper()
	reads, said := &counted{Log: log}, &bytes.Buffer{}
	store := runlog.New(runlog.Options{Log: reads, Snapshots: snapshots, Logger: slog.New(slog.NewTextHandler(said, nil))})
	run := store.Acquire(id)
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	require.NoError(t, read(run))
	return reducertest.Canonical(run.Memory()), reads.records, said.String()
}

func TestSnapshotSavesReading(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := longRun(bench, 100)
	take(t, bench, id)
	for range 3 {
		bench.Append(id, events.Control, message(bench.Store.NewID()))
	}
	want := reducertest.Canonical(bench.Memory(id))
	refresh := func(r *runlog.Run) error { return r.Refresh(t.Context()) }

	got, records, said := load(t, bench.Journal, bench.Journal, id, refresh)
	require.Equal(t, want, got)
	require.Equal(t, 4, records, "the record that it stands on, and the tail")
	require.Empty(t, said)

	got, records, _ = load(t, bench.Journal, nil, id, refresh)
	require.Equal(t, want, got)
	require.Equal(t, 103, records)

	last := bench.Records(id)[102]
	got, records, _ = load(t, bench.Journal, bench.Journal, id, func(r *runlog.Run) error {
		_, err := r.Extend(t.Context(), last)
		return err
	})
	require.Equal(t, want, got)
	require.Equal(t, 4, records, "a delivery goes on from it too")

	// The run goes on from there like any other.
	store := runlog.New(runlog.Options{Log: bench.Journal, Snapshots: bench.Journal})
	r := open(t, store, id)
	ok, err := r.Commit(t.Context(), stamp, appending(message("on")))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, reducertest.Canonical(bench.Memory(id)), reducertest.Canonical(r.Memory()))
}

// What builds of an earlier revision made of a run is what this build makes of it, if the
// memory has the same shape. Then an upgrade does not read every run from its beginning.
func TestSnapshotOfAnEarlierRevision(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := longRun(bench, 60)
	s := take(t, bench, id)
	s.Fold = "8/3dd1c101c1c673e47179700868837ffeb36991c03da1e760040feaea99211bcf"
	got, records, said := load(t, bench.Journal, fixed{bench.Journal, s}, id, func(r *runlog.Run) error { return r.Refresh(t.Context()) })
	require.Equal(t, reducertest.Canonical(bench.Memory(id)), got)
	require.Equal(t, 1, records, "the record that it stands on")
	require.Empty(t, said)
}

// Whoever delivers one of a run's first events is not asked for a snapshot.
func TestShortRunsHaveNoSnapshot(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := longRun(bench, 3)
	_, records, said := load(t, bench.Journal, failing{bench.Journal}, id, func(r *runlog.Run) error {
		_, err := r.Extend(t.Context(), bench.Records(id)[2])
		return err
	})
	require.Equal(t, 3, records)
	require.Empty(t, said)
}

// failing are snapshots that cannot be read.
type failing struct{ ports.Snapshots }

func (failing) Snapshot(context.Context, events.Run) (ports.Snapshot, error) {
	return ports.Snapshot{}, errors.New("the digest is wrong")
}

func TestBadSnapshotsAreIgnored(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*ports.Snapshot)
		said  string
	}{
		"of another fold":  {func(s *ports.Snapshot) { s.Fold = "0/x" }, "it was made by fold"},
		"no memory":        {func(s *ports.Snapshot) { s.Memory = json.RawMessage(`"text"`) }, "its memory cannot be read"},
		"another event":    {func(s *ports.Snapshot) { s.N++ }, "does not belong to the event that it names"},
		"another run":      {func(s *ports.Snapshot) { s.Memory = replace(s.Memory, `"run_id":"`, `"run_id":"x`) }, "does not belong to the event that it names"},
		"no record":        {func(s *ports.Snapshot) { s.Seq = 0 }, "does not belong to the event that it names"},
		"ahead of the log": {func(s *ports.Snapshot) { s.Seq += 10 }, "the log ends before 70"},
		"another record":   {func(s *ports.Snapshot) { s.Seq-- }, "the log has another record at 59"},
		"another log":      {forgeHead, "the log has another record at 60"},
	} {
		t.Run(name, func(t *testing.T) {
			bench := workertest.New(t, simtest.Options{}, nil)
			id := longRun(bench, 60)
			s := take(t, bench, id)
			c.spoil(&s)
			got, records, said := load(t, bench.Journal, fixed{bench.Journal, s}, id, func(r *runlog.Run) error { return r.Refresh(t.Context()) })
			require.Equal(t, reducertest.Canonical(bench.Memory(id)), got)
			require.GreaterOrEqual(t, records, 60, "it was read from its beginning")
			require.Contains(t, said, c.said)
		})
	}
	t.Run("unreadable", func(t *testing.T) {
		bench := workertest.New(t, simtest.Options{}, nil)
		id := longRun(bench, 60)
		_, records, said := load(t, bench.Journal, failing{bench.Journal}, id, func(r *runlog.Run) error { return r.Refresh(t.Context()) })
		require.Equal(t, 60, records)
		require.Contains(t, said, "the digest is wrong")
	})
}

// forgeHead makes a snapshot that agrees with itself and not with the log.
func forgeHead(s *ports.Snapshot) {
	forged := events.Hash([]byte("forged"))
	s.Memory = replace(s.Memory, s.Head, forged)
	s.Head = forged
}

func replace(text json.RawMessage, old, by string) json.RawMessage {
	return json.RawMessage(strings.ReplaceAll(string(text), old, by))
}

// fixed has one snapshot.
type fixed struct {
	ports.Snapshots
	s ports.Snapshot
}

func (f fixed) Snapshot(context.Context, events.Run) (ports.Snapshot, error) { return f.s, nil }

func TestAnApplicationsOwnFoldsHaveNoSnapshots(t *testing.T) {
	machine := reducer.NewMachine(reducer.MachineOptions{Folds: map[events.Type]reducer.Fold{
		events.TypeUserMessage: func(*reducer.Memory, *events.Event) {},
	}})
	bench := workertest.New(t, simtest.Options{}, machine)
	id := longRun(bench, 60)
	run := open(t, bench.Store, id)
	_, err := run.Snapshot()
	require.ErrorContains(t, err, "nothing to take a snapshot of")
}

// Reading fails in the middle: what was read is kept, and nothing is lost.
func TestSnapshotAndALogThatFails(t *testing.T) {
	bench := workertest.New(t, simtest.Options{}, nil)
	id := longRun(bench, 60)
	take(t, bench, id)
	log := &workertest.Log{Log: bench.Journal, OnRead: func(events.Run) error { return errors.New("away") }}
	store := runlog.New(runlog.Options{Log: log, Snapshots: bench.Journal})
	run := store.Acquire(id)
	defer store.Release(run)
	run.Lock()
	defer run.Unlock()
	require.ErrorContains(t, run.Refresh(t.Context()), "away")
	require.Zero(t, run.Seq())
	log.OnRead = nil
	require.NoError(t, run.Refresh(t.Context()))
	require.EqualValues(t, 60, run.Memory().N)
}
