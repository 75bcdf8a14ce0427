package route

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
)

// Base64 is bytes as base64. It is read in every alphabet that ProtoJSON allows.
type Base64 []byte

// UnmarshalJSON reads the text of a JSON string.
func (b *Base64) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return errors.New("raw: is not base64 in a string")
	}
	text = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(text), "=")
	decoded, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return errors.New("raw: is not base64")
	}
	*b = decoded
	return nil
}
