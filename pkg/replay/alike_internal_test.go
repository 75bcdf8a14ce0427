package replay

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/reducer"
)

// leaves calls fn with every place in a value that can be another one, by its path:
// what has no parts, and whether a list, a map or a pointer is there.
func leaves(path string, v reflect.Value, fn func(path string, v reflect.Value)) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		fn(path, v)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				leaves(path+"."+f.Name, v.Field(i), fn)
			}
		}
	case v.Kind() == reflect.Pointer:
		leaves(path, v.Elem(), fn)
		fn(path, v)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
		for i := range v.Len() {
			leaves(fmt.Sprint(path, "[", i, "]"), v.Index(i), fn)
		}
		fn(path, v)
	default:
		fn(path, v)
	}
}

// fill gives everything in a value something of its own, to the given depth of types
// that stand in themselves.
func fill(v reflect.Value, n *int, depth int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(1 + *n%99))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(1 + *n%99))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.Pointer:
		if depth > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), n, depth-1)
		}
	case reflect.Slice:
		if depth > 0 {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			for i := range 2 {
				fill(v.Index(i), n, depth-1)
			}
		}
	case reflect.Map:
		if depth > 0 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, n, depth-1)
			fill(value, n, depth-1)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(int64(*n), 0).UTC()))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n, depth)
			}
		}
	}
}

func filled() *reducer.Memory {
	mem, n := new(reducer.Memory), 0
	fill(reflect.ValueOf(mem).Elem(), &n, 4)
	return mem
}

// Whatever may change in a memory is seen, as package reflect sees it; what is in maps
// has a test of its own.
func TestAlikeSeesEverything(t *testing.T) {
	var paths []string
	leaves("", reflect.ValueOf(filled()).Elem(), func(path string, _ reflect.Value) { paths = append(paths, path) })
	require.Greater(t, len(paths), 200)
	full := filled()
	require.True(t, alike(full, filled()))
	for i, path := range paths {
		other, at := filled(), 0
		leaves("", reflect.ValueOf(other).Elem(), func(_ string, v reflect.Value) {
			if at++; at-1 != i {
				return
			}
			before := reflect.ValueOf(v.Interface())
			switch v.Kind() {
			case reflect.Slice:
				v.Set(v.Slice(0, 0)) // empty, and not nil
			case reflect.Map:
				v.Set(reflect.MakeMap(v.Type()))
			case reflect.Bool:
				v.SetBool(false)
			default:
				v.SetZero()
			}
			require.False(t, reflect.DeepEqual(before.Interface(), v.Interface()), path)
		})
		require.False(t, alike(full, other), path)
		require.False(t, alike(other, full), path)
	}
}

// What is in a map is compared by its keys, and nothing is not the same as empty.
func TestAlikeMapsAndLists(t *testing.T) {
	of := func(name string) *reducer.Memory {
		return &reducer.Memory{Tools: map[string]reducer.ToolInfo{name: {}}, ToolCalls: map[string]*reducer.ToolCallRecord{"a": {Name: name}}}
	}
	require.True(t, alike(of("a"), of("a")))
	require.False(t, alike(of("a"), of("b")))
	b := of("a")
	b.ToolCalls["a"].Result = &reducer.CallResult{}
	require.False(t, alike(of("a"), b))
	require.False(t, alike(&reducer.Memory{Blacklist: []string{}}, &reducer.Memory{}))
	require.False(t, alike(&reducer.Memory{Messages: []reducer.Message{}}, &reducer.Memory{}))
	require.False(t, alike(&reducer.Memory{Tools: map[string]reducer.ToolInfo{}}, &reducer.Memory{}))
}

// BenchmarkAlike compares two memories that are the same.
func BenchmarkAlike(b *testing.B) {
	x, y := filled(), filled()
	b.ReportAllocs()
	for b.Loop() {
		if !alike(x, y) {
			b.Fatal("they are the same")
		}
	}
}
