package retention_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/retention"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/tombstones"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// purgedIDs returns the runs that went, in their order.
func purgedIDs(done retention.Purged) []string {
	ids := []string{}
	for _, r := range done.Runs {
		ids = append(ids, r.Run)
	}
	return ids
}

// meddler is a bus on which something happens once the first tombstone stands.
type meddler struct {
	retention.Bus
	meddle func()
}

func (m *meddler) Put(ctx context.Context, of kv.Bucket, it kv.Item) (uint64, error) {
	revision, err := m.Bus.Put(ctx, of, it)
	if m.meddle != nil {
		m.meddle()
		m.meddle = nil
	}
	return revision, err
}

// A run that is forked while it is being purged stays, with all that it was forked
// from itself.
func TestForkedWhileItIsPurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	grandparent := w.Quick()
	parent := w.Fork(grandparent)
	w.Append(parent, events.Control, &events.CancelledRun{})
	loner := w.Quick()
	var fork events.Run
	bus := &meddler{Bus: w.Bus, meddle: func() { fork = w.Fork(parent) }}
	done, err := retention.Purge(t.Context(), bus, retention.PurgeOptions{
		Runs: []events.Run{grandparent, parent, loner}, Grace: noGrace,
	})
	require.NoError(t, err)
	require.Equal(t, []string{loner.ID}, purgedIDs(done))
	require.EqualValues(t, 2, done.Events)
	require.Len(t, done.Kept, 2)
	for _, k := range done.Kept {
		require.Contains(t, k.Reason, fork.ID)
	}
	for _, run := range []events.Run{grandparent, parent} {
		require.Equal(t, 2, w.Length(run))
		_, err := tombstones.Get(t.Context(), w.Bus, run)
		require.ErrorIs(t, err, journal.ErrNotFound, "it is not held to be purged")
	}
	require.Zero(t, w.Length(loner))
}

// A run whose tombstone was lifted by an import meanwhile stays.
func TestImportedWhileItIsPurged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	run := w.Quick()
	bus := &meddler{Bus: w.Bus, meddle: func() { require.NoError(t, tombstones.Delete(t.Context(), w.Bus, run)) }}
	done, err := retention.Purge(t.Context(), bus, retention.PurgeOptions{Runs: []events.Run{run}, Grace: noGrace})
	require.NoError(t, err)
	require.Empty(t, done.Runs)
	require.Contains(t, done.Kept[0].Reason, "imported")
	require.Equal(t, 2, w.Length(run))
}

// A fork that has ended and whose parent is gone keeps no other run from going, and
// goes when it is named.
func TestAForkWithoutItsParent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	parent := w.Quick()
	fork, live := w.Fork(parent), w.Fork(parent)
	w.Append(fork, events.Control, &events.CancelledRun{})
	_, err := purge(w, retention.PurgeOptions{Runs: []events.Run{parent}, ParentsOfKept: true})
	require.NoError(t, err)
	other := w.Quick()

	done, err := purge(w, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	require.Equal(t, []string{other.ID}, purgedIDs(done))
	require.Len(t, done.Kept, 1)
	require.Equal(t, fork.ID, done.Kept[0].Run)
	require.Contains(t, done.Kept[0].Reason, "forked from "+parent.ID+", which is gone")

	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{live}})
	require.ErrorIs(t, err, retention.ErrNotPurged)
	done, err = purge(w, retention.PurgeOptions{Runs: []events.Run{fork}})
	require.NoError(t, err)
	require.Equal(t, events.Cancelled, done.Runs[0].State)
	require.EqualValues(t, 2, done.Events)
	require.Zero(t, w.Length(fork))
	stone, err := tombstones.Get(t.Context(), w.Bus, fork)
	require.NoError(t, err)
	require.EqualValues(t, 2, stone.Events)
	require.NotEmpty(t, stone.Last)
}

// An end on a subject that its type may not come from does not make a fork whose
// parent is gone one that has ended.
func TestAForgedEndOfAForkWithoutItsParent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	parent := w.Quick()
	honest, forged := w.Fork(parent), w.Fork(parent)
	w.Append(honest, events.Control, &events.CancelledRun{})
	head, err := w.Bus.Head(t.Context(), honest)
	require.NoError(t, err)
	e, err := new(events.Codec).Decode(head.Body)
	require.NoError(t, err)
	e.Run = forged.ID
	body, err := new(events.Codec).Encode(e)
	require.NoError(t, err)
	last, err := w.Bus.Head(t.Context(), forged)
	require.NoError(t, err)
	subject := events.Subject{Run: forged, From: events.Acting, To: events.Cancelled, Pool: events.DefaultPool}
	_, err = w.Bus.Append(t.Context(), forged, last.Seq, journal.Entry{Subject: subject, Body: body})
	require.NoError(t, err)
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{parent}, ParentsOfKept: true})
	require.NoError(t, err)
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{forged}})
	require.ErrorIs(t, err, retention.ErrNotPurged)
	_, err = purge(w, retention.PurgeOptions{Runs: []events.Run{honest}})
	require.NoError(t, err)
}

// Runs that have to stay do not count as gone: younger ones go in their place, until
// little enough stays.
func TestKeepBytesIsMet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	parent := w.Quick()
	fork := w.Fork(parent)
	second, third := w.Quick(), w.Quick()
	dry := func(keep int64) retention.Purged {
		done, err := purge(w, retention.PurgeOptions{KeepBytes: keep, DryRun: true})
		require.NoError(t, err)
		return done
	}
	all := dry(1)
	require.Equal(t, []string{second.ID, third.ID}, purgedIDs(all))
	require.Equal(t, parent.ID, all.Kept[0].Run)
	size := all.Runs[0].Bytes
	_, err := purge(w, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour), DryRun: true})
	require.NoError(t, err)
	total := int64(0)
	for rec, err := range w.Bus.Scan(t.Context(), 0, journal.Filter{}, 0) {
		require.NoError(t, err)
		total += int64(len(rec.Subject) + len(rec.Body))
	}
	require.Equal(t, []string{second.ID}, purgedIDs(dry(total-size/2)))
	require.Equal(t, []string{second.ID, third.ID}, purgedIDs(dry(total-size-size/2)))

	// When the fork goes too, so can its parent.
	w.Append(fork, events.Control, &events.CancelledRun{})
	require.Equal(t, []string{fork.ID, parent.ID, second.ID, third.ID}, purgedIDs(dry(1)))
	done, err := purge(w, retention.PurgeOptions{EndedBefore: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	require.Len(t, done.Runs, 4)
	require.Empty(t, done.Kept)
}
