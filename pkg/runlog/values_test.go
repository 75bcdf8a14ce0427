package runlog_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer/reducertest"
)

// userKey is the key of a value in a context.
type userKey struct{}

// A run is bound to a context's values until it has ended, so that none is kept for
// longer; and so are the runs that answer its calls.
func TestValuesEndWithTheRun(t *testing.T) {
	f := newForks(t)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), userKey{}, "ann"))
	run := f.started(1)
	f.store.Bind(run, ctx)
	cancel()
	value := func(id events.Run) any {
		r := f.store.Acquire(id)
		defer f.store.Release(r)
		seen := f.store.WithValues(t.Context(), r)
		require.NoError(t, seen.Err(), "it does not end with the other context")
		return seen.Value(userKey{})
	}
	require.Equal(t, "ann", value(run))
	require.Nil(t, value(f.started(1)))

	child := f.store.Place("default", f.store.NewID())
	start := reducertest.StartOf("help", events.ModeTask)
	start.Parent = &events.Parent{Run: run.ID, CallID: "a", Depth: 1}
	f.append(child, nil, events.Idle, start)
	held := f.store.Acquire(child)
	defer f.store.Release(held)
	held.Lock()
	require.NoError(t, held.Refresh(t.Context()))
	held.Unlock()
	require.Equal(t, "ann", value(child))

	f.append(run, nil, events.Control, &events.CancelledRun{})
	require.Nil(t, value(run))
	require.Nil(t, value(child))
}
