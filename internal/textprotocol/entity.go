package textprotocol

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// value returns the text of a field without the white space around it. Entities and
// CDATA sections are decoded, everything else is as written.
func (f field) value() string { return decode(strings.TrimSpace(f.raw)) }

func decode(raw string) string {
	if !strings.Contains(raw, "&") && !strings.Contains(raw, cdataOpen) {
		return raw
	}
	var b strings.Builder
	for raw != "" {
		i := strings.IndexAny(raw, "&<")
		if i < 0 {
			break
		}
		b.WriteString(raw[:i])
		raw = raw[i:]
		if strings.HasPrefix(raw, cdataOpen) {
			// The scanner has checked that the section is closed.
			text, rest, _ := strings.Cut(raw[len(cdataOpen):], cdataClose)
			b.WriteString(text)
			raw = rest
			continue
		}
		text, width := entity(raw)
		b.WriteString(text)
		raw = raw[width:]
	}
	b.WriteString(raw)
	return b.String()
}

var entities = map[string]string{"lt": "<", "gt": ">", "amp": "&", "quot": `"`, "apos": "'"}

// longestEntity is the length of `&#x10FFFF;`, and of some leading zeros.
const longestEntity = 16

// entity decodes the text at a `&` or `<` and returns how many bytes it read. If it is no
// entity it is one character.
func entity(raw string) (string, int) {
	end := strings.IndexByte(raw[:min(len(raw), longestEntity)], ';')
	if raw[0] != '&' || end < 2 {
		return raw[:1], 1
	}
	name := raw[1:end]
	if text, ok := entities[name]; ok {
		return text, end + 1
	}
	if name[0] != '#' {
		return raw[:1], 1
	}
	digits, base := name[1:], 10
	if len(digits) > 0 && (digits[0] == 'x' || digits[0] == 'X') {
		digits, base = digits[1:], 16
	}
	n, err := strconv.ParseUint(digits, base, 32)
	if err != nil || n == 0 || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
		return raw[:1], 1
	}
	return string(rune(n)), end + 1
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// escape escapes a text so that it cannot leave its element.
func escape(text string) string { return escaper.Replace(text) }
