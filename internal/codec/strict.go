package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// Strict reads one JSON value as package json does, but without unknown keys, with nothing behind it, and with the
// numbers of an any as they are written ([json.Number]).
func Strict(text []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	dec.UseNumber()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return nil
}
