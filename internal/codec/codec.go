// Package codec writes values as JSON and reads them back, as package json does:
// the tags and the methods of a type mean the same, and so does every text.
//
// Package json decodes a text as if anybody had written it. Most of what Moorebus
// reads it has written itself, so [Unmarshal] first expects the canonical form,
// which is what package json writes: members in the order of the fields, no white
// space, nothing unknown and nothing missing. How to read a type in that form is
// compiled from the type once. It takes about half of package json's time, and
// is what keeps the replay of a log above 200,000 events/s on two cores.
package codec

import (
	"encoding/json"
	"reflect"
	"sync"
	"unicode/utf8"
)

// Append appends v as JSON, without the escapes that only HTML needs. With an
// error, which is package json's, it appends nothing.
func Append(b []byte, v any) ([]byte, error) {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	return w.append(b, v)
}

// Size returns how many bytes [Append] appends, 0 for what has no JSON.
func Size(v any) int {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	defer func() { w.sizing = false }()
	w.sizing, w.size = true, 0
	if w.json.Encode(v) != nil {
		return 0
	}
	return w.size - len("\n")
}

// AppendString is [Append] for a text, which always has a JSON string.
func AppendString(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			b, _ = Append(b, text)
			return b
		}
	}
	return append(append(append(b, '"'), text...), '"')
}

func (w *writer) append(b []byte, v any) ([]byte, error) {
	defer func() { w.text = nil }() // the pool keeps no buffer of the caller's
	w.text = b
	if err := w.json.Encode(v); err != nil {
		return b, err
	}
	return w.text[:len(w.text)-1], nil // without the line feed
}

// writer is an encoder that appends to text.
type writer struct {
	json *json.Encoder
	text []byte
	// sizing says that only the size is wanted.
	sizing bool
	size   int
}

func (w *writer) Write(p []byte) (int, error) {
	if w.sizing {
		w.size += len(p)
	} else {
		w.text = append(w.text, p...)
	}
	return len(p), nil
}

var writers = sync.Pool{New: func() any {
	w := new(writer)
	w.json = json.NewEncoder(w)
	w.json.SetEscapeHTML(false)
	return w
}}

// Unmarshal is [json.Unmarshal] for a value that is zero, and that points to no part
// of itself. The strings of the value share memory with each other, and nothing with
// the text.
func Unmarshal(text []byte, into any) error {
	if Canonical(text, into) {
		return nil
	}
	reflect.ValueOf(into).Elem().SetZero()
	return json.Unmarshal(text, into)
}

// Canonical is [Unmarshal] for a text in the canonical form, and reports whether the text
// has that form. If not, the value has no meaning, and package json may still read the
// text.
func Canonical(text []byte, into any) bool {
	if !utf8.Valid(text) {
		return false
	}
	r := readers.Get().(*reader)
	defer readers.Put(r)
	*r = reader{text: text}
	v := reflect.ValueOf(into).Elem()
	decoderFor(v.Type())(r, v)
	ok := !r.bad && r.at == len(text)
	*r = reader{}
	return ok
}

var readers = sync.Pool{New: func() any { return new(reader) }}
