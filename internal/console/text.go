package console

import (
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/cli"
)

// Color reports whether text that goes to a file should be coloured: it is a
// terminal that can, and NO_COLOR is not set.
func Color(f *os.File, getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && cli.IsTerminal(f)
}

// Plain returns text as a terminal can show it on one line: what controls a
// terminal or turns the writing direction is gone, white space is one blank.
func Plain(text string) string { return strings.Join(strings.Fields(Printable(text)), " ") }

// Printable returns text of several lines without what controls a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r):
			return ' '
		case unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd"))
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
