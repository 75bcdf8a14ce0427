package console

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func TestParentAndSubruns(t *testing.T) {
	parent := "01932c07-89a1-7cde-8f01-23456789abcd"
	mem := reducer.NewMachine(reducer.MachineOptions{}).Initial(parent)
	mem.Control.CallOrder = []string{"a", "b", "c"}
	mem.ToolCalls["a"] = &reducer.ToolCallRecord{Run: "x"}
	mem.ToolCalls["b"], mem.ToolCalls["c"] = &reducer.ToolCallRecord{}, &reducer.ToolCallRecord{}
	mem.Control.Calls = []reducer.CallState{{Call: events.Call{ID: "c"}, Pool: events.AgentsPool, Wake: 2, Started: 3}}
	mem.Control.Parent = &events.Parent{Run: "above", CallID: "z"}
	r := new(Run)
	r.fill(mem)
	require.Equal(t, []Child{{"x", "a"}, {events.ChildID(parent, "c"), "c"}}, r.Children)
	var b bytes.Buffer
	r.writeSubruns(&b, palette{})
	require.Contains(t, b.String(), "z of run above")
	require.Contains(t, b.String(), "a by run x")
	require.Contains(t, b.String(), "c by run "+events.ChildID(parent, "c"))
}
