package scripted

import (
	"encoding/json"

	"github.com/moorebus/moorebus/internal/script"
)

// Parse returns how many replies a script has.
func Parse(settings json.RawMessage) (int, error) {
	s, err := script.Parse(settings)
	return len(s), err
}
