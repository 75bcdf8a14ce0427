package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/codec"
)

// maxDepth bounds how deep a document goes.
const maxDepth = 100

// ParseJSON reads one JSON document.
func ParseJSON(data []byte) (*Node, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if err := checkUTF8(data); err != nil {
		return nil, err
	}
	if !json.Valid(data) {
		return nil, syntaxError(data)
	}
	s := scanner{data: data, text: string(data), line: 1}
	node, err := s.value()
	if err != nil {
		return nil, err
	}
	return node, nil
}

// CheckDepth returns an error if a valid JSON document is deeper than [ParseJSON] takes, nil otherwise. It is for
// documents of others, which may have more than ParseJSON takes, and are kept inside other ones: what is
// too deep with its surroundings could not be written again.
func CheckDepth(data []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("the document is deeper than %d levels", maxDepth)
			}
		case c == '}', c == ']':
			depth--
		}
	}
	return nil
}

// checkUTF8 returns an error with the line of the first byte that is not UTF-8.
func checkUTF8(data []byte) error {
	line := 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size <= 1 {
			return &Error{Line: line, Reason: "not valid UTF-8"}
		}
		if r == '\n' {
			line++
		}
		i += size
	}
	return nil
}

func syntaxError(data []byte) error {
	var v json.RawMessage
	err := json.Unmarshal(data, &v)
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return &Error{Line: 1, Reason: "not valid JSON"}
	}
	at := min(max(int(syntax.Offset)-1, 0), len(data))
	return &Error{Line: 1 + bytes.Count(data[:at], []byte{'\n'}), Reason: "not valid JSON: " + syntax.Error()}
}

// scanner walks over JSON that was found valid, so it need not look for its
// end.
type scanner struct {
	data []byte
	// text is data: the words and most strings of the document are pieces of it.
	text  string
	pos   int
	line  int
	depth int
	// within are the members and items that the scanner is in, for the paths of errors.
	within []step
}

// step leads into a value: by the key of a member, or by the index of an item.
type step struct {
	key   string
	index int
	item  bool
}

// errorf returns an error about the value that the scanner is in.
func (s *scanner) errorf(line int, format string, args ...any) error {
	path := ""
	for _, w := range s.within {
		if w.item {
			path = index(path, w.index)
		} else {
			path = join(path, w.key)
		}
	}
	return (&Node{Line: line}).Errorf(path, format, args...)
}

// inner reads the value that a step leads to.
func (s *scanner) inner(w step) (*Node, error) {
	s.within = append(s.within, w)
	n, err := s.value()
	s.within = s.within[:len(s.within)-1]
	return n, err
}

func (s *scanner) space() {
	for ; s.pos < len(s.data); s.pos++ {
		switch s.data[s.pos] {
		case '\n':
			s.line++
		case ' ', '\t', '\r':
		default:
			return
		}
	}
}

func (s *scanner) value() (*Node, error) {
	s.space()
	n := &Node{Line: s.line}
	start := s.pos
	if s.depth++; s.depth > maxDepth {
		return nil, n.Errorf("", "the document is deeper than %d levels", maxDepth)
	}
	defer func() { s.depth-- }()
	var err error
	switch c := s.data[s.pos]; c {
	case '{':
		n.Kind = Object
		err = s.object(n)
	case '[':
		n.Kind = Array
		err = s.array(n)
	case '"':
		n.Kind = String
		n.Text, err = s.quoted()
	case 'n':
		s.pos += len("null")
	case 't', 'f':
		n.Kind = Bool
		n.Text = s.word()
	default:
		n.Kind = Number
		n.Text = s.word()
	}
	n.raw = s.data[start:s.pos]
	return n, err
}

// word reads a number or a truth value.
func (s *scanner) word() string {
	start := s.pos
	for s.pos < len(s.data) && bytes.IndexByte([]byte(",]} \t\r\n"), s.data[s.pos]) < 0 {
		s.pos++
	}
	return s.text[start:s.pos]
}

// quoted reads a string. A surrogate without its other half is refused: it would
// silently become another character.
func (s *scanner) quoted() (string, error) {
	start := s.pos
	for s.pos++; s.data[s.pos] != '"'; s.pos++ {
		if s.data[s.pos] == '\\' {
			s.pos++
		}
	}
	s.pos++
	quoted := s.data[start:s.pos]
	if bytes.IndexByte(quoted, '\\') < 0 {
		return s.text[start+1 : s.pos-1], nil
	}
	if loneSurrogate(quoted) {
		return "", s.errorf(s.line, `half of a surrogate pair (\ud800 to \udfff) is not valid Unicode`)
	}
	var text string
	if err := json.Unmarshal(quoted, &text); err != nil {
		return "", s.errorf(s.line, "%s", err.Error())
	}
	return text, nil
}

func loneSurrogate(quoted []byte) bool {
	for i := 0; i < len(quoted); i++ {
		if quoted[i] != '\\' {
			continue
		}
		if i++; quoted[i] != 'u' {
			continue
		}
		switch unit := codeUnit(quoted[i+1:]); {
		case unit >= 0xdc00 && unit < 0xe000:
			return true
		case unit >= 0xd800 && unit < 0xdc00:
			rest := quoted[i+5:]
			if len(rest) < 6 || rest[0] != '\\' || rest[1] != 'u' {
				return true
			}
			if low := codeUnit(rest[2:]); low < 0xdc00 || low >= 0xe000 {
				return true
			}
			i += 6
		}
		i += 4
	}
	return false
}

func codeUnit(digits []byte) uint64 {
	unit, _ := strconv.ParseUint(string(digits[:4]), 16, 16)
	return unit
}

func (s *scanner) object(n *Node) error {
	seen := map[string]int{}
	s.pos++
	for s.space(); s.data[s.pos] != '}'; s.space() {
		line := s.line
		key, err := s.quoted()
		if err != nil {
			return err
		}
		if first, twice := seen[key]; twice {
			s.within = append(s.within, step{key: key})
			return s.errorf(line, "the key stands there twice, first in line %d", first)
		}
		seen[key] = line
		s.space()
		s.pos++ // the colon
		value, err := s.inner(step{key: key})
		if err != nil {
			return err
		}
		n.Members = append(n.Members, Member{Key: key, Line: line, Value: value})
		if s.space(); s.data[s.pos] == ',' {
			s.pos++
		}
	}
	s.pos++
	return nil
}

func (s *scanner) array(n *Node) error {
	s.pos++
	for s.space(); s.data[s.pos] != ']'; s.space() {
		item, err := s.inner(step{index: len(n.Items), item: true})
		if err != nil {
			return err
		}
		n.Items = append(n.Items, item)
		if s.space(); s.data[s.pos] == ',' {
			s.pos++
		}
	}
	s.pos++
	return nil
}

// JSON returns the value as JSON: as it stands in a JSON document, compact and
// in the document's order if it comes from YAML.
func (n *Node) JSON() json.RawMessage {
	if n.raw != nil {
		return n.raw
	}
	return n.appendJSON(nil)
}

func (n *Node) appendJSON(b []byte) []byte {
	if n.raw != nil {
		return append(b, n.raw...)
	}
	switch n.Kind {
	case Bool, Number:
		return append(b, n.Text...)
	case String:
		return codec.AppendString(b, n.Text)
	case Array:
		b = append(b, '[')
		for i, item := range n.Items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.appendJSON(b)
		}
		return append(b, ']')
	case Object:
		b = append(b, '{')
		for i, m := range n.Members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(codec.AppendString(b, m.Key), ':')
			b = m.Value.appendJSON(b)
		}
		return append(b, '}')
	}
	return append(b, "null"...)
}
