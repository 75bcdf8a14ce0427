package permissions

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/feature/backup"
	"github.com/moorebus/moorebus/internal/feature/storage/entrystore"
	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/events"
)

// The user backup reads everything, buckets that come later too, and changes nothing.
func TestBackupUser(t *testing.T) {
	r := newRig(t)
	require.NoError(t, agentstore.Put(t.Context(), r.log, "default", "x", []byte(`{}`)))
	require.NoError(t, entrystore.New(r.log).Save(t.Context(), entrystore.Owner{Namespace: "default", Agent: "later"}, entrystore.Actor, events.Entry{Tags: []string{"a"}, Value: "b"}))
	_, err := r.log.PutBlob(t.Context(), "gpu", []byte("large"))
	require.NoError(t, err)
	require.NoError(t, r.log.PutValue(t.Context(), timerOfNoRun()))
	bus := r.open(t, Backup)
	dir := filepath.Join(t.TempDir(), "backup")
	taken, err := backup.Take(t.Context(), bus, dir, backup.Options{})
	require.NoError(t, err)
	require.Equal(t, 1, taken.Objects)
	require.Equal(t, 4, taken.Values, "an agent, an entry and its tag, a timer")
	_, err = backup.Open(t.Context(), dir, time.Time{})
	require.NoError(t, err)

	var refused refusals
	conn := r.connect(t, Backup, &refused)
	for _, subject := range []string{
		"moore.0.default.idle.planning.default.x", "$KV.agents.default.x", "$O.results_gpu.M.x", "timers.set.default.x.run",
		"$JS.API.STREAM.PURGE.MOORE_0", "$JS.API.STREAM.DELETE.KV_agents", "$JS.API.CONSUMER.CREATE.MOORE_0.x", "chunk.default.x",
	} {
		require.NoError(t, conn.Publish(subject, nil))
		require.NoError(t, conn.Flush())
		require.Eventually(t, func() bool { return refused.has(subject) }, patience, time.Millisecond, subject)
	}
}

// timerOfNoRun is what a schedule sets.
func timerOfNoRun() ports.Value {
	at := time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	return ports.Value{
		Subject: "timers.set.default.nightly.schedule", Data: []byte("1"),
		Header: map[string]string{"Nats-Schedule": "@at " + at, "Nats-Schedule-Target": "timers.due.default.nightly.schedule"},
	}
}
