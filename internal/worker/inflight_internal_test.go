package worker

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/events"
)

// A cancelled effect ends before another one begins under its key, and does not
// take the successor away with it.
func TestCancelledEffectSparesItsSuccessor(t *testing.T) {
	fs := inFlight{byRun: map[events.Run][]*effect{}}
	store := runlog.New(runlog.Options{Log: simtest.New(simtest.Options{})})
	id := store.Place("default", store.NewID())
	run := store.Acquire(id)
	defer store.Release(run)

	first, mine := fs.register(t.Context(), id, "plan/1")
	require.True(t, mine)
	other, mine := fs.register(t.Context(), id, "plan/2")
	require.True(t, mine)
	run.Lock()
	fs.cancelUnwanted(run) // the run wants nothing
	run.Unlock()
	require.ErrorIs(t, first.ctx.Err(), context.Canceled)
	require.ErrorIs(t, other.ctx.Err(), context.Canceled)

	joined, mine := fs.register(t.Context(), id, "plan/1")
	require.False(t, mine)
	require.Same(t, first, joined, "the cancelled one still runs")
	first.delay = time.Second
	fs.remove(first)
	<-joined.done
	require.Equal(t, time.Second, joined.delay)

	successor, mine := fs.register(t.Context(), id, "plan/1")
	require.True(t, mine)
	fs.remove(other)
	require.NoError(t, successor.ctx.Err())
	again, mine := fs.register(t.Context(), id, "plan/1")
	require.False(t, mine)
	require.Same(t, successor, again)
	fs.remove(successor)
	require.Empty(t, fs.byRun)
}
