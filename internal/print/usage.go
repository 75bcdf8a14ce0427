package print

import (
	"bytes"
	"fmt"
	"io"
	"strconv"

	"github.com/moorebus/moorebus/internal/control/list"
	"github.com/moorebus/moorebus/internal/control/record"
)

// Usage writes what a run used: in all, then by step, tool, model and sub-run.
func Usage(w io.Writer, f Format, u *record.Usage, color bool) error {
	if f != Text {
		return Write(w, f, u)
	}
	var b bytes.Buffer
	p := Palette{color}
	for _, row := range []struct {
		name string
		use  record.Use
	}{{"total", u.Total}, {"own", u.Own}} {
		cost := ""
		if row.use.CostUSD != nil {
			cost = ", " + dollars(row.use.CostUSD)
		}
		fmt.Fprintf(&b, "%s %d in, %d out, %d cached%s; %d model calls and %d tool calls, which took %s\n", p.Faint(Pad(row.name, 8)),
			row.use.Input, row.use.Output, row.use.Cached, cost, row.use.ModelCalls, row.use.ToolCalls, span(row.use.DurationMS))
	}
	fmt.Fprintf(&b, "%s %s, waiting for people %s\n", p.Faint(Pad("time", 8)), span(u.ElapsedMS), span(u.WaitingMS))
	if u.Truncated {
		b.WriteString("There are more than 1000 sub-runs, and the others are not counted.\n")
	}
	counts := func(t record.Tokens) []string {
		return []string{strconv.Itoa(t.Input), strconv.Itoa(t.Output), strconv.Itoa(t.Cached), dollars(t.CostUSD)}
	}
	var steps, tools, models, children [][]string
	for _, s := range u.Steps {
		result := "ok"
		if s.Failed {
			result = "failed"
		}
		steps = append(steps, append([]string{strconv.Itoa(s.Step), strconv.FormatUint(s.N, 10), s.Kind, s.Name, result, span(s.DurationMS)}, counts(s.Tokens)...))
	}
	for _, t := range u.Tools {
		tools = append(tools, []string{t.Name, strconv.Itoa(t.Calls), strconv.Itoa(t.Failed), span(t.DurationMS), dollars(t.CostUSD)})
	}
	for _, m := range u.Models {
		models = append(models, append([]string{m.Name, strconv.Itoa(m.Calls), strconv.Itoa(m.Failed), span(m.DurationMS)}, counts(m.Tokens)...))
	}
	for _, c := range u.Children {
		children = append(children, append([]string{c.RunID, c.CallID, c.Agent, string(c.State), span(c.Use.DurationMS)}, counts(c.Use.Tokens)...))
	}
	for _, table := range []struct {
		headings []string
		rows     [][]string
	}{
		{[]string{"STEP", "N", "KIND", "NAME", "RESULT", "TIME", "IN", "OUT", "CACHED", "COST"}, steps},
		{[]string{"TOOL", "CALLS", "FAILED", "TIME", "COST"}, tools},
		{[]string{"MODEL", "CALLS", "FAILED", "TIME", "IN", "OUT", "CACHED", "COST"}, models},
		{[]string{"SUB-RUN", "CALL", "AGENT", "STATE", "TIME", "IN", "OUT", "CACHED", "COST"}, children},
	} {
		if len(table.rows) == 0 {
			continue
		}
		b.WriteByte('\n')
		if err := WriteTable(&b, table.headings, table.rows); err != nil {
			return err
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// dollars formats a cost, "-" if it is unknown.
func dollars(cost *float64) string {
	if cost == nil {
		return "-"
	}
	return fmt.Sprintf("$%.4f", *cost)
}

// Tree writes a tree of runs, one on a line: how it belongs to the run above it, its state, id,
// agent and task. The run that was asked for is marked.
func Tree(w io.Writer, f Format, tree list.Tree, color bool) error {
	if f != Text {
		return Write(w, f, tree)
	}
	var b bytes.Buffer
	writeNode(&b, Palette{color}, tree.Root, "", "")
	if tree.Truncated {
		b.WriteString("and more: the tree shows the first runs only\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// writeNode writes a run and those below it. first begins its line, rest those of its children.
func writeNode(b *bytes.Buffer, p Palette, n *list.Node, first, rest string) {
	how := ""
	switch n.Relation {
	case list.RelationSub:
		how = "answers " + Plain(n.CallID) + ": "
	case list.RelationFork:
		how = fmt.Sprintf("fork at %d: ", n.At)
	}
	id := Plain(n.RunID)
	if n.Selected {
		id = p.Bold(id + " *")
	}
	fmt.Fprintf(b, "%s%s%s  %s  %s", p.Faint(first), how, id, p.State(n.State, StateShape(n.State)+" "+string(n.State)), Plain(n.Agent))
	for _, h := range n.HandOffs {
		fmt.Fprintf(b, ", handed over to %s at %d", Plain(h.To), h.N)
	}
	if n.CostUSD > 0 {
		fmt.Fprintf(b, "  $%.4f", n.CostUSD)
	}
	if n.Task != "" {
		b.WriteString("  " + p.Faint(Cut(n.Task, TaskWidth)))
	}
	b.WriteByte('\n')
	for i, child := range n.Children {
		if i == len(n.Children)-1 {
			writeNode(b, p, child, rest+"└─ ", rest+"   ")
		} else {
			writeNode(b, p, child, rest+"├─ ", rest+"│  ")
		}
	}
}
