package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what is decoded. A larger exponent would only make exact comparison slow.
const (
	maxDepth    = 1000
	maxExponent = 1000
)

// decode parses exactly one JSON value, with numbers as json.Number. Unlike package json
// it refuses keys that occur twice. Errors have the byte, counted from 0, at which the
// text goes wrong.
func decode(text string) (any, error) {
	if err := syntax(text); err != nil {
		return nil, err
	}
	d := decoder{text: text}
	return d.value(0)
}

// syntax checks the entire text.
func syntax(text string) error {
	if json.Valid([]byte(text)) {
		return nil
	}
	var raw json.RawMessage
	err := json.Unmarshal([]byte(text), &raw)
	var wrong *json.SyntaxError
	if !errors.As(err, &wrong) {
		return err
	}
	if wrong.Offset >= int64(len(text)) && wrong.Error() == "unexpected end of JSON input" {
		return fmt.Errorf("the text ends too early at byte %d", len(text))
	}
	return fmt.Errorf("%w at byte %d", wrong, wrong.Offset-1)
}

// decoder reads valid JSON, so it need not look for its end. at is the byte behind what it has read.
type decoder struct {
	text string
	at   int
}

// next returns the first byte of the next token.
func (d *decoder) next() byte {
	for strings.IndexByte(" \t\r\n,:", d.text[d.at]) >= 0 {
		d.at++
	}
	return d.text[d.at]
}

func (d *decoder) value(depth int) (any, error) {
	switch begin := d.next(); begin {
	case '{', '[':
		d.at++
		if depth >= maxDepth {
			return nil, fmt.Errorf("nested more than %d deep at byte %d", maxDepth, d.at)
		}
		if begin == '{' {
			return d.object(depth + 1)
		}
		return d.array(depth + 1)
	case '"':
		return d.string(), nil
	case 't', 'f', 'n':
		return d.word(), nil
	}
	return d.number()
}

func (d *decoder) object(depth int) (any, error) {
	object := map[string]any{}
	for d.next() != '}' {
		key := d.string()
		if _, ok := object[key]; ok {
			return nil, fmt.Errorf("the key %q occurs twice in one object, again at byte %d", key, d.at)
		}
		var err error
		if object[key], err = d.value(depth); err != nil {
			return nil, err
		}
	}
	d.at++
	return object, nil
}

func (d *decoder) array(depth int) (any, error) {
	array := []any{}
	for d.next() != ']' {
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		array = append(array, v)
	}
	d.at++
	return array, nil
}

func (d *decoder) string() string {
	begin := d.at
	for d.at++; d.text[d.at] != '"'; d.at++ {
		if d.text[d.at] == '\\' {
			d.at++
		}
	}
	d.at++
	s := d.text[begin+1 : d.at-1]
	if strings.IndexByte(s, '\\') >= 0 || !utf8.ValidString(s) {
		_ = json.Unmarshal([]byte(d.text[begin:d.at]), &s) // it is valid
	}
	return s
}

// token returns the text up to where a number or a word ends.
func (d *decoder) token() string {
	t := d.text[d.at:]
	if end := strings.IndexAny(t, ",]} \t\r\n"); end >= 0 {
		t = t[:end]
	}
	d.at += len(t)
	return t
}

func (d *decoder) word() any {
	if t := d.token(); t != "null" {
		return t == "true"
	}
	return nil
}

func (d *decoder) number() (any, error) {
	n := json.Number(d.token())
	if len(n) > maxDigits {
		return nil, fmt.Errorf("the number ending at byte %d has more than %d digits", d.at, maxDigits)
	}
	i := strings.IndexAny(string(n), "eE")
	if i < 0 {
		return n, nil
	}
	if e, err := strconv.Atoi(string(n[i+1:])); err != nil || e > maxExponent || e < -maxExponent {
		return nil, fmt.Errorf("the number ending at byte %d has an exponent beyond ±%d", d.at, maxExponent)
	}
	return n, nil
}
