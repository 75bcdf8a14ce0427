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
}

func (w *writer) Write(p []byte) (int, error) {
	w.text = append(w.text, p...)
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
// the text, except for the text of a [Raw].
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

// Raw is the text of a value as it stands in the text that is read: the same bytes,
// not a copy. Only its end was looked for, so it may be no JSON.
type Raw []byte
