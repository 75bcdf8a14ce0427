package print

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/terminal"
	"github.com/moorebus/moorebus/pkg/events"
)

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
