package agentstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentstore"
	"github.com/moorebus/moorebus/internal/buckets"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/pkg/journal"
)

func TestDefinitions(t *testing.T) {
	bus, ctx := simtest.New(simtest.Options{}), t.Context()
	_, _, err := agentstore.Get(ctx, bus, "team", "researcher")
	require.ErrorIs(t, err, journal.ErrNotFound)
	names, err := agentstore.Names(ctx, bus, "team")
	require.NoError(t, err)
	require.Empty(t, names)
	for _, name := range []string{"writer", "researcher", "a-b_c"} {
		require.NoError(t, agentstore.Put(ctx, bus, "team", name, []byte("of "+name)))
	}
	require.NoError(t, agentstore.Put(ctx, bus, "team", "writer", []byte("second")))
	require.NoError(t, agentstore.Put(ctx, bus, "other", "elsewhere", []byte("x")))
	_, err = bus.Put(ctx, buckets.Agents, kv.Item{Key: "team.deleted"})
	require.NoError(t, err)
	names, err = agentstore.Names(ctx, bus, "team")
	require.NoError(t, err)
	require.Equal(t, []string{"a-b_c", "researcher", "writer"}, names)
	got, stored, err := agentstore.Get(ctx, bus, "team", "writer")
	require.NoError(t, err)
	require.Equal(t, "second", string(got))
	require.WithinDuration(t, time.Now(), stored, time.Minute)
	for _, bad := range []string{"", "*", "a.b", "Upper"} {
		require.Error(t, agentstore.Put(ctx, bus, "team", bad, nil))
		require.Error(t, agentstore.Put(ctx, bus, bad, "a", nil))
	}
	require.ErrorIs(t, agentstore.Put(ctx, bus, "team", "huge", make([]byte, journal.MaxBody+1)), journal.ErrTooLarge)
}
