package record

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Op is an operation of a JSON Patch (RFC 6902) between two states of a document. What was added at
// the end of a list is a few bytes, however long the list is. Value is nil for remove.
type Op struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// values adds the operations that turn before into after, at a path. Both are valid JSON without
// white space around it, as package json writes it. It decodes only what differs.
func values(add func(Op), path string, before, after json.RawMessage) {
	switch {
	case bytes.Equal(before, after):
	case before[0] == '{' && after[0] == '{':
		members(add, path, decode[map[string]json.RawMessage](before), decode[map[string]json.RawMessage](after))
	case before[0] == '[' && after[0] == '[':
		same := func(x, y *json.RawMessage) bool { return bytes.Equal(*x, *y) }
		lists(add, path, decode[[]json.RawMessage](before), decode[[]json.RawMessage](after), 0, same, func(x *json.RawMessage) json.RawMessage { return *x })
	default:
		add(Op{"replace", path, after})
	}
}

// decode decodes valid JSON whose first character says that it fits.
func decode[T any](text json.RawMessage) (v T) {
	_ = json.Unmarshal(text, &v)
	return v
}

// members is values of two objects.
func members(add func(Op), path string, a, b map[string]json.RawMessage) {
	for _, key := range slices.Sorted(maps.Keys(a)) {
		to := path + "/" + escape(key)
		if value, kept := b[key]; kept {
			values(add, to, a[key], value)
		} else {
			add(Op{"remove", to, nil})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if _, known := a[key]; !known {
			add(Op{"add", path + "/" + escape(key), b[key]})
		}
	}
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// escape writes a key as a part of a JSON Pointer.
func escape(key string) string { return escaper.Replace(key) }

// lists adds the operations that turn list a into b, at a path. It compares what stands between
// the common beginning, of which known elements need no look, and the common end. same may miss
// that two elements are equal. encode writes an element as values takes it. It returns the length
// of the common beginning.
func lists[T any](add func(Op), path string, a, b []T, known int, same func(x, y *T) bool, encode func(*T) json.RawMessage) (first int) {
	first = known
	for first < min(len(a), len(b)) && same(&a[first], &b[first]) {
		first++
	}
	end := 0
	for end < min(len(a), len(b))-first && same(&a[len(a)-1-end], &b[len(b)-1-end]) {
		end++
	}
	at := func(i int) string { return path + "/" + strconv.Itoa(i) }
	common := min(len(a), len(b)) - end
	for i := first; i < common; i++ {
		values(add, at(i), encode(&a[i]), encode(&b[i]))
	}
	for i := len(a) - end - 1; i >= common; i-- {
		add(Op{Op: "remove", Path: at(i)})
	}
	for i := common; i < len(b)-end; i++ {
		to := at(i)
		if end == 0 {
			to = path + "/-"
		}
		add(Op{Op: "add", Path: to, Value: encode(&b[i])})
	}
	return first
}
