package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ErrNotObject is the error for JSON that is not one object.
var ErrNotObject = errors.New("not a JSON object")

// Members calls fn for every member of a JSON object, in order, with the value's
// bytes as they stand in the text. What the values consist of is not checked, so that
// a large one is read only once, by whoever decodes it. It ends with fn's first
// error.
func Members(object []byte, fn func(key, value []byte) error) error {
	if !utf8.Valid(object) {
		return errors.New("not valid UTF-8")
	}
	i := skipSpace(object, 0)
	if at(object, i) != '{' {
		return Invalid(object)
	}
	i = skipSpace(object, i+1)
	for more := at(object, i) != '}'; more; {
		keyEnd := skipString(object, i)
		colon := skipSpace(object, keyEnd)
		if keyEnd == i || at(object, colon) != ':' {
			return Invalid(object)
		}
		key, err := Unquote(object[i:keyEnd])
		if err != nil {
			return err
		}
		start := skipSpace(object, colon+1)
		end := skipValue(object, start)
		if end == start {
			return Invalid(object)
		}
		if err := fn(key, object[start:end]); err != nil {
			return err
		}
		i = skipSpace(object, end)
		if more = at(object, i) == ','; more {
			i = skipSpace(object, i+1)
		}
	}
	if at(object, i) != '}' || skipSpace(object, i+1) != len(object) {
		return Invalid(object)
	}
	return nil
}

// Invalid returns what is wrong with a text that is not one JSON object.
func Invalid(text []byte) error {
	var v json.RawMessage
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	return ErrNotObject
}

// Unquote reads a JSON string, from its first quote to its last.
func Unquote(quoted []byte) ([]byte, error) {
	if inner := quoted[1 : len(quoted)-1]; plainEnd(inner) == len(inner) {
		return inner, nil
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return nil, Invalid(quoted)
	}
	return []byte(s), nil
}

// at returns the byte at i, 0 at the end.
func at(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// The skip functions find where a piece of JSON ends, at the latest at the end
// of the text. They do not check the piece.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns i itself where no string begins or it does not end.
func skipString(b []byte, i int) int {
	if at(b, i) != '"' {
		return i
	}
	if end := i + 1 + plainEnd(b[i+1:]); at(b, end) == '"' {
		return end + 1
	}
	for j := i + 1; ; {
		k := bytes.IndexByte(b[j:], '"')
		if k < 0 {
			return i
		}
		escape := bytes.IndexByte(b[j:j+k], '\\')
		if escape < 0 {
			return j + k + 1
		}
		if j += escape + 2; j > len(b) {
			return i
		}
	}
}

func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			end := skipString(b, i)
			if depth == 0 || end == i {
				return end
			}
			i = end
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return i
}
