package reducer

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/moorebus/moorebus/pkg/events"
)

// Text returns the table as aligned columns: from, event, to. A row of every
// state that is not terminal has `*` for from; a fork begins in its parent's.
func (t *Table) Text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "FROM\tEVENT\tTO")
	for _, row := range t.rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", anyState(row), row.Event, row.To)
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t(its parent's)\n", t.initial, events.TypeForked)
	for _, typ := range t.StayTypes() {
		_, _ = fmt.Fprintf(w, "*\t%s\t(stays)\n", typ)
	}
	_ = w.Flush()
	return b.String()
}

// Mermaid returns the table as a Mermaid state diagram. Rows of every state are
// drawn once, from a state called `any`.
func (t *Table) Mermaid() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	fmt.Fprintf(&b, "    [*] --> %s\n", t.initial)
	for _, row := range t.rows {
		fmt.Fprintf(&b, "    %s --> %s : %s\n", strings.Replace(anyState(row), "*", "any", 1), row.To, row.Event)
	}
	fmt.Fprintf(&b, "    %s --> any : %s\n", t.initial, events.TypeForked)
	for _, s := range t.states {
		if t.terminal[s] {
			fmt.Fprintf(&b, "    %s --> [*]\n", s)
		}
	}
	return b.String()
}

// DOT returns the table as a Graphviz digraph.
func (t *Table) DOT() string {
	var b strings.Builder
	b.WriteString("digraph moorebus {\n    rankdir=LR;\n    node [shape=box];\n")
	for _, s := range t.states {
		if t.terminal[s] {
			fmt.Fprintf(&b, "    %q [peripheries=2];\n", s)
		}
	}
	for _, row := range t.rows {
		fmt.Fprintf(&b, "    %q -> %q [label=%q];\n", anyState(row), row.To, row.Event)
	}
	fmt.Fprintf(&b, "    %q -> \"*\" [label=%q];\n", t.initial, events.TypeForked)
	b.WriteString("}\n")
	return b.String()
}

func anyState(row Row) string {
	if row.From == "" {
		return "*"
	}
	return string(row.From)
}
