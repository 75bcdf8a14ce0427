package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Step is a request to a model, or the result of a tool's call, of which Step is the number of
// the run's step and N that of the event. A reply's time is counted from the event before it.
// What a sub-agent used is in the step of its call.
type Step struct {
	Step       int      `json:"step"`
	N          uint64   `json:"n"`
	Kind       string   `json:"kind"` // model or tool
	Name       string   `json:"name"`
	CallID     string   `json:"call_id,omitempty"`
	Failed     bool     `json:"failed,omitempty"`
	DurationMS int64    `json:"duration_ms"`
	Input      int      `json:"input"`
	Output     int      `json:"output"`
	Cached     int      `json:"cached"`
	CostUSD    *float64 `json:"cost_usd,omitempty"`
	// Summary is what the model replied or the tool returned, in at most 100 characters.
	Summary string `json:"summary,omitempty"`
}

// stepOf returns the step that a legal entry is; nil if it is none. mem is the memory after it,
// took the time since the event before it.
func stepOf(mem *reducer.Memory, e Entry, took time.Duration) *Step {
	s, asked := &Step{Step: e.Event.Step, N: e.Event.N, Kind: "tool"}, false
	switch p := e.Event.Data.(type) {
	case *events.ToolSuccess:
		return s.result(mem, p.Outcome)
	case *events.ToolFailure:
		return s.result(mem, p.Outcome)
	case *events.ToolCallResult:
		return s.result(mem, &p.ToolOutcome)
	case *events.LLMAttemptFailed:
		s.Failed, asked = true, p.FromProvider()
		if !asked {
			return nil
		}
	case *events.FatalError:
		s.Failed = true
	}
	used := events.Billed(e.Event.Data)
	if !asked && (used == nil || mem.Control.QueuedPass) {
		return nil // a further pass of a reply was counted with the first
	}
	s.Kind, s.Name, s.DurationMS = "model", modelOf(mem, e), max(0, took.Milliseconds())
	s.Summary = cmp.Or(summary(e.Event.Data), string(e.Event.Type()))
	s.use(used)
	return s
}

// result makes it the result of a call; nil ends a batch and is none.
func (s *Step) result(mem *reducer.Memory, o *events.ToolOutcome) *Step {
	if o == nil || o.CallID == "" {
		return nil
	}
	s.CallID, s.Failed, s.DurationMS, s.Summary = o.CallID, !o.Success, max(0, o.LatencyMS), Cut(o.Observation, dataWidth)
	if record := mem.ToolCalls[o.CallID]; record != nil {
		s.Name = record.Name
	}
	s.use(o.Usage)
	return s
}

func (s *Step) use(u *events.Usage) {
	if u != nil {
		s.Input, s.Output, s.Cached, s.CostUSD = u.Input, u.Output, u.Cached, u.CostUSD
	}
}

// modelOf returns the model that was asked, or the provider if the event does not have it.
func modelOf(mem *reducer.Memory, e Entry) string {
	if facts := events.FactsOf(e.Event.Data); facts != nil && facts.Asked != nil && facts.Asked.Model != "" {
		return facts.Asked.Model
	}
	var body struct{ Data struct{ Model string } }
	_ = json.Unmarshal(e.Record.Body, &body) // it was decoded before
	return cmp.Or(body.Data.Model, mem.Control.Agent.LLM.Provider)
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
		if s.Step != last { // 0 is before the first reply
			number, last = fmt.Sprint(s.Step), s.Step
		}
		if s.Kind == "tool" {
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
