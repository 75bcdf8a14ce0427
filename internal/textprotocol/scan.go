package textprotocol

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The limits of a reply.
const (
	// maxReply is the longest reply that is read, in bytes.
	maxReply = 4 << 20
	// maxFields is how many elements one element may hold.
	maxFields = 200
	// maxTag is the longest tag with its attributes, in bytes; a longer one is text.
	// It bounds the cost of a text full of tags.
	maxTag = 1 << 10
)

// syntaxError is why a reply cannot be read; at is the place, in bytes of what
// was scanned.
type syntaxError struct {
	at     int
	reason string
}

func wrong(at int, format string, args ...any) *syntaxError {
	return &syntaxError{at, fmt.Sprintf(format, args...)}
}

// place says where a byte of a text is, in lines and characters from 1.
func place(text string, at int) string {
	before := text[:at]
	line := strings.Count(before, "\n")
	column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return fmt.Sprintf("line %d, column %d", line+1, column+1)
}

// tag is `<name …>`, `</name>` or `<name …/>`. Attributes are skipped.
type tag struct {
	name           string
	closing, empty bool
	start, end     int
}

func (t tag) is(name string) bool { return strings.EqualFold(t.name, name) }

// tagAt reads the tag that begins at a `<`; false if the `<` is text.
func tagAt(text string, at int) (tag, bool) {
	t := tag{start: at}
	text = text[:min(len(text), at+maxTag)]
	i := at + 1
	if i < len(text) && text[i] == '/' {
		t.closing = true
		i = skipSpace(text, i+1)
	}
	from := i
	for i < len(text) && isNameByte(text[i], i == from) {
		i++
	}
	t.name = text[from:i]
	if t.name == "" || i == len(text) || !strings.ContainsRune(" \t\r\n/>", rune(text[i])) {
		return t, false
	}
	for i < len(text) {
		switch c := text[i]; c {
		case '>':
			t.empty = !t.closing && text[i-1] == '/'
			t.end = i + 1
			return t, true
		case '<':
			return t, false
		case '"', '\'':
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 {
				return t, false
			}
			i += end + 1
		}
		i++
	}
	return t, false
}

func isNameByte(c byte, first bool) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c >= utf8.RuneSelf:
		return true
	case c >= '0' && c <= '9', c == '-', c == '.', c == ':':
		return !first
	}
	return false
}

func skipSpace(text string, i int) int {
	for i < len(text) && strings.IndexByte(" \t\r\n", text[i]) >= 0 {
		i++
	}
	return i
}

const (
	commentOpen, commentClose = "<!--", "-->"
	cdataOpen, cdataClose     = "<![CDATA[", "]]>"
	piOpen, piClose           = "<?", "?>"
)

// findAgent returns the first `<agent>` of a text that is not in a comment.
func findAgent(text string) (tag, bool) {
	comments := true
	for i := 0; ; {
		next := strings.IndexByte(text[i:], '<')
		if next < 0 {
			return tag{}, false
		}
		i += next
		if comments && strings.HasPrefix(text[i:], commentOpen) {
			if end := strings.Index(text[i:], commentClose); end >= 0 {
				i += end + len(commentClose)
				continue
			}
			comments = false // an unclosed comment is text
		}
		if t, ok := tagAt(text, i); ok && !t.closing && t.is("agent") {
			return t, true
		}
		i++
	}
}

// field is an element that holds text: it begins at at, and its text raw at from.
type field struct {
	name string
	raw  string
	at   int
	from int
}

// scanner reads the content of the agent element.
type scanner struct {
	text string
	at   int
}

// next returns the next tag, past white space, comments and the fences of code
// blocks; false at the end of the text. Anything else between elements is wrong.
func (s *scanner) next(within string) (tag, bool, *syntaxError) {
	for {
		for s.at < len(s.text) && strings.IndexByte(" \t\r\n`", s.text[s.at]) >= 0 {
			s.at++
		}
		rest := s.text[s.at:]
		switch {
		case rest == "":
			return tag{}, false, nil
		case strings.HasPrefix(rest, commentOpen):
			if err := s.skip(commentOpen, commentClose, "a comment"); err != nil {
				return tag{}, false, err
			}
			continue
		case strings.HasPrefix(rest, piOpen):
			if err := s.skip(piOpen, piClose, "an instruction"); err != nil {
				return tag{}, false, err
			}
			continue
		}
		t, ok := tag{}, false
		if rest[0] == '<' {
			t, ok = tagAt(s.text, s.at)
		}
		if !ok {
			return tag{}, false, wrong(s.at, "expected an element within <%s>, found text: %q", within, head(rest))
		}
		s.at = t.end
		return t, true, nil
	}
}

func (s *scanner) skip(open, end, what string) *syntaxError {
	i := strings.Index(s.text[s.at+len(open):], end)
	if i < 0 {
		return wrong(s.at, "%s is never closed: expected %s", what, end)
	}
	s.at += len(open) + i + len(end)
	return nil
}

// field reads the text of an element after its opening tag: everything up to its
// closing tag, markup too. Without that tag it ends where an outer element is closed,
// if nothing before that looks like markup.
func (s *scanner) field(open tag, around ...string) (field, *syntaxError) {
	f := field{name: open.name, at: open.start, from: open.end}
	if open.empty {
		return f, nil
	}
	outer, markup := -1, false
	for i := open.end; ; {
		next := strings.IndexByte(s.text[i:], '<')
		if next < 0 {
			break
		}
		i += next
		if strings.HasPrefix(s.text[i:], cdataOpen) {
			end := strings.Index(s.text[i:], cdataClose)
			if end < 0 {
				return f, wrong(i, "the CDATA section is never closed: expected %s", cdataClose)
			}
			i += end + len(cdataClose)
			continue
		}
		t, ok := tagAt(s.text, i)
		switch {
		case !ok:
		case t.closing && t.is(open.name):
			f.raw, s.at = s.text[open.end:i], t.end
			return f, nil
		case !t.closing && t.is(open.name):
			return f, wrong(i, "<%s> stands within <%s>: close that first, or write &lt; for a < in a value", t.name, open.name)
		case t.closing && isOneOf(t, around) && outer < 0 && !markup:
			outer = i
		default:
			markup = true
		}
		i++
	}
	if outer < 0 {
		return f, wrong(open.start, "<%s> is never closed: expected </%s>", open.name, open.name)
	}
	f.raw, s.at = s.text[open.end:outer], outer
	return f, nil
}

func isOneOf(t tag, names []string) bool {
	for _, name := range names {
		if t.is(name) {
			return true
		}
	}
	return false
}

// head is the beginning of a text, for messages.
func head(text string) string {
	const limit = 40
	count := 0
	for i := range text {
		if count++; count > limit {
			return text[:i] + "…"
		}
	}
	return text
}

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
