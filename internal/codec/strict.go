package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// Strict reads one JSON object as package json does, but without unknown keys, and with nothing
// behind it.
func Strict(text []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return nil
}
