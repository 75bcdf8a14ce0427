package scripted

import "encoding/json"

// Parse returns how many replies a script has.
func Parse(settings json.RawMessage) (int, error) {
	s, err := parse(settings)
	return len(s), err
}
