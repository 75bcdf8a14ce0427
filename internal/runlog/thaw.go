package runlog

import (
	"bytes"
	"encoding"
	"encoding/json"
	"math/bits"
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
	// words holds strings that had escapes, many in one piece of memory: they come and
	// go together.
	words strings.Builder
}

// wordsRoom is how large those pieces are, in bytes; those of short texts are smaller.
const wordsRoom = 32 << 10

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
		*made = func(t *thawing, v reflect.Value) { v.SetBytes(t.raw()) }
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
	if err := json.Unmarshal(t.raw(), v.Addr().Interface()); err != nil {
		t.bad = true
	}
}

func thawTime(t *thawing, v reflect.Value) {
	began, into := t.at, v.Addr().Interface().(*time.Time)
	_ = t.string()
	if t.bad {
		return
	}
	if at, ok := utc(t.text[began+1 : t.at-1]); ok {
		*into = at
		return
	}
	if into.UnmarshalJSON([]byte(t.text[began:t.at])) != nil {
		t.bad = true
	}
}

// utc reads a time as package time writes those in UTC: it takes nothing else.
func utc(text string) (time.Time, bool) {
	const date = len("2006-01-02T15:04:05")
	if len(text) <= date || text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':' || text[16] != ':' || text[len(text)-1] != 'Z' {
		return time.Time{}, false
	}
	ok := true
	number := func(digits string) (n int) {
		for i := range len(digits) {
			ok = ok && '0' <= digits[i] && digits[i] <= '9'
			n = n*10 + int(digits[i]-'0')
		}
		return n
	}
	year, month, day := number(text[:4]), number(text[5:7]), number(text[8:10])
	hour, minute, second := number(text[11:13]), number(text[14:16]), number(text[17:19])
	nanosecond := 0
	if fraction := text[date : len(text)-1]; fraction != "" {
		if fraction[0] != '.' || len(fraction) < 2 || len(fraction) > 10 {
			return time.Time{}, false
		}
		nanosecond = number(fraction[1:])
		for range 10 - len(fraction) {
			nanosecond *= 10
		}
	}
	if !ok || month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	at := time.Date(year, time.Month(month), day, hour, minute, second, nanosecond, time.UTC)
	// A day that the month does not have would be one of the next month.
	return at, day <= 28 || at.Day() == day
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
			if n == v.Cap() {
				v.Grow(max(n, 4)) // by doubling: long lists are copied less often
			}
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
		key, value := reflect.New(of.Key()).Elem(), reflect.New(of.Elem()).Elem()
		for n := 0; !t.bad && !t.has("}"); n++ {
			if n > 0 {
				t.want(",")
			}
			key.SetString(t.string())
			t.want(":")
			value.SetZero()
			(*elem)(t, value)
			v.SetMapIndex(key, value)
			// Package json reads what stands there twice into one value.
			t.bad = t.bad || v.Len() != n+1
		}
	}
}

// thawField is a member of an object: `,"name":`, and where its value goes.
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
		fields = append(fields, thawField{member: `,"` + name + `":`, index: index, read: thawOf(f.Type, known), may: options != ""})
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
		comma := 1 // the first member has none
		for i := range fields {
			f := &fields[i]
			if t.bad || !t.has(f.member[comma:]) {
				t.bad = t.bad || !f.may
				continue
			}
			comma = 0
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
	if t.bad {
		return ""
	}
	end := plainEnd(t.text, began)
	switch {
	case end == len(t.text), t.text[end] < 0x20:
		t.bad = true
		return ""
	case t.text[end] == '\\':
		return t.escaped(began, end)
	}
	t.at = end + 1
	return t.text[began:end]
}

// plainEnd returns where the text has the first byte from i on that is a quote, a
// backslash or a control character; its length if there is none. It looks at eight
// bytes at once.
func plainEnd(text string, i int) int {
	const each, top = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(text); i += 8 {
		b := text[i : i+8]
		x := uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 | uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
		quote, backslash := x^each*'"', x^each*'\\'
		// The lowest bit that is set is right; the higher ones mean nothing.
		if special := ((x-each*0x20)&^x | (quote-each)&^quote | (backslash-each)&^backslash) & top; special != 0 {
			return i + bits.TrailingZeros64(special)/8
		}
	}
	for ; i < len(text); i++ {
		if c := text[i]; c < 0x20 || c == '"' || c == '\\' {
			return i
		}
	}
	return i
}

// escapes are the escapes of one letter and what they stand for.
const escapes, escapedAs = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

// escaped takes the rest of a string that began there, and has its first escape at
// i.
func (t *thawing) escaped(began, i int) string {
	// A long string ends its piece: the next one would have it copied, and keep both.
	if room := min(wordsRoom, len(t.text)/16); t.words.Cap()-t.words.Len() < room/8 || t.words.Len() >= room {
		t.words = strings.Builder{}
		t.words.Grow(room)
	}
	first := t.words.Len()
	t.words.WriteString(t.text[began:i])
	for i < len(t.text) {
		switch c := t.text[i]; {
		case c == '"':
			t.at = i + 1
			return t.words.String()[first:]
		case c < 0x20:
			t.bad = true
			return ""
		case c != '\\':
			end := plainEnd(t.text, i)
			t.words.WriteString(t.text[i:end])
			i = end
			continue
		}
		if i+1 >= len(t.text) {
			break
		}
		if at := strings.IndexByte(escapes, t.text[i+1]); at >= 0 {
			t.words.WriteByte(escapedAs[at])
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
		t.words.WriteRune(rune(n))
		i += 6
	}
	t.bad = true
	return ""
}

// raw takes any value and returns a copy of its text, which package json has to
// accept.
func (t *thawing) raw() []byte {
	if t.bad {
		return []byte("null")
	}
	text := []byte(t.text[t.at:valueEnd(t.text, t.at)])
	if !json.Valid(text) || len(bytes.TrimSpace(text)) != len(text) {
		t.bad = true
		return []byte("null")
	}
	t.at += len(text)
	return text
}

// valueEnd returns where the value ends that begins at i, if it is one.
func valueEnd(text string, i int) int {
	for depth := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = stringEnd(text, i+1)
		case '{', '[':
			depth++
		case ',', ':':
			if depth == 0 {
				return i
			}
		case '}', ']':
			if depth--; depth < 0 {
				return i
			}
		}
	}
	return min(i, len(text))
}

// stringEnd returns where the quote is that ends the string in which i lies; the text's
// length if there is none.
func stringEnd(text string, i int) int {
	for i < len(text) {
		if i = plainEnd(text, i); i < len(text) && text[i] == '"' {
			return i
		}
		i += 2 // an escape, or what package json refuses
	}
	return len(text)
}
