package runid_test

import (
	"testing"

	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
)

func TestRequest(t *testing.T) {
	t.Parallel()
	id := runid.Request("helper", "message 1")
	require.Equal(t, "016933cd-10fd-714c-aab3-43c7343a78d1", id, "it must never change: repeated requests find their runs by it")
	require.NoError(t, events.CheckID(id))
	require.NotEqual(t, id, runid.Request("helper", "message 2"))
	require.NotEqual(t, id, runid.Request("other", "message 1"))
}

func TestChild(t *testing.T) {
	const parent = "01932c07-1234-7abc-9def-0123456789ab"
	const golden = "01932c07-1234-77e4-b28b-54a340ff575e"
	require.Equal(t, golden, runid.Child(parent, "call_1"), "it must never change: children are found by it")
	seen := map[string]bool{parent: true}
	for _, call := range []string{"", "call_1", "call_2", "call_1~1", "call/1"} {
		id := runid.Child(parent, call)
		require.NoError(t, events.CheckID(id), id)
		require.Equal(t, parent[:13], id[:13], "the parent's time")
		require.Equal(t, id, runid.Child(parent, call))
		require.False(t, seen[id])
		seen[id] = true
		require.NotEqual(t, id, runid.Child(id, call))
	}
	for _, no := range []string{"", "x", "01932C07-1234-7abc-9def-0123456789ab"} {
		require.Empty(t, runid.Child(no, "call_1"))
	}
}
