package compare

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
)

func twoRuns() *Comparison {
	at, cost := uint64(4), 0.25
	said, other := "There are 42.", "There are \x1b]0;owned\x07 43."
	call := func(n uint64, arguments string) *Call {
		return &Call{N: n, Name: "search", Arguments: arguments}
	}
	inherited := call(5, `{"q":"b"}`)
	inherited.Run = "parent"
	return &Comparison{
		ForkPoint: &at, ForkRun: "parent",
		Calls: []Op{
			{Op: Same, A: inherited, B: call(2, `{"q":"b"}`)}, {Op: Changed, A: call(8, `{"q":"c"}`), B: call(5, `{"q":"`+strings.Repeat("日本", 40)+`"}`)},
			{Op: Removed, A: call(11, `{}`)}, {Op: Added, B: call(8, "{\x1b[31m")},
		},
		Answer: Answers{A: &said, B: &other}, State: States{A: events.Done, B: events.Errored},
		Usage: Usage{A: Use{Total: 120, ModelCalls: 3, ToolCalls: 3, ElapsedMS: 1500}, B: Use{Total: 150, CostUSD: &cost, ModelCalls: 3, ToolCalls: 3}},
	}
}

func compared(t *testing.T, c *Comparison, columns int, color bool) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, write(&b, "run-a", "run-b", c, columns, color))
	return b.String()
}

func TestComparison(t *testing.T) {
	require.Equal(t, `a  run-a  done
b  run-b  error
compared after event 4 of parent

  event of a  of b
          5*     2  search {"q":"b"}
~          8        search {"q":"c"}
~                5  search {"q":"日本日本日本日本日…
-         11        search {}
+                8  search {\x1b[31m

a answers  There are 42.
b answers  There are \x1b]0;owned\x07 43.

                       a            b
tokens               120          150          +30
cost in USD       0.0000       0.2500      +0.2500
model calls            3            3
tool calls             3            3
approvals              0            0
working           0.000s       0.000s
in all            1.500s       0.000s      -1.500s

different: 1 same, 1 changed, 1 removed, 1 added
`, compared(t, twoRuns(), 53, false))
	require.Contains(t, compared(t, twoRuns(), 53, true), terminal.Style("32", `+                8  search {\x1b[31m`))
	for _, line := range strings.Split(compared(t, twoRuns(), 60, false), "\n") {
		width := 0
		for _, r := range strings.TrimSuffix(line, "…") {
			width += terminal.Width(r)
		}
		require.LessOrEqual(t, width, 60, line)
	}
}

func TestComparisonsEnd(t *testing.T) {
	for want, change := range map[string]func(*Comparison){
		"\nsame behaviour\n":                         func(c *Comparison) { c.Same, c.Calls = true, c.Calls[:1] },
		"\ndifferent: the same calls, another end\n": func(c *Comparison) { c.Calls = c.Calls[:1] },
		"\nthe same calls so far: the runs have not ended\n": func(c *Comparison) {
			c.Calls, c.State = c.Calls[:1], States{A: events.Planning, B: events.Planning}
		},
		"\nneither calls a tool\n\nneither has an answer\n":                func(c *Comparison) { c.Calls, c.Answer = nil, Answers{Same: true} },
		"\nboth answer  There are 42.\n":                                   func(c *Comparison) { c.Answer.Same = true },
		"\na answers  There are 42.\nb has no answer\n":                    func(c *Comparison) { c.Answer.B = nil },
		"error\nthey have no event in common, and are compared entirely\n": func(c *Comparison) { c.ForkPoint = nil },
	} {
		c := twoRuns()
		change(c)
		require.Contains(t, compared(t, c, 80, false), want)
	}
}
