package events_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

func TestChildID(t *testing.T) {
	const parent = "01932c07-1234-7abc-9def-0123456789ab"
	const golden = "01932c07-1234-77e4-b28b-54a340ff575e"
	require.Equal(t, golden, events.ChildID(parent, "call_1"), "it must never change: children are found by it")
	seen := map[string]bool{parent: true}
	for _, call := range []string{"", "call_1", "call_2", "call_1~1", "call/1"} {
		id := events.ChildID(parent, call)
		require.NoError(t, events.CheckID(id), id)
		require.Equal(t, parent[:13], id[:13], "the parent's time")
		require.Equal(t, id, events.ChildID(parent, call))
		require.False(t, seen[id])
		seen[id] = true
		require.NotEqual(t, id, events.ChildID(id, call))
	}
	for _, no := range []string{"", "x", "01932C07-1234-7abc-9def-0123456789ab"} {
		require.Empty(t, events.ChildID(no, "call_1"))
	}
}
