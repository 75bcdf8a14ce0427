package retention_test

import (
	"context"
	"errors"
	"iter"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// open starts a run that nobody works on.
func (w *world) open() events.Run {
	w.t.Helper()
	run := w.store.Place(events.DefaultNamespace, w.store.NewID())
	start := reducertest.StartOf("x", events.ModeTask)
	start.Agent.LLM.Script = []byte(`[{"text":"It is done, and all of it."}]`)
	w.append(run, events.Idle, start)
	return run
}

// timed is a target that notes which timers are set.
type timed struct {
	transfer.Target
	set map[string]int
	// before is called for each of them.
	before func()
}

func (w *world) timed() *timed { return &timed{Target: w.bus, set: map[string]int{}} }

func (n *timed) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	n.set[run.ID+"/"+kind]++
	if n.before != nil {
		n.before()
	}
	return n.Target.SetTimer(ctx, run, kind, at, data)
}

func (w *world) asleep(run events.Run) bool {
	w.t.Helper()
	for rec, err := range w.bus.Read(w.t.Context(), w.here(run), 0) {
		require.NoError(w.t, err)
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(w.t, err)
		if s.To != events.Nobody {
			return false
		}
	}
	return true
}

// The archive of a fork has its parent, which goes on. Imported elsewhere the parent
// lives no second life, and its own archive completes it later.
func TestALivingParentIsImportedAsleep(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	parent := one.open()
	fork := one.fork(parent)
	one.append(fork, events.Control, &events.CancelledRun{})
	dir := t.TempDir()
	_, err := one.purge(retention.PurgeOptions{Runs: []events.Run{fork}, Archive: archive(filepath.Join(dir, "fork.jsonl"))})
	require.NoError(t, err)
	file := openFile(t, filepath.Join(dir, "fork.jsonl"))
	same := one.imports(file, transfer.ImportOptions{})
	require.Equal(t, map[string]transfer.Fate{parent.ID: transfer.FateSkipped, fork.ID: transfer.FateImported}, fates(same))
	require.False(t, one.asleep(parent), "where it lives it is left alone")

	two := newWorld(t, 2)
	notes := two.timed()
	results, err := transfer.Import(t.Context(), file, notes, transfer.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, []events.Run{parent, fork}, []events.Run{results[0].Run, results[1].Run})
	require.False(t, results[0].Resumed)
	require.True(t, two.asleep(parent))
	require.Equal(t, 1, two.length(parent))
	require.Empty(t, notes.set, "one has ended, the other has no life here")
	two.verified()
	require.Equal(t, events.Cancelled, two.state(fork).State)
	again := two.imports(file, transfer.ImportOptions{})
	require.Equal(t, map[string]transfer.Fate{parent.ID: transfer.FateSkipped, fork.ID: transfer.FateSkipped}, fates(again))
	require.True(t, two.asleep(parent))

	one.append(parent, events.Control, &events.UserMessage{MessageID: "m", Content: "more"})
	one.append(parent, events.Control, &events.CancelledRun{})
	results = two.imports(one.export(transfer.ExportOptions{Runs: []events.Run{parent}}), transfer.ImportOptions{})
	require.Equal(t, transfer.FateCompleted, results[0].Fate)
	require.Equal(t, 2, results[0].Events)
	require.Equal(t, events.Cancelled, two.state(parent).State)
	two.verified()
}

// An ancestor comes to life when it is imported for its own sake, whether or not
// anything was appended to it since.
func TestAnAncestorComesToLife(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	parent := one.open()
	fork := one.fork(parent)
	two := newWorld(t, 1)
	results := two.imports(one.export(transfer.ExportOptions{Runs: []events.Run{fork}}), transfer.ImportOptions{})
	require.True(t, results[1].Resumed)
	require.True(t, two.asleep(parent))
	three := newWorld(t, 1)
	results = three.imports(one.export(transfer.ExportOptions{All: true}), transfer.ImportOptions{Runs: []events.Run{fork}})
	require.False(t, results[0].Resumed, "only the fork was named")
	require.True(t, three.asleep(parent))

	results = two.imports(one.export(transfer.ExportOptions{Runs: []events.Run{parent}}), transfer.ImportOptions{})
	require.Equal(t, transfer.FateCompleted, results[0].Fate)
	require.True(t, results[0].Resumed)
	two.work().await(parent, events.Done)
	two.verified()
}

// A tombstone of the parent stays when only its beginning comes with a fork, and
// goes with the parent's own archive.
func TestAnAncestorLiftsNoTombstone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	parent := w.open()
	fork := w.fork(parent)
	w.append(fork, events.Control, &events.CancelledRun{})
	dir := t.TempDir()
	purge := func(run events.Run, name string) transfer.Source {
		_, err := w.purge(retention.PurgeOptions{Runs: []events.Run{run}, Archive: archive(filepath.Join(dir, name))})
		require.NoError(t, err)
		return openFile(t, filepath.Join(dir, name))
	}
	first := purge(fork, "fork.jsonl")
	w.append(parent, events.Control, &events.CancelledRun{})
	second := purge(parent, "parent.jsonl")

	results := w.imports(first, transfer.ImportOptions{})
	require.Equal(t, map[string]transfer.Fate{parent.ID: transfer.FateImported, fork.ID: transfer.FateImported}, fates(results))
	require.Equal(t, 1, w.length(parent))
	require.Equal(t, events.Cancelled, w.state(fork).State)
	_, err := tombstones.Get(t.Context(), w.bus, parent)
	require.NoError(t, err)
	_, err = tombstones.Get(t.Context(), w.bus, fork)
	require.ErrorIs(t, err, journal.ErrNotFound)

	results = w.imports(second, transfer.ImportOptions{})
	require.Equal(t, transfer.FateCompleted, results[0].Fate)
	_, err = tombstones.Get(t.Context(), w.bus, parent)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.Equal(t, 2, w.length(parent))
}

// A fork does not go where nobody has its parent.
func TestAForkNeedsItsParent(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	parent := one.quick()
	fork := one.fork(parent)
	both := one.export(transfer.ExportOptions{Runs: []events.Run{fork}})
	_, err := one.purge(retention.PurgeOptions{Runs: []events.Run{parent}, ParentsOfKept: true})
	require.NoError(t, err)
	alone := transfer.ExportOptions{All: true}
	file := one.export(alone, parent)
	two := newWorld(t, 1)
	results, err := transfer.Import(t.Context(), file, two.bus, transfer.ImportOptions{})
	require.ErrorIs(t, err, transfer.ErrRefused)
	require.Contains(t, results[0].Reason, parent.ID+", which is neither in the export nor in the log: import that one first")
	two.imports(both, transfer.ImportOptions{Runs: []events.Run{parent}})
	two.imports(file, transfer.ImportOptions{})
	two.verified()
}

// Every run that goes on has timers that fire soon, before its end is there.
func TestImportedRunsHaveTimers(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	live, ended := one.open(), one.quick()
	file := one.export(transfer.ExportOptions{All: true})
	two := newWorld(t, 1)
	notes := two.timed()
	notes.before = func() { require.Zero(t, two.length(live), "before anything is there") }
	_, err := transfer.Import(t.Context(), file, notes, transfer.ImportOptions{})
	require.NoError(t, err)
	want := map[string]int{}
	for _, kind := range ports.TimerKinds() {
		want[live.ID+"/"+kind] = 1
	}
	require.Equal(t, want, notes.set)
	require.Equal(t, 2, two.length(ended))
	notes.before, notes.set = nil, map[string]int{}
	_, err = transfer.Import(t.Context(), file, notes, transfer.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, want, notes.set, "again, for one that has lost them")

	three := newWorld(t, 1).timed()
	_, err = transfer.Import(t.Context(), file, three, transfer.ImportOptions{NoResume: true})
	require.NoError(t, err)
	require.Empty(t, three.set)
}

// interrupted is a target whose tombstones cannot be removed.
type interrupted struct{ transfer.Target }

var errPower = errors.New("the power went")

func (interrupted) Delete(context.Context, kv.Bucket, string, uint64) error { return errPower }

// An import that was cut off behind a run's last batch is completed by another one.
func TestImportThatWasCutOffAtItsEnd(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	run := one.quick()
	file := one.export(transfer.ExportOptions{All: true})
	_, err := one.purge(retention.PurgeOptions{Runs: []events.Run{run}})
	require.NoError(t, err)
	_, err = transfer.Import(t.Context(), file, interrupted{one.bus}, transfer.ImportOptions{})
	require.ErrorIs(t, err, errPower)
	require.Equal(t, 2, one.length(run))
	results := one.imports(file, transfer.ImportOptions{})
	require.Equal(t, transfer.FateSkipped, results[0].Fate)
	_, err = tombstones.Get(t.Context(), one.bus, run)
	require.ErrorIs(t, err, journal.ErrNotFound)

	// What would wake its worker lies among the events that wake nobody; a run that
	// somebody may be at is left alone.
	long := long(t, one, 1001, &events.Paused{})
	one.append(long, events.Control, &events.Resumed{})
	file = one.export(transfer.ExportOptions{Runs: []events.Run{long}})
	two := newWorld(t, 1)
	two.imports(file, transfer.ImportOptions{NoResume: true})
	require.False(t, two.imports(file, transfer.ImportOptions{})[0].Resumed)
	live := one.open()
	file = one.export(transfer.ExportOptions{Runs: []events.Run{live}})
	require.False(t, one.imports(file, transfer.ImportOptions{})[0].Resumed)
	for rec, err := range one.bus.Read(t.Context(), live, 0) {
		require.NoError(t, err)
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		s.To = events.Nobody
		_, err = two.bus.Append(t.Context(), live, 0, journal.Entry{Subject: s, Body: rec.Body})
		require.NoError(t, err)
	}
	require.True(t, two.imports(file, transfer.ImportOptions{})[0].Resumed)
}

// straying is a log with a record among a run's that belongs to none.
type straying struct{ transfer.Source }

func (s straying) Read(ctx context.Context, run events.Run, after uint64) iter.Seq2[journal.Record, error] {
	return func(yield func(journal.Record, error) bool) {
		if !yield(journal.Record{Subject: "moore.0.default.X.none.default." + run.ID, Seq: 1, Body: []byte("x")}, nil) {
			return
		}
		s.Source.Read(ctx, run, after)(yield)
	}
}

// Records that belong to no run are not counted, and do not come along.
func TestStraysAreLeftBehind(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	run := one.quick()
	file := one.export(transfer.ExportOptions{All: true})
	_, err := one.purge(retention.PurgeOptions{Runs: []events.Run{run}})
	require.NoError(t, err)
	results := one.imports(straying{file}, transfer.ImportOptions{})
	require.Equal(t, transfer.FateImported, results[0].Fate)
	require.Equal(t, 2, results[0].Events)
	one.verified()
}
