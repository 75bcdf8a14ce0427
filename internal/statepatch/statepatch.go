// Package statepatch makes JSON Patches (RFC 6902) between two states of a document. What was
// added at the end of a list is a few bytes, however long the list is.
package statepatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Op is an operation of a patch. Value is nil for remove.
type Op struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Make returns the operations that turn before into after, in order. None: they are equal. Both
// are JSON; an error says which is not. The operations share memory with after.
func Make(before, after json.RawMessage) ([]Op, error) {
	for name, text := range map[string]json.RawMessage{"before": before, "after": after} {
		if !json.Valid(text) {
			return nil, fmt.Errorf("state patch: the state %s is not JSON", name)
		}
	}
	var m maker
	m.compare("", bytes.TrimSpace(before), bytes.TrimSpace(after))
	return m.ops, nil
}

// maker collects operations. It decodes only what differs.
type maker struct{ ops []Op }

func (m *maker) add(op, path string, value json.RawMessage) {
	m.ops = append(m.ops, Op{op, path, value})
}

func (m *maker) compare(path string, a, b json.RawMessage) {
	switch {
	case bytes.Equal(a, b):
	case a[0] == '{' && b[0] == '{':
		m.objects(path, decode[map[string]json.RawMessage](a), decode[map[string]json.RawMessage](b))
	case a[0] == '[' && b[0] == '[':
		m.lists(path, decode[[]json.RawMessage](a), decode[[]json.RawMessage](b))
	default:
		m.add("replace", path, b)
	}
}

// decode decodes valid JSON whose first character says that it fits.
func decode[T any](text json.RawMessage) (v T) {
	_ = json.Unmarshal(text, &v)
	return v
}

func (m *maker) objects(path string, a, b map[string]json.RawMessage) {
	for _, key := range slices.Sorted(maps.Keys(a)) {
		to := path + "/" + escape(key)
		if value, kept := b[key]; kept {
			m.compare(to, a[key], value)
		} else {
			m.add("remove", to, nil)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if _, known := a[key]; !known {
			m.add("add", path+"/"+escape(key), b[key])
		}
	}
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// escape writes a key as a part of a JSON Pointer.
func escape(key string) string { return escaper.Replace(key) }

// lists compares what stands between the common beginning and the common end.
func (m *maker) lists(path string, a, b []json.RawMessage) {
	first := 0
	for first < min(len(a), len(b)) && bytes.Equal(a[first], b[first]) {
		first++
	}
	end := 0
	for end < min(len(a), len(b))-first && bytes.Equal(a[len(a)-1-end], b[len(b)-1-end]) {
		end++
	}
	at := func(i int) string { return path + "/" + strconv.Itoa(i) }
	same := min(len(a), len(b)) - end
	for i := first; i < same; i++ {
		m.compare(at(i), a[i], b[i])
	}
	for i := len(a) - end - 1; i >= same; i-- {
		m.add("remove", at(i), nil)
	}
	for i := same; i < len(b)-end; i++ {
		if end == 0 {
			m.add("add", path+"/-", b[i])
		} else {
			m.add("add", at(i), b[i])
		}
	}
}
