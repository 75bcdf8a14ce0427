package permissions

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// TestObserverKeepsSnapshots: it may replace and remove them, and nobody else may.
func TestObserverKeepsSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)
	snapshot := journal.Snapshot{Seq: 1, N: 1, Memory: json.RawMessage(`{}`)}
	bus := r.open(t, Observer)
	for range 2 {
		require.NoError(t, bus.PutSnapshot(t.Context(), run, snapshot))
	}
	require.ErrorIs(t, r.open(t, Planner).DeleteSnapshot(t.Context(), run), journal.ErrDenied)
	require.NoError(t, bus.DeleteSnapshot(t.Context(), run))
	_, err := bus.Snapshot(t.Context(), run)
	require.ErrorIs(t, err, journal.ErrNotFound)
}

// TestObserverHearsOfEnds: it lets go of snapshots when runs end.
func TestObserverHearsOfEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	heard := make(chan string, 1)
	stop, err := r.open(t, Observer).Watch(journal.Filter{To: events.Cancelled}, func(rec journal.Record) { heard <- rec.Subject }, func() {})
	require.NoError(t, err)
	defer stop()
	run := events.NewRun(events.DefaultNamespace, runlog.NewID(), 1)
	subject := events.Subject{Run: run, From: events.Control, To: events.Cancelled, Pool: events.DefaultPool}
	_, err = r.log.Append(t.Context(), run, 0, journal.Entry{Subject: subject, Body: []byte(`{}`)})
	require.NoError(t, err)
	require.Equal(t, subject.String(), <-heard)
}
