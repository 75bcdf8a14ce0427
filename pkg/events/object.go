package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// errNotObject is the error of a body that is not one JSON object.
var errNotObject = errors.New("not a JSON object")

// eachMember calls fn for every member of a JSON object, in order, with the
// value's bytes as they stand. The text must be valid UTF-8 and the object well
// formed; the values are found by their ends alone and not checked, so that the
// large one is read only once, by whoever decodes it.
func eachMember(object []byte, fn func(key, value []byte) error) error {
	if !utf8.Valid(object) {
		return errors.New("not valid UTF-8")
	}
	i := skipSpace(object, 0)
	if at(object, i) != '{' {
		return invalidJSON(object)
	}
	i = skipSpace(object, i+1)
	for first := true; first || at(object, i) != '}'; first = false {
		if first && at(object, i) == '}' {
			break
		}
		if !first {
			if at(object, i) != ',' {
				return invalidJSON(object)
			}
			i = skipSpace(object, i+1)
		}
		keyEnd := skipString(object, i)
		colon := skipSpace(object, keyEnd)
		if keyEnd == i || at(object, colon) != ':' {
			return invalidJSON(object)
		}
		key, err := unquote(object[i:keyEnd])
		if err != nil {
			return err
		}
		start := skipSpace(object, colon+1)
		end := skipValue(object, start)
		if end == start {
			return invalidJSON(object)
		}
		if err := fn(key, object[start:end]); err != nil {
			return err
		}
		i = skipSpace(object, end)
	}
	if skipSpace(object, i+1) != len(object) {
		return invalidJSON(object)
	}
	return nil
}

// at returns the byte at i, 0 at the end.
func at(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// compactObject checks that text is a JSON object and takes the white space out.
func compactObject(text []byte) ([]byte, error) {
	if !json.Valid(text) {
		return nil, invalidJSON(text)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return nil, err
	}
	if b.Bytes()[0] != '{' {
		return nil, errNotObject
	}
	return b.Bytes(), nil
}

func invalidJSON(text []byte) error {
	var v json.RawMessage
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	return errNotObject
}

// The skip functions find where a piece of JSON ends, at the latest at the end
// of the text. That the piece is valid is not their matter.

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

// unquote reads a JSON string, from its first quote to its last.
func unquote(quoted []byte) ([]byte, error) {
	for _, c := range quoted {
		if c == '\\' || c < 0x20 {
			var s string
			if err := json.Unmarshal(quoted, &s); err != nil {
				return nil, invalidJSON(quoted)
			}
			return []byte(s), nil
		}
	}
	return quoted[1 : len(quoted)-1], nil
}

// marshal is json.Marshal without the escapes that only HTML needs: the log
// holds text, and escapes would make it longer.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
