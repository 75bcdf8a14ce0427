package console

import (
	"strings"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/terminal"
)

// Plain returns text on one line: white space is one blank, and what would control
// a terminal is visible, as [terminal.Visible] has it.
func Plain(text string) string {
	return terminal.Visible(strings.Join(strings.Fields(text), " "))
}

// Cut is [Plain] shortened to a number of characters.
func Cut(text string, limit int) string {
	// No more is looked at than can be shown, with some for white space.
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

// pad fills text up with blanks to a number of characters.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}
