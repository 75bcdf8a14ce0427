package runstream

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// TableText returns a transition table as aligned columns: from, event, to. A row of every
// state that is not terminal has `*` for from; a fork begins in its parent's.
func TableText(t *reducer.Table) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "FROM\tEVENT\tTO")
	for _, row := range t.Spec().Rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", anyState(row), row.Event, row.To)
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t(its parent's)\n", t.Initial(), events.TypeForked)
	for _, typ := range t.Spec().Stay {
		_, _ = fmt.Fprintf(w, "*\t%s\t(stays)\n", typ)
	}
	_ = w.Flush()
	return b.String()
}

// TableMermaid returns a transition table as a Mermaid state diagram. Rows of every state are
// drawn once, from a state called `any`.
func TableMermaid(t *reducer.Table) string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	fmt.Fprintf(&b, "    [*] --> %s\n", t.Initial())
	for _, row := range t.Spec().Rows {
		fmt.Fprintf(&b, "    %s --> %s : %s\n", strings.Replace(anyState(row), "*", "any", 1), row.To, row.Event)
	}
	fmt.Fprintf(&b, "    %s --> any : %s\n", t.Initial(), events.TypeForked)
	for _, s := range t.States() {
		if t.Terminal(s) {
			fmt.Fprintf(&b, "    %s --> [*]\n", s)
		}
	}
	return b.String()
}

// TableDOT returns a transition table as a Graphviz digraph.
func TableDOT(t *reducer.Table) string {
	var b strings.Builder
	b.WriteString("digraph moorebus {\n    rankdir=LR;\n    node [shape=box];\n")
	for _, s := range t.States() {
		if t.Terminal(s) {
			fmt.Fprintf(&b, "    %q [peripheries=2];\n", s)
		}
	}
	for _, row := range t.Spec().Rows {
		fmt.Fprintf(&b, "    %q -> %q [label=%q];\n", anyState(row), row.To, row.Event)
	}
	fmt.Fprintf(&b, "    %q -> \"*\" [label=%q];\n", t.Initial(), events.TypeForked)
	b.WriteString("}\n")
	return b.String()
}

func anyState(row reducer.Row) string {
	if row.From == "" {
		return "*"
	}
	return string(row.From)
}
