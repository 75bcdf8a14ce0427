package jsondiff

import (
	"encoding/json"

	"github.com/cockroachdb/apd/v3"
)

// Canonical returns JSON with its keys in order, no white space and each number in one spelling.
// What is not JSON stays as it is, and so do very long numbers.
func Canonical(text string) string {
	if !json.Valid([]byte(text)) {
		return text
	}
	data, err := json.Marshal(numbers(Document([]byte(text))))
	if err != nil {
		return text
	}
	return string(data)
}

// maxNumber is the length of numbers that get one spelling: that takes time for its square.
const maxNumber = 1000

// numbers gives each number in a document one spelling.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case json.Number:
		if len(v) > maxNumber {
			return v
		}
		d, _, err := apd.NewFromString(string(v))
		if err != nil {
			return v
		}
		if d.IsZero() {
			return json.Number("0")
		}
		d.Reduce(d)
		return json.Number(d.Text('E'))
	}
	return v
}
