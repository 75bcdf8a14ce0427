package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	d := decoder{json.NewDecoder(strings.NewReader(text))}
	d.UseNumber()
	return d.value(0)
}

// syntax checks the entire text, since a token has no reliable offset for every error and
// does not show what follows the value.
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

// decoder reads tokens of valid JSON.
type decoder struct{ *json.Decoder }

func (d decoder) value(depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Number:
		return t, d.checkNumber(t)
	case json.Delim:
		if depth >= maxDepth {
			return nil, fmt.Errorf("nested more than %d deep at byte %d", maxDepth, d.InputOffset())
		}
		if t == '{' {
			return d.object(depth + 1)
		}
		return d.array(depth + 1)
	}
	return token, nil
}

func (d decoder) object(depth int) (any, error) {
	object := map[string]any{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string) // nothing else begins a member
		if _, ok := object[key]; ok {
			return nil, fmt.Errorf("the key %q occurs twice in one object, again at byte %d", key, d.InputOffset())
		}
		if object[key], err = d.value(depth); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return object, err
}

func (d decoder) array(depth int) (any, error) {
	array := []any{}
	for d.More() {
		v, err := d.value(depth)
		if err != nil {
			return nil, err
		}
		array = append(array, v)
	}
	_, err := d.Token()
	return array, err
}

func (d decoder) checkNumber(n json.Number) error {
	if len(n) > maxDigits {
		return fmt.Errorf("the number ending at byte %d has more than %d digits", d.InputOffset(), maxDigits)
	}
	i := strings.IndexAny(string(n), "eE")
	if i < 0 {
		return nil
	}
	if e, err := strconv.Atoi(string(n[i+1:])); err != nil || e > maxExponent || e < -maxExponent {
		return fmt.Errorf("the number ending at byte %d has an exponent beyond ±%d", d.InputOffset(), maxExponent)
	}
	return nil
}
