package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what is decoded. Numbers keep their text; an exponent beyond the
// bound would only serve to make exact comparison slow.
const (
	maxDepth    = 1000
	maxExponent = 1000
)

// decode parses exactly one JSON value, numbers as json.Number. Its errors say
// at which byte, counted from 0, the text goes wrong.
func decode(text string) (any, error) {
	if !json.Valid([]byte(text)) {
		if err := syntax(text); err != nil {
			return nil, err
		}
	}
	d := decoder{text: text}
	return d.value(0)
}

// syntax says where a text goes wrong: only a check of the whole has a reliable
// offset for every error, and sees what follows one value.
func syntax(text string) error {
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

// decoder reads text that is valid JSON. Package json's own decoder tells neither
// of keys that occur twice nor where a value ends.
type decoder struct {
	text string
	at   int
}

// next passes white space, commas and colons, and returns the byte that begins what
// comes then.
func (d *decoder) next() byte {
	for {
		switch c := d.text[d.at]; c {
		case ' ', '\t', '\n', '\r', ',', ':':
			d.at++
		default:
			return c
		}
	}
}

func (d *decoder) value(depth int) (any, error) {
	switch d.next() {
	case '{', '[':
		if depth >= maxDepth {
			return nil, fmt.Errorf("nested more than %d deep at byte %d", maxDepth, d.at+1)
		}
		if d.text[d.at] == '{' {
			return d.object(depth)
		}
		return d.array(depth)
	case '"':
		return d.string()
	case 't':
		d.at += len("true")
		return true, nil
	case 'f':
		d.at += len("false")
		return false, nil
	case 'n':
		d.at += len("null")
		return nil, nil
	}
	return d.number()
}

func (d *decoder) object(depth int) (any, error) {
	obj := map[string]any{}
	for d.at++; d.next() != '}'; {
		key, err := d.string()
		if err != nil {
			return nil, err
		}
		if _, ok := obj[key]; ok {
			return nil, fmt.Errorf("the key %q occurs twice in one object, again at byte %d", key, d.at)
		}
		if obj[key], err = d.value(depth + 1); err != nil {
			return nil, err
		}
	}
	d.at++
	return obj, nil
}

func (d *decoder) array(depth int) (any, error) {
	arr := []any{}
	for d.at++; d.next() != ']'; {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		arr = append(arr, v)
	}
	d.at++
	return arr, nil
}

// string takes a string. One with escapes, or that is not UTF-8, is left to package
// json.
func (d *decoder) string() (string, error) {
	start := d.at
	plain := true
	for d.at++; d.text[d.at] != '"'; d.at++ {
		if d.text[d.at] == '\\' {
			plain = false
			d.at++ // whatever it escapes
		}
	}
	d.at++
	if inner := d.text[start+1 : d.at-1]; plain && utf8.ValidString(inner) {
		return inner, nil
	}
	var s string
	err := json.Unmarshal([]byte(d.text[start:d.at]), &s)
	return s, err
}

// number takes a number as the text that it is.
func (d *decoder) number() (any, error) {
	start := d.at
	for d.at < len(d.text) && strings.IndexByte("+-.0123456789eE", d.text[d.at]) >= 0 {
		d.at++
	}
	n := json.Number(d.text[start:d.at])
	return n, d.checkNumber(n)
}

func (d *decoder) checkNumber(n json.Number) error {
	i := strings.IndexAny(string(n), "eE")
	if i < 0 {
		return nil
	}
	if e, err := strconv.Atoi(string(n[i+1:])); err != nil || e > maxExponent || e < -maxExponent {
		return fmt.Errorf("the number ending at byte %d has an exponent beyond ±%d", d.at, maxExponent)
	}
	return nil
}
