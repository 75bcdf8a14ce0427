package replay

import (
	"bytes"
	"reflect"
	"slices"
	"time"

	"github.com/moorebus/moorebus/pkg/reducer"
)

// alike reports whether two memories have the same value, which is cheaper than
// writing both. Those that are written alike may still differ here, in slices that
// are empty and not nil. The lists that have an entry for each event are compared
// without reflection, unless they differ.
func alike(a, b *reducer.Memory) bool {
	if !same(a.Trace, b.Trace) || !same(a.History, b.History) || !same(a.Messages, b.Messages) {
		return false
	}
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for _, f := range comparedFields {
		if !f.equal(x.Field(f.index), y.Field(f.index)) {
			return false
		}
	}
	return true
}

func same[T comparable](a, b []T) bool {
	return (a == nil) == (b == nil) && slices.Equal(a, b) || reflect.DeepEqual(a, b)
}

// equal reports whether two values of one type are the same, as [reflect.DeepEqual]
// does. What a memory holds is a tree, so it need not remember what it has seen,
// which is most of what that costs.
type equal func(a, b reflect.Value) bool

// comparedField is a field of a struct and how it is compared.
type comparedField struct {
	index int
	equal equal
}

// comparedFields are the exported fields of a memory but for those lists.
var comparedFields = func() (fields []comparedField) {
	memory, known := reflect.TypeFor[reducer.Memory](), map[reflect.Type]*equal{}
	for i := range memory.NumField() {
		f := memory.Field(i)
		if f.IsExported() && f.Name != "Trace" && f.Name != "History" && f.Name != "Messages" {
			fields = append(fields, comparedField{i, equalOf(f.Type, known)})
		}
	}
	return fields
}()

// equalOf returns how values of a type are compared. It knows types that stand in
// themselves by what it made before.
func equalOf(of reflect.Type, known map[reflect.Type]*equal) equal {
	made := known[of]
	if made == nil {
		made = new(equal)
		known[of] = made
		*made = equalKind(of, known)
	}
	return func(a, b reflect.Value) bool { return (*made)(a, b) }
}

func equalKind(of reflect.Type, known map[reflect.Type]*equal) equal {
	switch of.Kind() {
	case reflect.String:
		return func(a, b reflect.Value) bool { return a.String() == b.String() }
	case reflect.Bool:
		return func(a, b reflect.Value) bool { return a.Bool() == b.Bool() }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(a, b reflect.Value) bool { return a.Int() == b.Int() }
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(a, b reflect.Value) bool { return a.Uint() == b.Uint() }
	case reflect.Float32, reflect.Float64:
		return func(a, b reflect.Value) bool { return a.Float() == b.Float() }
	case reflect.Pointer:
		elem := equalOf(of.Elem(), known)
		return func(a, b reflect.Value) bool {
			if a.IsNil() || b.IsNil() {
				return a.IsNil() == b.IsNil()
			}
			return elem(a.Elem(), b.Elem())
		}
	case reflect.Slice:
		if of.Elem().Kind() == reflect.Uint8 {
			return func(a, b reflect.Value) bool { return a.IsNil() == b.IsNil() && bytes.Equal(a.Bytes(), b.Bytes()) }
		}
		return equalSlices(equalOf(of.Elem(), known))
	case reflect.Map:
		return equalMaps(equalOf(of.Elem(), known))
	case reflect.Struct:
		if fields, ok := equalFields(of, known); ok {
			return func(a, b reflect.Value) bool {
				for i := range fields {
					if f := &fields[i]; !f.equal(a.Field(f.index), b.Field(f.index)) {
						return false
					}
				}
				return true
			}
		}
	}
	return equalForeign
}

// equalForeign leaves a value to package reflect, by its address where it has one,
// so that it is not copied.
func equalForeign(a, b reflect.Value) bool {
	if a.CanAddr() && b.CanAddr() {
		if x, ok := a.Addr().Interface().(*time.Time); ok && *x == *b.Addr().Interface().(*time.Time) {
			return true
		}
		return reflect.DeepEqual(a.Addr().Interface(), b.Addr().Interface())
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

func equalSlices(elem equal) equal {
	return func(a, b reflect.Value) bool {
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !elem(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
}

func equalMaps(elem equal) equal {
	return func(a, b reflect.Value) bool {
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		for entries := a.MapRange(); entries.Next(); {
			other := b.MapIndex(entries.Key())
			if !other.IsValid() || !elem(entries.Value(), other) {
				return false
			}
		}
		return true
	}
}

// equalFields lists a struct's fields. It leaves those to package reflect that have
// a field which is not exported: what that means only their package knows.
func equalFields(of reflect.Type, known map[reflect.Type]*equal) (fields []comparedField, ok bool) {
	for i := range of.NumField() {
		f := of.Field(i)
		if !f.IsExported() {
			return nil, false
		}
		fields = append(fields, comparedField{i, equalOf(f.Type, known)})
	}
	return fields, true
}
