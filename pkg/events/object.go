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
// value's bytes as they stand. The text is checked first: it must be one valid
// JSON object of valid UTF-8.
func eachMember(object []byte, fn func(key, value []byte) error) error {
	if !utf8.Valid(object) {
		return errors.New("not valid UTF-8")
	}
	if !json.Valid(object) {
		return invalidJSON(object)
	}
	i := skipSpace(object, 0)
	if object[i] != '{' {
		return errNotObject
	}
	i = skipSpace(object, i+1)
	for object[i] != '}' {
		end := skipString(object, i)
		key, err := unquote(object[i:end])
		if err != nil {
			return err
		}
		i = skipSpace(object, end)
		i = skipSpace(object, i+1) // the colon
		end = skipValue(object, i)
		if err := fn(key, object[i:end]); err != nil {
			return err
		}
		i = skipSpace(object, end)
		if object[i] == ',' {
			i = skipSpace(object, i+1)
		}
	}
	return nil
}

func invalidJSON(text []byte) error {
	var v json.RawMessage
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	return errNotObject
}

// The skip functions walk over JSON that was found valid, so they need not
// look for its end.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

func skipString(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = skipString(b, i)
			if depth == 0 {
				return i
			}
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

func unquote(quoted []byte) ([]byte, error) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], nil
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return nil, err
	}
	return []byte(s), nil
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

// appendString appends s as a JSON string.
func appendString(b []byte, s string) ([]byte, error) {
	plain := true
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			plain = false
			break
		}
	}
	if plain {
		b = append(b, '"')
		b = append(b, s...)
		return append(b, '"'), nil
	}
	quoted, err := marshal(s)
	return append(b, quoted...), err
}
