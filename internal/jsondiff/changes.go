// Package jsondiff lists where two JSON documents differ.
package jsondiff

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/moorebus/moorebus/internal/codec"
)

// Change is one place where two JSON documents differ. A side without a value
// there is nil.
type Change struct {
	Path string          `json:"path"`
	A    json.RawMessage `json:"a,omitempty"`
	B    json.RawMessage `json:"b,omitempty"`
}

// String returns the change on one line, long values cut.
func (c Change) String() string {
	return c.Path + ": " + Short(c.A) + " -> " + Short(c.B)
}

const shortLimit = 160

// Short returns a value on one line, cut, and "nothing" for none.
func Short(raw json.RawMessage) string {
	if raw == nil {
		return "nothing"
	}
	return Cut(string(raw), shortLimit)
}

// Compare returns where two documents differ, in the order of keys and indices,
// at most limit places (0: all). A document that is not JSON is taken as a
// string.
func Compare(a, b []byte, limit int) []Change {
	return CompareTrees(Document(a), Document(b), limit)
}

// CompareTrees is [Compare] for documents that were read by [Document].
func CompareTrees(a, b any, limit int) []Change {
	d := differ{limit: limit}
	d.compare("", a, b)
	return d.changes
}

// Document reads a document, numbers as they are written; what is no JSON is a string.
func Document(text []byte) any {
	var v any
	if err := codec.Strict(text, &v); err != nil {
		return string(text)
	}
	return v
}

type differ struct {
	limit   int
	changes []Change
}

// Missing stands for a value that is not there.
type Missing struct{}

func (d *differ) full() bool { return d.limit > 0 && len(d.changes) >= d.limit }

func (d *differ) compare(path string, a, b any) {
	if d.full() {
		return
	}
	switch x := a.(type) {
	case map[string]any:
		if y, ok := b.(map[string]any); ok {
			d.objects(path, x, y)
			return
		}
	case []any:
		if y, ok := b.([]any); ok {
			d.arrays(path, x, y)
			return
		}
	default:
		if !isTree(b) && a == b {
			return
		}
	}
	d.add(path, a, b)
}

func isTree(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

func (d *differ) objects(path string, a, b map[string]any) {
	keys := slices.Collect(maps.Keys(a))
	for key := range b {
		if _, ok := a[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		d.compare(join(path, key), member(a, key), member(b, key))
	}
}

func member(m map[string]any, key string) any {
	if v, ok := m[key]; ok {
		return v
	}
	return Missing{}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (d *differ) arrays(path string, a, b []any) {
	for i := range max(len(a), len(b)) {
		var x, y any = Missing{}, Missing{}
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		d.compare(path+"["+strconv.Itoa(i)+"]", x, y)
	}
}

func (d *differ) add(path string, a, b any) {
	if !d.full() {
		d.changes = append(d.changes, Change{Path: path, A: text(a), B: text(b)})
	}
}

func text(v any) json.RawMessage {
	if _, none := v.(Missing); none {
		return nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return json.RawMessage(strconv.Quote(fmt.Sprint(v)))
	}
	return bytes.TrimSpace(b.Bytes())
}

// Cut shortens a text to a number of characters, on one line.
func Cut(text string, limit int) string {
	runes := []rune(text)
	long := len(runes) > limit
	if long {
		runes = runes[:limit]
	}
	for i, r := range runes {
		if r < ' ' || r == 0x7f {
			runes[i] = ' '
		}
	}
	if long {
		return string(runes) + "…"
	}
	return string(runes)
}
