package runstream_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/runstream"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// small is a table whose drawings fit on a page.
func small(t *testing.T) *reducer.Table {
	t.Helper()
	table, err := reducer.NewTable(reducer.TableSpec{
		Initial: "idle", Terminal: []events.State{"done", "failed"}, Stay: []events.Type{"Paused"},
		Rows: []reducer.Row{{From: "idle", Event: "Start", To: "working"}, {From: "working", Event: "Finished", To: "done"}, {Event: "Broken", To: "failed"}},
	})
	require.NoError(t, err)
	return table
}

func TestDrawings(t *testing.T) {
	require.Equal(t, ""+
		"FROM     EVENT     TO\n"+
		"*        Broken    failed\n"+
		"idle     Start     working\n"+
		"working  Finished  done\n"+
		"idle     Forked    (its parent's)\n"+
		"*        Paused    (stays)\n", runstream.TableText(small(t)))
	require.Equal(t, ""+
		"stateDiagram-v2\n"+
		"    [*] --> idle\n"+
		"    any --> failed : Broken\n"+
		"    idle --> working : Start\n"+
		"    working --> done : Finished\n"+
		"    idle --> any : Forked\n"+
		"    done --> [*]\n"+
		"    failed --> [*]\n", runstream.TableMermaid(small(t)))
	require.Equal(t, ""+
		"digraph moorebus {\n"+
		"    rankdir=LR;\n"+
		"    node [shape=box];\n"+
		"    \"done\" [peripheries=2];\n"+
		"    \"failed\" [peripheries=2];\n"+
		"    \"*\" -> \"failed\" [label=\"Broken\"];\n"+
		"    \"idle\" -> \"working\" [label=\"Start\"];\n"+
		"    \"working\" -> \"done\" [label=\"Finished\"];\n"+
		"    \"idle\" -> \"*\" [label=\"Forked\"];\n"+
		"}\n", runstream.TableDOT(small(t)))
	table := reducer.DefaultTable()
	for _, drawing := range []string{runstream.TableText(table), runstream.TableMermaid(table), runstream.TableDOT(table)} {
		for _, row := range table.Spec().Rows {
			require.Contains(t, drawing, string(row.Event))
		}
	}
}
