package runlog

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/pkg/reducer"
)

// thawMemory is how package json's own writing of a memory is read back.
var thawMemory = thawOf(reflect.TypeFor[reducer.Memory](), map[reflect.Type]*thaw{})

// unmarshal reads a memory. Text in the form in which package json writes one,
// members in their order and no white space, is read several times as fast as
// package json does; it is given all other text, and what both take is the same to
// both.
func unmarshal(text []byte) (*reducer.Memory, error) {
	if mem := thawed(text); mem != nil {
		return mem, nil
	}
	mem := new(reducer.Memory)
	return mem, json.Unmarshal(text, mem)
}

// thawed returns nil for a text that is not in that form.
func thawed(text []byte) *reducer.Memory {
	if !utf8.Valid(text) {
		return nil
	}
	mem, t := new(reducer.Memory), thawing{text: string(text)}
	if (*thawMemory)(&t, reflect.ValueOf(mem).Elem()); t.bad || t.at != len(t.text) {
		return nil
	}
	return mem
}

// thawing is a text that is read. The first thing that is not as expected makes it
// bad, and from then on nothing that was read means anything. Strings without
// escapes are parts of the text.
type thawing struct {
	text string
	at   int
	bad  bool
}

// thaw reads a value that is zero.
type thaw func(*thawing, reflect.Value)

func (t *thawing) has(word string) bool {
	if !strings.HasPrefix(t.text[t.at:], word) {
		return false
	}
	t.at += len(word)
	return true
}

func (t *thawing) want(word string) {
	if !t.has(word) {
		t.bad = true
	}
}

// thawOf returns how values of a type are read. It knows types that stand in
// themselves by what it made before.
func thawOf(of reflect.Type, known map[reflect.Type]*thaw) *thaw {
	if made := known[of]; made != nil {
		return made
	}
	made := new(thaw)
	known[of] = made
	switch {
	case of == reflect.TypeFor[time.Time]():
		*made = thawTime
	case of == reflect.TypeFor[json.RawMessage]():
		*made = func(t *thawing, v reflect.Value) { v.SetBytes([]byte(t.raw())) }
	case reflect.PointerTo(of).Implements(reflect.TypeFor[json.Unmarshaler]()), reflect.PointerTo(of).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		*made = thawForeign
	default:
		*made = thawKind(of, known)
	}
	return made
}

func thawKind(of reflect.Type, known map[reflect.Type]*thaw) thaw {
	switch of.Kind() {
	case reflect.String:
		return func(t *thawing, v reflect.Value) { v.SetString(t.string()) }
	case reflect.Bool:
		return func(t *thawing, v reflect.Value) {
			if v.SetBool(t.has("true")); !v.Bool() {
				t.want("false")
			}
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(t *thawing, v reflect.Value) {
			n, err := strconv.ParseInt(t.number(), 10, of.Bits())
			t.bad = t.bad || err != nil
			v.SetInt(n)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(t *thawing, v reflect.Value) {
			n, err := strconv.ParseUint(t.number(), 10, of.Bits())
			t.bad = t.bad || err != nil
			v.SetUint(n)
		}
	case reflect.Float32, reflect.Float64:
		return func(t *thawing, v reflect.Value) {
			n, err := strconv.ParseFloat(t.number(), of.Bits())
			t.bad = t.bad || err != nil
			v.SetFloat(n)
		}
	case reflect.Pointer:
		elem := thawOf(of.Elem(), known)
		return func(t *thawing, v reflect.Value) {
			if !t.has("null") {
				v.Set(reflect.New(of.Elem()))
				(*elem)(t, v.Elem())
			}
		}
	case reflect.Slice:
		if of.Elem().Kind() != reflect.Uint8 { // which is written as base64
			return thawSlice(of, thawOf(of.Elem(), known))
		}
	case reflect.Map:
		if of.Key().Kind() == reflect.String {
			return thawMap(of, thawOf(of.Elem(), known))
		}
	case reflect.Struct:
		if fields, ok := thawFields(of, nil, known); ok {
			return thawStruct(fields)
		}
	}
	return thawForeign
}

// thawForeign leaves a value to package json.
func thawForeign(t *thawing, v reflect.Value) {
	if err := json.Unmarshal([]byte(t.raw()), v.Addr().Interface()); err != nil {
		t.bad = true
	}
}

func thawTime(t *thawing, v reflect.Value) {
	began := t.at
	_ = t.string()
	if t.bad || v.Addr().Interface().(*time.Time).UnmarshalJSON([]byte(t.text[began:t.at])) != nil {
		t.bad = true
	}
}

func thawSlice(of reflect.Type, elem *thaw) thaw {
	return func(t *thawing, v reflect.Value) {
		if t.has("null") {
			return
		}
		t.want("[")
		v.Set(reflect.MakeSlice(of, 0, 0))
		for n := 0; !t.bad && !t.has("]"); n++ {
			if n > 0 {
				t.want(",")
			}
			v.Grow(1)
			v.SetLen(n + 1)
			(*elem)(t, v.Index(n))
		}
	}
}

func thawMap(of reflect.Type, elem *thaw) thaw {
	return func(t *thawing, v reflect.Value) {
		if t.has("null") {
			return
		}
		t.want("{")
		v.Set(reflect.MakeMap(of))
		for n := 0; !t.bad && !t.has("}"); n++ {
			if n > 0 {
				t.want(",")
			}
			key, value := reflect.New(of.Key()).Elem(), reflect.New(of.Elem()).Elem()
			key.SetString(t.string())
			t.want(":")
			(*elem)(t, value)
			// Package json reads what stands there twice into one value.
			t.bad = t.bad || v.MapIndex(key).IsValid()
			v.SetMapIndex(key, value)
		}
	}
}

// thawField is a member of an object: `"name":`, and where its value goes.
type thawField struct {
	member string
	index  []int
	read   *thaw
	may    bool // it may be missing
}

// thawFields lists a struct's members in the order in which they are written. It
// does not know every struct.
func thawFields(of reflect.Type, at []int, known map[reflect.Type]*thaw) (fields []thawField, ok bool) {
	for i := range of.NumField() {
		f := of.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		index := append(slices.Clone(at), i)
		switch {
		case f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct:
			inner, ok := thawFields(f.Type, index, known)
			if !ok {
				return nil, false
			}
			fields = append(fields, inner...)
			continue
		case f.Anonymous, name == "" && f.IsExported(), options != "" && options != "omitempty" && options != "omitzero":
			return nil, false
		case !f.IsExported() || tag == "-":
			continue
		}
		fields = append(fields, thawField{member: `"` + name + `":`, index: index, read: thawOf(f.Type, known), may: options != ""})
	}
	for i, f := range fields {
		if slices.ContainsFunc(fields[:i], func(o thawField) bool { return o.member == f.member }) {
			return nil, false
		}
	}
	return fields, true
}

func thawStruct(fields []thawField) thaw {
	return func(t *thawing, v reflect.Value) {
		t.want("{")
		first := true
		for i := range fields {
			f := &fields[i]
			began := t.at
			if !first {
				t.has(",")
			}
			if t.bad || !t.has(f.member) {
				t.bad = t.bad || !f.may
				t.at = began
				continue
			}
			t.bad = t.bad || !first && t.text[began] != ','
			first = false
			if len(f.index) == 1 {
				(*f.read)(t, v.Field(f.index[0]))
			} else {
				(*f.read)(t, v.FieldByIndex(f.index))
			}
		}
		t.want("}")
	}
}

// number takes a number and returns its text.
func (t *thawing) number() string {
	began := t.at
	for t.at < len(t.text) && (t.text[t.at] >= '0' && t.text[t.at] <= '9' || strings.IndexByte("+-.eE", t.text[t.at]) >= 0) {
		t.at++
	}
	text := t.text[began:t.at]
	digits := strings.TrimPrefix(text, "-")
	// These are numbers to package strconv and none in JSON.
	if digits == "" || digits[0] < '0' || digits[0] > '9' || len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' ||
		strings.Contains(digits, ".e") || strings.Contains(digits, ".E") || strings.HasSuffix(digits, ".") {
		t.bad = true
	}
	return text
}

// string takes a string.
func (t *thawing) string() string {
	t.want(`"`)
	began := t.at
	for i := began; i < len(t.text) && !t.bad; i++ {
		switch c := t.text[i]; {
		case c == '"':
			t.at = i + 1
			return t.text[began:i]
		case c == '\\':
			return t.escaped(began, i)
		case c < 0x20:
			t.bad = true
		}
	}
	t.bad = true
	return ""
}

// escapes are the escapes of one letter and what they stand for.
const escapes, escapedAs = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// escaped takes the rest of a string that began there, and has its first escape at
// i.
func (t *thawing) escaped(began, i int) string {
	out := append(make([]byte, 0, 2*(i-began)+32), t.text[began:i]...)
	for i < len(t.text) {
		c := t.text[i]
		switch {
		case c == '"':
			t.at = i + 1
			return string(out)
		case c < 0x20:
			t.bad = true
			return ""
		case c != '\\':
			out = append(out, c)
			i++
			continue
		}
		if i+1 >= len(t.text) {
			break
		}
		if at := strings.IndexByte(escapes, t.text[i+1]); at >= 0 {
			out = append(out, escapedAs[at])
			i += 2
			continue
		}
		if t.text[i+1] != 'u' || i+6 > len(t.text) {
			break
		}
		n, err := strconv.ParseUint(t.text[i+2:i+6], 16, 16)
		if err != nil || n >= 0xd800 && n < 0xe000 { // halves of a pair are rare
			break
		}
		out = utf8.AppendRune(out, rune(n))
		i += 6
	}
	t.bad = true
	return ""
}

// raw takes any value and returns its text, which package json has to accept.
func (t *thawing) raw() string {
	if t.bad {
		return "null"
	}
	decoder := json.NewDecoder(strings.NewReader(t.text[t.at:]))
	var text json.RawMessage
	if err := decoder.Decode(&text); err != nil || !strings.HasPrefix(t.text[t.at:], string(text)) {
		t.bad = true
		return "null"
	}
	t.at += len(text)
	return string(text)
}
