package strict

import (
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// maxReported bounds how many problems of one document are reported.
const maxReported = 10

// Decode puts a document onto the value that into points to, by its json tags
// and spelled exactly as they are. Keys that the document leaves out, or gives no
// value, keep what is there. The error joins an *[Error] for each problem; into
// is then unchanged.
func Decode(n *Node, into any) error { return DecodeAt(n, "", into) }

// DecodeAt is [Decode] for a part of a document; path stands before the paths
// of errors.
func DecodeAt(n *Node, path string, into any) error {
	var c checker
	c.check(n, reflect.TypeOf(into).Elem(), path)
	if len(c.problems) > 0 {
		return errors.Join(c.problems...)
	}
	if err := json.Unmarshal(n.JSON(), into); err != nil {
		return n.Errorf(path, "%s", err.Error())
	}
	return nil
}

// DecodeJSON reads one JSON document onto the value that into points to.
func DecodeJSON(data []byte, into any) error {
	n, err := ParseJSON(data)
	if err != nil {
		return err
	}
	return Decode(n, into)
}

var (
	rawType         = reflect.TypeFor[json.RawMessage]()
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// checker holds a tree to a type.
type checker struct{ problems []error }

func (c *checker) add(n *Node, path, format string, args ...any) {
	if len(c.problems) < maxReported {
		c.problems = append(c.problems, n.Errorf(path, format, args...))
	}
}

func (c *checker) check(n *Node, t reflect.Type, path string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == Null || t == rawType || t.Kind() == reflect.Interface {
		return
	}
	if c.custom(n, t, path) {
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		c.fields(n, t, path)
	case reflect.Map:
		if c.want(n, Object, path) {
			for _, m := range n.Members {
				c.check(m.Value, t.Elem(), join(path, m.Key))
			}
		}
	case reflect.Slice:
		if c.want(n, Array, path) {
			for i, item := range n.Items {
				c.check(item, t.Elem(), index(path, i))
			}
		}
	case reflect.String:
		c.want(n, String, path)
	case reflect.Bool:
		c.want(n, Bool, path)
	default:
		c.number(n, t, path)
	}
}

// custom checks types that read themselves, and reports whether it is one.
func (c *checker) custom(n *Node, t reflect.Type, path string) bool {
	p := reflect.PointerTo(t)
	switch {
	case p.Implements(unmarshaler):
		if err := reflect.New(t).Interface().(json.Unmarshaler).UnmarshalJSON(n.JSON()); err != nil {
			c.add(n, path, "%s", err.Error())
		}
		return true
	case p.Implements(textUnmarshaler):
		if n.Kind != String {
			c.add(n, path, "is %s, want text such as 30s", n.Kind)
		} else if err := reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Text)); err != nil {
			c.add(n, path, "%s", err.Error())
		}
		return true
	}
	return false
}

func (c *checker) want(n *Node, k Kind, path string) bool {
	if n.Kind == k {
		return true
	}
	hint := ""
	if k == String && (n.Kind == Number || n.Kind == Bool) {
		hint = `; put it in quotes: "` + n.Text + `"`
	}
	c.add(n, path, "is %s, want %s%s", n.Kind, k, hint)
	return false
}

func (c *checker) number(n *Node, t reflect.Type, path string) {
	if !c.want(n, Number, path) {
		return
	}
	var err error
	switch t.Kind() {
	case reflect.Float32, reflect.Float64:
		_, err = strconv.ParseFloat(n.Text, t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		_, err = strconv.ParseUint(n.Text, 10, t.Bits())
	default:
		_, err = strconv.ParseInt(n.Text, 10, t.Bits())
	}
	if err != nil {
		c.add(n, path, "%s is not a %s", n.Text, numberName(t))
	}
}

func numberName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Float32, reflect.Float64:
		return "number in range"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "whole number from 0"
	}
	return "whole number in range"
}

func (c *checker) fields(n *Node, t reflect.Type, path string) {
	if !c.want(n, Object, path) {
		return
	}
	known := fieldsOf(t)
	for _, m := range n.Members {
		i := slices.IndexFunc(known, func(f field) bool { return f.key == m.Key })
		if i < 0 {
			at := Node{Line: m.Line}
			c.add(&at, join(path, m.Key), "unknown key%s", suggestion(m.Key, known))
			continue
		}
		c.check(m.Value, known[i].typ, join(path, m.Key))
	}
}

type field struct {
	key string
	typ reflect.Type
}

// fieldsOf returns the keys of a struct, those of embedded structs included.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case key == "-" || (!f.IsExported() && !f.Anonymous):
		case key == "" && f.Anonymous:
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			fields = append(fields, fieldsOf(embedded)...)
		case key == "":
			fields = append(fields, field{f.Name, f.Type})
		default:
			fields = append(fields, field{key, f.Type})
		}
	}
	return fields
}

func suggestion(key string, known []field) string {
	keys := make([]string, len(known))
	for i, f := range known {
		keys[i] = f.key
	}
	if meant := DidYouMean(key, keys); meant != "" {
		return meant
	}
	slices.Sort(keys)
	return "; the keys here are " + strings.Join(keys, ", ")
}
