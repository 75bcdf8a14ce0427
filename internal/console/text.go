package console

import (
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/terminal"
)

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

// pad appends blanks up to a number of characters.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}
