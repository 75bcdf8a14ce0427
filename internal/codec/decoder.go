package codec

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// decoder reads a value of one type in the canonical form. The value is zero before.
type decoder func(*reader, reflect.Value)

// decoders are the decoders of the types that were read, by type.
var decoders sync.Map

func decoderFor(of reflect.Type) decoder {
	if known, ok := decoders.Load(of); ok {
		return known.(decoder)
	}
	made := compile(of, map[reflect.Type]*decoder{})
	decoders.Store(of, made)
	return made
}

// compile returns the decoder of a type. known has the decoders of the types that it has met;
// that of a type which is being compiled, since it contains itself, is not set yet.
func compile(of reflect.Type, known map[reflect.Type]*decoder) decoder {
	made := known[of]
	switch {
	case made == nil:
		made = new(decoder)
		known[of] = made
		*made = compileType(of, known)
	case *made == nil:
		return func(r *reader, v reflect.Value) { (*made)(r, v) }
	}
	return *made
}

func compileType(of reflect.Type, known map[reflect.Type]*decoder) decoder {
	switch {
	case of == reflect.TypeFor[time.Time]():
		return readTime
	case of == reflect.TypeFor[json.RawMessage]():
		return func(r *reader, v reflect.Value) { v.SetBytes(slices.Clone(r.valid())) }
	case hasMethods(of):
		return readOther
	}
	switch of.Kind() {
	case reflect.String:
		return func(r *reader, v reflect.Value) { v.SetString(r.string()) }
	case reflect.Bool:
		return readBool
	case reflect.Int, reflect.Int32, reflect.Int64:
		return readInt
	case reflect.Uint32, reflect.Uint64:
		return readUint
	case reflect.Float64:
		return readFloat
	case reflect.Pointer:
		return pointerDecoder(of, compile(of.Elem(), known))
	case reflect.Slice:
		if of.Elem().Kind() != reflect.Uint8 { // those are written as base64
			return sliceDecoder(of, compile(of.Elem(), known))
		}
	case reflect.Map:
		if of.Key().Kind() == reflect.String && !hasMethods(of.Key()) {
			return mapDecoder(of, compile(of.Elem(), known))
		}
	case reflect.Struct:
		if fields, ok := compileFields(of, nil, known); ok {
			return structDecoder(fields)
		}
	}
	return readOther
}

// hasMethods reports whether a type has its own way to be read.
func hasMethods(of reflect.Type) bool {
	p := reflect.PointerTo(of)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func readOther(r *reader, v reflect.Value) {
	text := r.valid()
	r.check(!r.bad && json.Unmarshal(text, v.Addr().Interface()) == nil)
}

func readTime(r *reader, v reflect.Value) {
	start := r.at
	_, ok := r.plain()
	r.check(ok && v.Addr().Interface().(*time.Time).UnmarshalJSON(r.text[start:r.at]) == nil)
}

func readBool(r *reader, v reflect.Value) {
	if r.has("true") {
		v.SetBool(true)
	} else {
		r.want("false")
	}
}

// Integers are read back from what package strconv writes of them: it also takes
// forms that JSON does not have.

func readInt(r *reader, v reflect.Value) {
	text := r.number()
	n, err := strconv.ParseInt(string(text), 10, v.Type().Bits())
	var room [20]byte
	r.check(err == nil && string(strconv.AppendInt(room[:0], n, 10)) == string(text))
	v.SetInt(n)
}

func readUint(r *reader, v reflect.Value) {
	text := r.number()
	n, err := strconv.ParseUint(string(text), 10, v.Type().Bits())
	var room [20]byte
	r.check(err == nil && string(strconv.AppendUint(room[:0], n, 10)) == string(text))
	v.SetUint(n)
}

func readFloat(r *reader, v reflect.Value) {
	text := r.number()
	f, err := strconv.ParseFloat(string(text), 64)
	r.check(err == nil && json.Valid(text))
	v.SetFloat(f)
}

func pointerDecoder(of reflect.Type, elem decoder) decoder {
	return func(r *reader, v reflect.Value) {
		if !r.has("null") {
			v.Set(reflect.New(of.Elem()))
			elem(r, v.Elem())
		}
	}
}

func sliceDecoder(of reflect.Type, elem decoder) decoder {
	return func(r *reader, v reflect.Value) {
		if r.has("null") {
			return
		}
		r.want("[")
		if r.has("]") {
			v.Set(reflect.MakeSlice(of, 0, 0))
			return
		}
		for n := 0; !r.bad; n++ {
			if n == v.Cap() {
				v.Grow(max(n, 1)) // to the double: a long list is copied less often
			}
			v.SetLen(n + 1)
			elem(r, v.Index(n))
			if r.has("]") {
				return
			}
			r.want(",")
		}
	}
}

func mapDecoder(of reflect.Type, elem decoder) decoder {
	return func(r *reader, v reflect.Value) {
		if r.has("null") {
			return
		}
		r.want("{")
		v.Set(reflect.MakeMap(of))
		key, value := reflect.New(of.Key()).Elem(), reflect.New(of.Elem()).Elem()
		for n := 0; !r.bad && !r.has("}"); n++ {
			if n > 0 {
				r.want(",")
			}
			key.SetString(r.string())
			r.want(":")
			value.SetZero()
			elem(r, value)
			v.SetMapIndex(key, value)
			r.check(v.Len() == n+1) // a key that stands there twice is package json's matter
		}
	}
}

// field is a member of an object: `,"name":`, and where its value goes.
type field struct {
	member   string
	index    []int
	read     decoder
	optional bool // it is omitted while it is empty
}

// compileFields lists a struct's members in the order in which they are written. It
// reports false for a struct that has what it does not know.
func compileFields(of reflect.Type, at []int, known map[reflect.Type]*decoder) (fields []field, ok bool) {
	for i := range of.NumField() {
		f := of.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		index := append(slices.Clone(at), i)
		switch {
		case f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct && !hasMethods(f.Type):
			inner, ok := compileFields(f.Type, index, known)
			if !ok {
				return nil, false
			}
			fields = append(fields, inner...)
			continue
		case f.Anonymous, name == "" && f.IsExported(), options != "" && options != "omitempty":
			return nil, false
		case !f.IsExported() || tag == "-":
			continue
		}
		fields = append(fields, field{member: `,"` + name + `":`, index: index, read: compile(f.Type, known), optional: options != ""})
	}
	for i, f := range fields { // of two members of one name package json knows which one counts
		if slices.ContainsFunc(fields[:i], func(o field) bool { return o.member == f.member }) {
			return nil, false
		}
	}
	return fields, true
}

func structDecoder(fields []field) decoder {
	return func(r *reader, v reflect.Value) {
		r.want("{")
		comma := 1 // the first member has none
		for i := range fields {
			f := &fields[i]
			if r.bad {
				return
			}
			if !r.has(f.member[comma:]) {
				r.check(f.optional)
				continue
			}
			comma = 0
			into := v.Field(f.index[0])
			for _, i := range f.index[1:] {
				into = into.Field(i)
			}
			f.read(r, into)
			if f.optional && into.IsZero() {
				r.bad = true
			}
		}
		r.want("}")
	}
}
