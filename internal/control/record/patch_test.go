package record

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
)

// patchOf returns the operations that turn before into after.
func patchOf(before, after json.RawMessage) (ops []Op) {
	values(func(o Op) { ops = append(ops, o) }, "", before, after)
	return ops
}

func TestPatch(t *testing.T) {
	for _, c := range [][3]string{
		{`{}`, `{}`, `null`},
		{`{"a":1}`, `{"a":1,"b":null}`, `[{"op":"add","path":"/b","value":null}]`},
		{`{"a":1,"b":2}`, `{"b":3}`, `[{"op":"remove","path":"/a"},{"op":"replace","path":"/b","value":3}]`},
		{`{"a/b":{"~":[1]}}`, `{"a/b":{"~":[1,2,{"c":3}]}}`, `[{"op":"add","path":"/a~1b/~0/-","value":2},{"op":"add","path":"/a~1b/~0/-","value":{"c":3}}]`},
		{`{"l":[1,2,3,4]}`, `{"l":[1,4]}`, `[{"op":"remove","path":"/l/2"},{"op":"remove","path":"/l/1"}]`},
		{`{"l":[1,4]}`, `{"l":[1,2,4]}`, `[{"op":"add","path":"/l/1","value":2}]`},
		{`{"l":[{"x":1},2]}`, `{"l":[{"x":2},2]}`, `[{"op":"replace","path":"/l/0/x","value":2}]`},
		{`[1]`, `{"a":1.0e3}`, `[{"op":"replace","path":"","value":{"a":1.0e3}}]`},
	} {
		text, err := json.Marshal(patchOf([]byte(c[0]), []byte(c[1])))
		require.NoError(t, err)
		require.Equal(t, c[2], string(text), "%s to %s", c[0], c[1])
	}
}

// TestPatchApplies: the patch turns the one document into the other, as another maker's implementation
// applies it.
func TestPatchApplies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		before := randomObject(random, 4)
		after := randomObject(random, 4)
		if random.IntN(3) > 0 { // mostly the same
			require.NoError(t, json.Unmarshal(asJSON(t, before), &after))
			for key := range after {
				if random.IntN(3) == 0 {
					after[key] = randomValue(random, 3)
				} else if list, ok := after[key].([]any); ok {
					at := random.IntN(len(list) + 1)
					after[key] = append(append(append([]any{}, list[:at]...), randomValue(random, 2)), list[at:]...)
				}
			}
		}
		a, b := asJSON(t, before), asJSON(t, after)
		ops := patchOf(a, b)
		if string(a) == string(b) {
			require.Empty(t, ops)
			continue
		}
		patch, err := jsonpatch.DecodePatch(asJSON(t, ops))
		require.NoError(t, err)
		got, err := patch.Apply(a)
		require.NoError(t, err, "%s to %s by %s", a, b, asJSON(t, ops))
		require.JSONEq(t, string(b), string(got))
	}
}

func asJSON(t *testing.T, v any) []byte {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return data
}

func randomObject(r *rand.Rand, depth int) map[string]any {
	o := map[string]any{}
	for range r.IntN(5) {
		o[[]string{"a", "b/c", "d~e", "é", "0"}[r.IntN(5)]] = randomValue(r, depth-1)
	}
	return o
}

func randomValue(r *rand.Rand, depth int) any {
	switch kind := r.IntN(6); {
	case kind == 0 && depth > 0:
		return randomObject(r, depth)
	case kind <= 2 && depth > 0:
		list := []any{}
		for range r.IntN(4) {
			list = append(list, randomValue(r, depth-1))
		}
		return list
	case kind == 3:
		return nil
	case kind == 4:
		return fmt.Sprint("<", r.IntN(3), ">")
	}
	return r.IntN(3)
}
