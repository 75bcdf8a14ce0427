package terminal

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible returns text with escapes such as \x1b for everything that could control a terminal,
// change the writing direction, or end a line unseen: control characters except line feeds and
// tabs, bidi controls, U+2028, U+2029, and bytes that are not UTF-8. JSON stays JSON with the
// same value.
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

// appendVisible appends the first character of text, which must not be empty, and returns its
// length in text.
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
	// JSON may hold these characters unescaped; there the escape means the same.
	return fmt.Appendf(shown, `\u%04x`, r), size
}

// hidden reports whether a character must not reach a terminal, or may be a byte that is not
// UTF-8, which decodes as U+FFFD.
func hidden(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < 0x7f:
		return r < ' '
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' || r == utf8.RuneError
}

// Width returns the largest number of columns that a character may take.
func Width(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case r < 0x1100:
		return 1
	}
	return 2 // many are narrower, none is wider
}
