package worker

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/simulated"
	"github.com/moorebus/moorebus/pkg/events"
)

// A cancelled effect ends before another one begins under its key, and does not
// take the successor away with it.
func TestCancelledFlightSparesItsSuccessor(t *testing.T) {
	fs := flights{byRun: map[events.Run][]*flight{}}
	store := runlog.New(runlog.Options{Log: simulated.New(simulated.Options{})})
	id := store.Place("default", store.NewID())
	run := store.Acquire(id)
	defer store.Release(run)

	first, mine := fs.begin(t.Context(), id, "plan/1")
	require.True(t, mine)
	other, mine := fs.begin(t.Context(), id, "plan/2")
	require.True(t, mine)
	run.Lock()
	fs.reconcile(run) // the run wants nothing
	run.Unlock()
	require.ErrorIs(t, first.ctx.Err(), context.Canceled)
	require.ErrorIs(t, other.ctx.Err(), context.Canceled)

	joined, mine := fs.begin(t.Context(), id, "plan/1")
	require.False(t, mine)
	require.Same(t, first, joined, "the cancelled one still runs")
	first.delay = time.Second
	fs.end(first)
	<-joined.done
	require.Equal(t, time.Second, joined.delay)

	successor, mine := fs.begin(t.Context(), id, "plan/1")
	require.True(t, mine)
	fs.end(other)
	require.NoError(t, successor.ctx.Err())
	again, mine := fs.begin(t.Context(), id, "plan/1")
	require.False(t, mine)
	require.Same(t, successor, again)
	fs.end(successor)
	require.Empty(t, fs.byRun)
}

// A run that is named while a look at it is under way is looked at once more, one
// look at a time; a failed look comes again by itself, ever later.
func TestHintsLookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHints()
		id := events.Run{Namespace: "default", ID: "a"}
		take := func() []events.Run { return h.take(func() []events.Run { return []events.Run{id} }) }

		h.add(id)
		h.add(id)
		require.Len(t, take(), 1)
		h.add(id)
		h.addAll()
		require.Empty(t, take(), "one look at a time")
		h.looked(id, nil)
		require.Len(t, take(), 1)

		<-h.wake
		for _, delay := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			h.looked(id, errors.New("no leader"))
			h.add(id)
			<-h.wake
			require.Empty(t, take(), "its time comes by itself")
			began := time.Now()
			<-h.wake
			require.Equal(t, delay, time.Since(began))
			require.Len(t, take(), 1)
		}
		h.looked(id, nil)
		require.Empty(t, h.runs)

		for n := range maxHints + 10 {
			h.add(events.Run{Namespace: "default", ID: strconv.Itoa(n)})
		}
		require.Len(t, take(), maxHints+1, "those that are held stand in for what is too much")
	})
}
