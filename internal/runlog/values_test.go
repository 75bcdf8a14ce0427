package runlog_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
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

	answering := func(parent events.Run, depth int) events.Run {
		child := f.store.Place("default", f.store.NewID())
		start := reducertest.StartOf("help", events.ModeTask)
		start.Parent = &events.Parent{Run: parent.ID, CallID: "a", Depth: depth}
		f.append(child, nil, events.Idle, start)
		held := f.store.Acquire(child)
		t.Cleanup(func() { f.store.Release(held) })
		held.Lock()
		defer held.Unlock()
		require.NoError(t, held.Refresh(t.Context()))
		return child
	}
	first, second := answering(run, 1), answering(run, 1)
	below := answering(second, 2)
	for _, id := range []events.Run{first, second, below} {
		require.Equal(t, "ann", value(id))
	}

	f.append(first, nil, events.Control, &events.CancelledRun{})
	// The grandchild goes first: it could inherit nothing from a sibling that lost the values.
	require.Equal(t, "ann", value(below), "the end of one heir leaves the others alone")
	require.Equal(t, "ann", value(second))

	f.append(run, nil, events.Control, &events.CancelledRun{})
	for _, id := range []events.Run{run, first, second, below} {
		require.Nil(t, value(id))
	}
}
