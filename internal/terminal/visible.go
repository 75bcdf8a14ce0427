package terminal

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible returns text in which everything is visible that could control a
// terminal, turn the writing direction or end a line unseen: control characters but
// for line feeds and tabs, bidi controls, U+2028 and U+2029, and bytes that are not
// UTF-8 stand as escapes, such as \x1b. JSON stays JSON with the same value.
func Visible(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	shown := make([]byte, 0, len(text)+16)
	for rest := []byte(text); len(rest) > 0; {
		size := 0
		shown, size = appendVisible(shown, rest)
		rest = rest[size:]
	}
	return string(shown)
}

// appendVisible appends the first character of text, which is not empty, and
// returns its length too.
func appendVisible(shown, text []byte) ([]byte, int) {
	r, size := utf8.DecodeRune(text)
	switch {
	case r == utf8.RuneError && size == 1:
		return fmt.Appendf(shown, `\x%02x`, text[0]), 1
	case !hidden(r) || r == utf8.RuneError:
		return append(shown, text[:size]...), size
	case r < ' ':
		return fmt.Appendf(shown, `\x%02x`, r), size
	}
	// JSON may hold these as they are, and then this means the same there.
	return fmt.Appendf(shown, `\u%04x`, r), size
}

// hidden reports whether a character must not reach a terminal. What is not UTF-8
// counts, and with it, for [Visible] to look closer, the character U+FFFD.
func hidden(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < 0x7f:
		return r < ' '
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' || r == utf8.RuneError
}

// Width returns how many columns a character takes at most.
func Width(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r < 0x1100:
		return 1
	}
	return 2 // many are narrower, none is wider
}
