package events

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"unicode/utf8"
)

// Labels are a run's: texts by keys, by which people find runs.
type Labels map[string]string

// MaxLabels is how many labels a run may have.
const MaxLabels = 32

// maxLabel is the longest value of a label, in bytes.
const maxLabel = 256

var labelKey = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// Check returns what is wrong with the keys and values. Their number is not checked.
func (l Labels) Check() error {
	for _, key := range slices.Sorted(maps.Keys(l)) {
		switch value := l[key]; {
		case !labelKey.MatchString(key):
			return fmt.Errorf("labels: %.100q is not a key; use [a-z0-9][a-z0-9_.-]{0,62}", key)
		case len(value) > maxLabel:
			return fmt.Errorf("labels.%s: has %d bytes, at most %d are allowed", key, len(value), maxLabel)
		case !utf8.ValidString(value):
			return fmt.Errorf("labels.%s: is not valid UTF-8", key)
		}
	}
	return nil
}

// UnmarshalJSON refuses values that are not text, null too.
func (l *Labels) UnmarshalJSON(data []byte) error {
	var values map[string]any
	if json.Unmarshal(data, &values) != nil {
		return fmt.Errorf("want an object of texts, such as {\"team\": \"search\"}, not %.100s", data)
	}
	*l = nil
	for key, value := range values {
		text, is := value.(string)
		if !is {
			return fmt.Errorf("the value of %.100q is not text", key)
		}
		if *l == nil {
			*l = make(Labels, len(values))
		}
		(*l)[key] = text
	}
	return nil
}
