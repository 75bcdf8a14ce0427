package reducer_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// shapes are the memory's shapes by version. A version that was released is not
// changed: a new shape gets a new one.
var shapes = map[int]string{
	1: "49137347ca788d53",
	2: "b0e2836b1d906c59",
}

// shapeOf describes a type as JSON sees it.
func shapeOf(t reflect.Type, seen map[reflect.Type]bool) string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return t.Kind().String() + " " + shapeOf(t.Elem(), seen)
	case reflect.Map:
		return "map " + t.Key().Kind().String() + " " + shapeOf(t.Elem(), seen)
	case reflect.Struct:
		if seen[t] || t.Implements(reflect.TypeFor[json.Marshaler]()) {
			return t.String()
		}
		seen[t] = true
		var b strings.Builder
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() && !f.Anonymous {
				continue
			}
			fmt.Fprintf(&b, "%s %s; ", f.Tag.Get("json"), shapeOf(f.Type, seen))
		}
		return "{" + b.String() + "}"
	}
	return t.Kind().String()
}

func TestMemoryVersion(t *testing.T) {
	sum := sha256.Sum256([]byte(shapeOf(reflect.TypeFor[reducer.Memory](), map[reflect.Type]bool{})))
	require.Equal(t, shapes[reducer.MemoryVersion], hex.EncodeToString(sum[:8]),
		"the memory's shape changed: raise MemoryVersion, and note the shape here")
}

func TestFoldName(t *testing.T) {
	plain := reducer.NewMachine(reducer.MachineOptions{}).FoldName()
	require.Equal(t, fmt.Sprintf("%d/%s", reducer.MemoryVersion, reducer.DefaultTable().Hash()), plain)
	require.Equal(t, plain, reducer.NewMachine(reducer.MachineOptions{Table: reducer.DefaultTable()}).FoldName())
	m, base := reducer.NewMachine(reducer.MachineOptions{}), fmt.Sprint(reducer.MemoryVersion, "/")
	for _, hash := range m.Table().Identities() {
		require.True(t, m.AcceptsFold(base+hash))
		require.False(t, reducer.NewMachine(reducer.MachineOptions{Codec: events.DefaultCodec()}).AcceptsFold(base+hash))
		require.False(t, m.AcceptsFold("1/"+hash), "a memory of another shape")
	}
	require.False(t, m.AcceptsFold(base))
	require.False(t, m.AcceptsFold(base+"0123"))
	fold := func(*reducer.Memory, *events.Event) {}
	require.Empty(t, reducer.NewMachine(reducer.MachineOptions{Folds: map[events.Type]reducer.Fold{events.TypeStart: fold}}).FoldName())
	require.Empty(t, reducer.NewMachine(reducer.MachineOptions{Codec: events.DefaultCodec()}).FoldName())
}
