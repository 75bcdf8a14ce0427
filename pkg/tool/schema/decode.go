package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	if err := syntax(text); err != nil {
		return nil, err
	}
	d := &decoder{json.NewDecoder(strings.NewReader(text))}
	d.UseNumber()
	return d.value(0)
}

// syntax checks the whole text first: only here do all errors have a reliable
// offset, and what follows one value is noticed too.
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

type decoder struct{ *json.Decoder }

func (d *decoder) value(depth int) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if depth >= maxDepth {
			return nil, fmt.Errorf("nested more than %d deep at byte %d", maxDepth, d.InputOffset())
		}
		if t == '{' {
			return d.object(depth)
		}
		return d.array(depth)
	case json.Number:
		return t, d.checkNumber(t)
	default:
		return t, nil
	}
}

func (d *decoder) object(depth int) (any, error) {
	obj := map[string]any{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, _ := t.(string)
		if _, ok := obj[key]; ok {
			return nil, fmt.Errorf("the key %q occurs twice in one object, again at byte %d", key, d.InputOffset())
		}
		if obj[key], err = d.value(depth + 1); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return obj, err
}

func (d *decoder) array(depth int) (any, error) {
	arr := []any{}
	for d.More() {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		arr = append(arr, v)
	}
	_, err := d.Token()
	return arr, err
}

func (d *decoder) checkNumber(n json.Number) error {
	_, exponent, ok := strings.Cut(strings.ToLower(string(n)), "e")
	if !ok {
		return nil
	}
	if e, err := strconv.Atoi(exponent); err != nil || e > maxExponent || e < -maxExponent {
		return fmt.Errorf("the number ending at byte %d has an exponent beyond ±%d", d.InputOffset(), maxExponent)
	}
	return nil
}
