package transfer_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/internal/transfer"
	"github.com/moorebus/moorebus/internal/transfer/transfertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// timed is a target that notes which timers are set.
type timed struct {
	transfer.Target
	set map[string]int
	// before is called for each of them.
	before func()
}

func newTimed(w *transfertest.World) *timed { return &timed{Target: w.Bus, set: map[string]int{}} }

func (n *timed) SetTimer(ctx context.Context, run events.Run, kind string, at time.Time, data []byte) error {
	n.set[run.ID+"/"+kind]++
	if n.before != nil {
		n.before()
	}
	return n.Target.SetTimer(ctx, run, kind, at, data)
}

func asleep(w *transfertest.World, run events.Run) bool {
	w.T.Helper()
	for rec, err := range w.Bus.Read(w.T.Context(), w.Here(run), 0) {
		require.NoError(w.T, err)
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(w.T, err)
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
	parent := one.Open()
	fork := one.Fork(parent)
	one.Append(fork, events.Control, &events.CancelledRun{})
	file := purge(one, retention.PurgeOptions{Runs: []events.Run{fork}})
	same := one.Import(file, transfer.ImportOptions{})
	require.Equal(t, map[string]transfer.Fate{parent.ID: transfer.FateSkipped, fork.ID: transfer.FateImported}, transfertest.Fates(same))
	require.False(t, asleep(one, parent), "where it lives it is left alone")

	two := newWorld(t, 2)
	notes := newTimed(two)
	results, err := transfer.Import(t.Context(), file, notes, transfer.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, []events.Run{parent, fork}, []events.Run{results[0].Run, results[1].Run})
	require.False(t, results[0].Resumed)
	require.True(t, asleep(two, parent))
	require.Equal(t, 1, two.Length(parent))
	require.Empty(t, notes.set, "one has ended, the other has no life here")
	two.Verified()
	require.Equal(t, events.Cancelled, two.State(fork).State)
	again := two.Import(file, transfer.ImportOptions{})
	require.Equal(t, map[string]transfer.Fate{parent.ID: transfer.FateSkipped, fork.ID: transfer.FateSkipped}, transfertest.Fates(again))
	require.True(t, asleep(two, parent))

	one.Append(parent, events.Control, &events.UserMessage{MessageID: "m", Content: "more"})
	one.Append(parent, events.Control, &events.CancelledRun{})
	results = two.Import(one.Export(transfer.ExportOptions{Runs: []events.Run{parent}}), transfer.ImportOptions{})
	require.Equal(t, transfer.FateCompleted, results[0].Fate)
	require.Equal(t, 2, results[0].Events)
	require.Equal(t, events.Cancelled, two.State(parent).State)
	two.Verified()
}

// An ancestor comes to life when it is imported for its own sake, whether or not
// anything was appended to it since.
func TestAnAncestorComesToLife(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	parent := one.Open()
	fork := one.Fork(parent)
	two := newWorld(t, 1)
	results := two.Import(one.Export(transfer.ExportOptions{Runs: []events.Run{fork}}), transfer.ImportOptions{})
	require.True(t, results[1].Resumed)
	require.True(t, asleep(two, parent))
	three := newWorld(t, 1)
	results = three.Import(one.Export(transfer.ExportOptions{All: true}), transfer.ImportOptions{Runs: []events.Run{fork}})
	require.False(t, results[0].Resumed, "only the fork was named")
	require.True(t, asleep(three, parent))

	results = two.Import(one.Export(transfer.ExportOptions{Runs: []events.Run{parent}}), transfer.ImportOptions{})
	require.Equal(t, transfer.FateCompleted, results[0].Fate)
	require.True(t, results[0].Resumed)
	two.Work().Await(parent, events.Done)
	two.Verified()
}

// A tombstone of the parent stays when only its beginning comes with a fork, and
// goes with the parent's own archive.
func TestAnAncestorLiftsNoTombstone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	parent := w.Open()
	fork := w.Fork(parent)
	w.Append(fork, events.Control, &events.CancelledRun{})
	first := purge(w, retention.PurgeOptions{Runs: []events.Run{fork}})
	w.Append(parent, events.Control, &events.CancelledRun{})
	second := purge(w, retention.PurgeOptions{Runs: []events.Run{parent}})

	results := w.Import(first, transfer.ImportOptions{})
	require.Equal(t, map[string]transfer.Fate{parent.ID: transfer.FateImported, fork.ID: transfer.FateImported}, transfertest.Fates(results))
	require.Equal(t, 1, w.Length(parent))
	require.Equal(t, events.Cancelled, w.State(fork).State)
	_, err := tombstones.Get(t.Context(), w.Bus, parent)
	require.NoError(t, err)
	_, err = tombstones.Get(t.Context(), w.Bus, fork)
	require.ErrorIs(t, err, journal.ErrNotFound)

	results = w.Import(second, transfer.ImportOptions{})
	require.Equal(t, transfer.FateCompleted, results[0].Fate)
	_, err = tombstones.Get(t.Context(), w.Bus, parent)
	require.ErrorIs(t, err, journal.ErrNotFound)
	require.Equal(t, 2, w.Length(parent))
}

// A fork does not go where nobody has its parent.
func TestAForkNeedsItsParent(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	parent := one.Quick()
	fork := one.Fork(parent)
	both := one.Export(transfer.ExportOptions{Runs: []events.Run{fork}})
	purge(one, retention.PurgeOptions{Runs: []events.Run{parent}, ParentsOfKept: true})
	alone := transfer.ExportOptions{All: true}
	file := one.Export(alone, parent)
	two := newWorld(t, 1)
	results, err := transfer.Import(t.Context(), file, two.Bus, transfer.ImportOptions{})
	require.ErrorIs(t, err, transfer.ErrRefused)
	require.Contains(t, results[0].Reason, parent.ID+", which is neither in the export nor in the log: import that one first")
	two.Import(both, transfer.ImportOptions{Runs: []events.Run{parent}})
	two.Import(file, transfer.ImportOptions{})
	two.Verified()
}

// Every run that goes on has timers that fire soon, before its end is there.
func TestImportedRunsHaveTimers(t *testing.T) {
	t.Parallel()
	one := newWorld(t, 1)
	live, ended := one.Open(), one.Quick()
	file := one.Export(transfer.ExportOptions{All: true})
	two := newWorld(t, 1)
	notes := newTimed(two)
	notes.before = func() { require.Zero(t, two.Length(live), "before anything is there") }
	_, err := transfer.Import(t.Context(), file, notes, transfer.ImportOptions{})
	require.NoError(t, err)
	want := map[string]int{}
	for _, kind := range ports.TimerKinds() {
		want[live.ID+"/"+kind] = 1
	}
	require.Equal(t, want, notes.set)
	require.Equal(t, 2, two.Length(ended))
	notes.before, notes.set = nil, map[string]int{}
	_, err = transfer.Import(t.Context(), file, notes, transfer.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, want, notes.set, "again, for one that has lost them")

	three := newTimed(newWorld(t, 1))
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
	run := one.Quick()
	file := one.Export(transfer.ExportOptions{All: true})
	purge(one, retention.PurgeOptions{Runs: []events.Run{run}})
	_, err := transfer.Import(t.Context(), file, interrupted{one.Bus}, transfer.ImportOptions{})
	require.ErrorIs(t, err, errPower)
	require.Equal(t, 2, one.Length(run))
	results := one.Import(file, transfer.ImportOptions{})
	require.Equal(t, transfer.FateSkipped, results[0].Fate)
	_, err = tombstones.Get(t.Context(), one.Bus, run)
	require.ErrorIs(t, err, journal.ErrNotFound)

	// What would wake its worker lies among the events that wake nobody; a run that
	// somebody may be at is left alone.
	long := long(t, one, 1001, &events.Paused{})
	one.Append(long, events.Control, &events.Resumed{})
	file = one.Export(transfer.ExportOptions{Runs: []events.Run{long}})
	two := newWorld(t, 1)
	two.Import(file, transfer.ImportOptions{NoResume: true})
	require.False(t, two.Import(file, transfer.ImportOptions{})[0].Resumed)
	live := one.Open()
	file = one.Export(transfer.ExportOptions{Runs: []events.Run{live}})
	require.False(t, one.Import(file, transfer.ImportOptions{})[0].Resumed)
	for rec, err := range one.Bus.Read(t.Context(), live, 0) {
		require.NoError(t, err)
		s, err := events.ParseSubject(rec.Subject)
		require.NoError(t, err)
		s.To = events.Nobody
		_, err = two.Bus.Append(t.Context(), live, 0, journal.Entry{Subject: s, Body: rec.Body})
		require.NoError(t, err)
	}
	require.True(t, two.Import(file, transfer.ImportOptions{})[0].Resumed)
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
	run := one.Quick()
	file := one.Export(transfer.ExportOptions{All: true})
	purge(one, retention.PurgeOptions{Runs: []events.Run{run}})
	results := one.Import(straying{file}, transfer.ImportOptions{})
	require.Equal(t, transfer.FateImported, results[0].Fate)
	require.Equal(t, 2, results[0].Events)
	one.Verified()
}
