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
		to := path + "/" + Escape(key)
		if value, kept := b[key]; kept {
			m.compare(to, a[key], value)
		} else {
			m.add("remove", to, nil)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if _, known := a[key]; !known {
			m.add("add", path+"/"+Escape(key), b[key])
		}
	}
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// Escape writes a key as a part of a JSON Pointer.
func Escape(key string) string { return escaper.Replace(key) }

func (m *maker) lists(path string, a, b []json.RawMessage) {
	Lists(m.take, path, a, b, 0, func(x, y *json.RawMessage) bool { return bytes.Equal(*x, *y) }, func(x *json.RawMessage) json.RawMessage { return *x })
}

func (m *maker) take(o Op) { m.ops = append(m.ops, o) }

// Values adds the operations that turn before into after, at a path. Both are valid JSON without
// white space around it, as package json writes it.
func Values(add func(Op), path string, before, after json.RawMessage) {
	m := maker{}
	m.compare(path, before, after)
	for _, o := range m.ops {
		add(o)
	}
}

// Lists adds the operations that turn list a into b, at a path. It compares what stands between
// the common beginning, of which known elements need no look, and the common end. same may miss
// that two elements are equal. encode writes an element as [Values] takes it. It returns the length
// of the common beginning.
func Lists[T any](add func(Op), path string, a, b []T, known int, same func(x, y *T) bool, encode func(*T) json.RawMessage) (first int) {
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
		Values(add, at(i), encode(&a[i]), encode(&b[i]))
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
