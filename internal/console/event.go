package console

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// The widths of an event's columns. A longer value moves the columns after it.
const (
	edgeWidth = 29
	typeWidth = 21
	dataWidth = 100
)

// EventLine returns an event as one line without a line end: its number, the time since
// started (its time of day if started is zero), the states, its type, and a summary.
func EventLine(e *events.Event, started time.Time, color bool) string {
	edge := string(e.From)
	if e.From != e.To {
		edge += " → " + string(e.To)
	}
	clock := e.Time.Local().Format("15:04:05.000")
	if !started.IsZero() {
		clock = Elapsed(e.Time.Sub(started))
	}
	p := Palette{color}
	line := fmt.Sprintf("%5d  %s  %s  %s  %s", e.N, p.Faint(fmt.Sprintf("%9s", clock)),
		p.State(e.To, Pad(edge, edgeWidth)), p.Bold(Pad(string(e.Type()), typeWidth)), Summary(e.Data))
	return strings.TrimRight(line, " ")
}

// replyIndent is where the lines before a reply stand, beside the numbers of events.
const replyIndent = "       "

// ReplyLines returns what stands before a reply: that the server dropped context, and what
// the model reasoned, in one line or whole. Of reasoning that only the provider can read that
// is nothing, or its number of parts. The lines have no line end. There may be none.
func ReplyLines(p events.Payload, whole, color bool) []string {
	f := events.FactsOf(p)
	if f == nil {
		return nil
	}
	lines := reasoningLines(f, whole, color)
	if d := f.ContextDropped; d != nil {
		warning := fmt.Sprintf("the server read only %d of at least %d tokens and dropped the rest", d.Read, d.Sent)
		lines = append([]string{replyIndent + Palette{color}.Yellow(warning)}, lines...)
	}
	return lines
}

func reasoningLines(f *events.Facts, whole, color bool) []string {
	if len(f.Reasoning) == 0 && f.ReasoningRef == nil {
		return nil
	}
	text := f.Reasoning.Text()
	if text == "" && f.ReasoningRef == nil && !whole {
		return nil // nothing that could be read, such as a signature
	}
	head := reasoned(text, f.Reasoning.Opaque(), f.ReasoningRef)
	lines := []string{head + Cut(text, dataWidth)}
	if whole && text != "" {
		lines = append([]string{strings.TrimSpace(head)}, strings.Split(strings.TrimRight(text, "\n"), "\n")...)
	}
	for i, line := range lines {
		lines[i] = replyIndent + Palette{color}.Faint(terminal.Visible(line))
	}
	return lines
}

// reasoned says how much a model reasoned.
func reasoned(text string, opaque int, ref *events.Ref) string {
	switch {
	case ref != nil:
		return fmt.Sprintf("reasoned %d bytes, kept in %s under %s", ref.Size, Plain(ref.Bucket), Plain(ref.Key))
	case text == "" && opaque == 1:
		return "reasoned, in 1 part that only the provider can read"
	case text == "":
		return fmt.Sprintf("reasoned, in %d parts that only the provider can read", opaque)
	}
	return fmt.Sprintf("reasoned %d characters: ", utf8.RuneCountInString(text))
}

// PoisonLine is [EventLine] for the n-th record of a run if it is not a legal event. n is 0
// if it is not known.
func PoisonLine(n uint64, reason string, color bool) string {
	number := "-"
	if n > 0 {
		number = fmt.Sprint(n)
	}
	return fmt.Sprintf("%5s  %s", number, Palette{color}.Red("not a legal event: "+Cut(reason, 2*dataWidth)))
}

// Elapsed formats a time span for the columns: +0.412s, +1m05s, +2h03m.
func Elapsed(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%+.3fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("+%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("+%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// Palette colours text for a terminal if On.
type Palette struct{ On bool }

func (p Palette) paint(code, text string) string {
	if !p.On || text == "" {
		return text
	}
	return terminal.Style(code, text)
}

// Bold, Faint, Red, Green, Yellow and Blue return text in that style.
func (p Palette) Bold(text string) string   { return p.paint("1", text) }
func (p Palette) Faint(text string) string  { return p.paint("2", text) }
func (p Palette) Red(text string) string    { return p.paint("31", text) }
func (p Palette) Green(text string) string  { return p.paint("32", text) }
func (p Palette) Yellow(text string) string { return p.paint("33", text) }
func (p Palette) Blue(text string) string   { return p.paint("36", text) }

// State colours text by a state.
func (p Palette) State(s events.State, text string) string {
	switch s {
	case events.Done:
		return p.Green(text)
	case events.Errored, events.Cancelled:
		return p.Red(text)
	case events.WaitingForHuman, events.WaitingForUser:
		return p.Yellow(text)
	}
	return p.Blue(text)
}

// Plain returns text on one line: white space becomes one blank, and control characters
// become visible, see [terminal.Visible].
func Plain(text string) string {
	return terminal.Visible(strings.Join(strings.Fields(text), " "))
}

// Cut is [Plain] shortened to a number of characters.
func Cut(text string, limit int) string {
	// A long text is cut early, with a reserve for white space.
	if most := 8 * limit; len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	text = Plain(text)
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	count := 0
	for i := range text {
		if count++; count == limit {
			return strings.TrimRight(text[:i], " ") + "…"
		}
	}
	return text
}

// Pad appends blanks up to a number of characters.
func Pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// Summary returns an event's data on one line of at most 100 characters. It is empty if the
// type says everything.
func Summary(p events.Payload) string { return Cut(events.Summary(p), dataWidth) }

// WriteTrace writes a trace as a table or as JSON. A state selects its entries. reasoning
// returns the lines that stand before an entry of the table.
func WriteTrace(w io.Writer, trace reducer.Trace, state events.State, f Format, reasoning func(reducer.TraceEntry) []string) error {
	if state != "" {
		trace = trace.ForState(state)
	}
	if f == JSON {
		text, err := trace.JSON()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, text)
		return err
	}
	rows := make([][]string, 0, len(trace))
	for _, entry := range trace {
		for _, line := range reasoning(entry) {
			rows = append(rows, []string{fmt.Sprint(entry.Step), entry.State, "", strings.TrimPrefix(line, replyIndent), ""})
		}
		rows = append(rows, []string{
			fmt.Sprint(entry.Step), entry.State, entry.Event, Cut(entry.Data, dataWidth), entry.Timestamp.Format(time.RFC3339Nano),
		})
	}
	return WriteTable(w, []string{"STEP", "STATE", "EVENT", "DATA", "TIMESTAMP"}, rows)
}
