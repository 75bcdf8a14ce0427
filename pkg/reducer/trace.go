package reducer

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/moorebus/moorebus/pkg/events"
)

// Trace is what happened in a run, one entry an event, oldest first.
type Trace []TraceEntry

// ForState returns the entries of events that happened in a state.
func (t Trace) ForState(s events.State) []TraceEntry {
	var found []TraceEntry
	for _, entry := range t {
		if entry.State == string(s) {
			found = append(found, entry)
		}
	}
	return found
}

// JSON returns the trace as an indented JSON array.
func (t Trace) JSON() (string, error) {
	if t == nil {
		return "[]", nil
	}
	text, err := json.MarshalIndent([]TraceEntry(t), "", "  ")
	return string(text), err
}

// Print writes the trace as a table.
func (t Trace) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "STEP\tSTATE\tEVENT\tDATA")
	for _, entry := range t {
		_, _ = fmt.Fprintf(tw, "%d\t%s\t%s\t%s\n", entry.Step, entry.State, entry.Event, cut(entry.Data, 60))
	}
	return tw.Flush()
}

// traceTextLimit is how much of a text the trace keeps, in characters.
const traceTextLimit = 100

// cut shortens text to a number of characters, on one line.
func cut(text string, limit int) string {
	count := 0
	for i, r := range text {
		if r == '\n' || r == '\r' || r == '\t' {
			return cut(oneLine(text), limit)
		}
		if count == limit {
			return text[:i] + "…"
		}
		count++
	}
	return text
}

func oneLine(text string) string {
	b := []byte(text)
	for i, c := range b {
		if c == '\n' || c == '\r' || c == '\t' {
			b[i] = ' '
		}
	}
	return string(b)
}

func traceCalls(calls []events.Call) string {
	if len(calls) == 1 {
		c := &calls[0]
		return cut(c.Name+"("+cut(c.Arguments, traceTextLimit)+")", traceTextLimit)
	}
	text := ""
	for i, c := range calls {
		if i > 0 {
			text += ", "
		}
		if text += c.Name + "(" + cut(c.Arguments, traceTextLimit) + ")"; len(text) > 4*traceTextLimit {
			break
		}
	}
	return cut(text, traceTextLimit)
}

func traceAnswers(results []events.Answer) string {
	parts := make([]string, len(results))
	for i, a := range results {
		parts[i] = a.Code + ": " + a.Observation
	}
	return cut(strings.Join(parts, ", "), traceTextLimit)
}
