package print

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/control/record"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Step is a step of a run with what the model replied or the tool returned, in at most 100
// characters.
type Step struct {
	record.Step
	Summary string `json:"summary,omitempty"`
}

// stepsOf adds the steps of a legal entry to the run's. mem is the memory after it, took the
// time since the event before it.
func (r *Run) stepsOf(mem *reducer.Memory, e Entry, took time.Duration) {
	var used record.Usage
	used.Add(mem, e.Event, e.Record, max(0, took.Milliseconds()))
	for _, s := range used.Steps {
		text := strings.TrimPrefix(summary(e.Event.Data), s.CallID+": ") // the line names the tool
		r.Steps = append(r.Steps, Step{s, cmp.Or(text, string(e.Event.Type()))})
	}
}

// writeSteps writes steps one on a line: number, duration, tokens and cost, and what was
// replied or returned.
func writeSteps(w io.Writer, steps []Step, p Palette) error {
	width := 0
	for _, s := range steps {
		width = max(width, utf8.RuneCountInString(used(s.Input, s.Output, s.CostUSD)))
	}
	last := 0
	var b strings.Builder
	for _, s := range steps {
		number, text := "", Plain(s.Name)+": "+s.Summary
		if s.Step.Step != last { // 0 is before the first reply
			number, last = fmt.Sprint(s.Step.Step), s.Step.Step
		}
		if s.Kind == record.KindTool {
			text = "  " + text
		}
		if s.Failed {
			text = p.Red(text)
		}
		fmt.Fprintf(&b, "%s  %s  %s  %s\n", p.Bold(fmt.Sprintf("%5s", number)), p.Faint(fmt.Sprintf("%9s", span(s.DurationMS))),
			Pad(used(s.Input, s.Output, s.CostUSD), width), text)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// used says how many tokens were used and what they cost; empty for none.
func used(input, output int, cost *float64) string {
	if input == 0 && output == 0 && cost == nil {
		return ""
	}
	text := fmt.Sprintf("%d in, %d out", input, output)
	if cost != nil {
		text += fmt.Sprintf(", $%.4f", *cost)
	}
	return text
}

// span formats milliseconds: 0.412s, 1m05s, 2h03m.
func span(ms int64) string {
	return strings.TrimPrefix(Elapsed(time.Duration(ms)*time.Millisecond), "+")
}
