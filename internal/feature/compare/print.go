package compare

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/internal/print"
	"github.com/moorebus/moorebus/pkg/events"
)

// The shortest arguments or answer that a comparison shows, in columns.
const shownAtLeast = 16

// write prints how two runs differ. Its lines have at most that many columns.
func write(w io.Writer, a, b string, c *Comparison, columns int, color bool) error {
	t := comparison{Palette: print.Palette{On: color}, columns: columns}
	t.line("a  "+a+"  ", t.State(c.State.A, string(c.State.A)))
	t.line("b  "+b+"  ", t.State(c.State.B, string(c.State.B)))
	if c.ForkPoint == nil {
		t.line("they have no event in common, and are compared entirely")
	} else {
		t.line(fmt.Sprintf("compared after event %d of %s", *c.ForkPoint, c.ForkRun))
	}
	t.line("")
	t.calls(c.Calls)
	t.answers(c.Answer)
	t.line("")
	t.usage(c.Usage)
	t.line("")
	t.verdict(c)
	_, err := io.WriteString(w, t.text.String())
	return err
}

type comparison struct {
	print.Palette
	columns int
	text    strings.Builder
}

func (t *comparison) line(parts ...string) {
	t.text.WriteString(strings.TrimRight(strings.Join(parts, ""), " ") + "\n")
}

// fit writes a line of a mark and a text that is cut to the width.
func (t *comparison) fit(paint func(string) string, mark, text string) {
	t.line(paint(mark + print.Fit(text, max(t.columns-len(mark), shownAtLeast))))
}

func (t *comparison) calls(ops []Op) {
	if len(ops) == 0 {
		t.line("neither calls a tool")
		return
	}
	t.line(t.Faint("  event of a  of b"))
	for _, op := range ops {
		switch op.Op {
		case Same:
			t.fit(t.Faint, mark(" ", op.A, op.B), op.B.Name+" "+op.B.Arguments)
		case Added:
			t.fit(t.Green, mark("+", nil, op.B), op.B.Name+" "+op.B.Arguments)
		case Removed:
			t.fit(t.Red, mark("-", op.A, nil), op.A.Name+" "+op.A.Arguments)
		case Changed:
			t.fit(t.Red, mark("~", op.A, nil), op.A.Name+" "+op.A.Arguments)
			t.fit(t.Green, mark("~", nil, op.B), op.B.Name+" "+op.B.Arguments)
		}
	}
}

// mark begins the line of a call. The number of an event of another run, that the run was forked
// from, has a star.
func mark(op string, a, b *Call) string {
	return fmt.Sprintf("%s %10s %5s  ", op, number(a), number(b))
}

func number(c *Call) string {
	switch {
	case c == nil:
		return ""
	case c.Run != "":
		return fmt.Sprintf("%d*", c.N)
	}
	return strconv.FormatUint(c.N, 10)
}

func (t *comparison) answers(a Answers) {
	t.line("")
	switch {
	case a.A == nil && a.B == nil:
		t.line("neither has an answer")
	case a.Same:
		t.fit(t.Faint, "both answer  ", *a.A)
	default:
		t.answer(t.Red, "a", a.A)
		t.answer(t.Green, "b", a.B)
	}
}

func (t *comparison) answer(paint func(string) string, name string, text *string) {
	if text == nil {
		t.line(name + " has no answer")
		return
	}
	t.fit(paint, name+" answers  ", *text)
}

func (t *comparison) usage(u Usage) {
	row := func(name, a, b, difference string) {
		t.line(t.Faint(fmt.Sprintf("%-12s", name)), fmt.Sprintf("%12s %12s %12s", a, b, difference))
	}
	count := func(name string, a, b int) {
		row(name, strconv.Itoa(a), strconv.Itoa(b), sign(b-a, fmt.Sprintf("%+d", b-a)))
	}
	row("", "a", "b", "")
	count("tokens", u.A.Total, u.B.Total)
	if u.A.CostUSD != nil || u.B.CostUSD != nil {
		a, b := *cmp.Or(u.A.CostUSD, new(float64)), *cmp.Or(u.B.CostUSD, new(float64))
		row("cost in USD", fmt.Sprintf("%.4f", a), fmt.Sprintf("%.4f", b), sign(int((b-a)*1e9), fmt.Sprintf("%+.4f", b-a)))
	}
	count("model calls", u.A.ModelCalls, u.B.ModelCalls)
	count("tool calls", u.A.ToolCalls, u.B.ToolCalls)
	count("approvals", u.A.Approvals, u.B.Approvals)
	seconds := func(name string, a, b int64) {
		row(name, fmt.Sprintf("%.3fs", float64(a)/1000), fmt.Sprintf("%.3fs", float64(b)/1000), sign(int(b-a), fmt.Sprintf("%+.3fs", float64(b-a)/1000)))
	}
	seconds("working", u.A.DurationMS, u.B.DurationMS)
	seconds("in all", u.A.ElapsedMS, u.B.ElapsedMS)
}

// open says of a run that has not ended what it waits for.
func (t *comparison) open(name string, state events.State) {
	switch state {
	case events.WaitingForHuman:
		t.line(name + " waits for a human to approve or reject a call")
	case events.WaitingForUser:
		t.line(name + " waits for its user's next message")
	case events.Idle, events.Planning, events.Acting, events.ParallelActing, events.Observing, events.Reflecting, events.Paging:
		t.line(name + " has not ended: it is in " + string(state))
	}
}

// sign is a difference as text, nothing for none.
func sign(difference int, text string) string {
	if difference == 0 {
		return ""
	}
	return text
}

func (t *comparison) verdict(c *Comparison) {
	counts := map[string]int{}
	for _, op := range c.Calls {
		counts[op.Op]++
	}
	different := len(c.Calls) - counts[Same]
	switch {
	case c.Same:
		t.line(t.Green("same behaviour"))
	case different == 0 && c.State.A == c.State.B:
		t.line(t.Yellow("the same calls so far: the runs have not ended"))
	case different == 0:
		t.line(t.Red("different: the same calls, another end"))
	default:
		t.line(t.Red(fmt.Sprintf("different: %d same, %d changed, %d removed, %d added", counts[Same], counts[Changed], counts[Removed], counts[Added])))
	}
	t.open("a", c.State.A)
	t.open("b", c.State.B)
}
