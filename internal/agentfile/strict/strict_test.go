package strict_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
)

type inner struct {
	Count int             `json:"count"`
	Raw   json.RawMessage `json:"raw"`
}

type outer struct {
	inner
	List []inner        `json:"list"`
	Map  map[string]int `json:"map"`
	Ptr  *inner         `json:"ptr"`
	Any  any            `json:"any"`
	Flag bool           `json:"flag"`
	Size uint8          `json:"size"`
}

func TestDecodeKeepsWhatIsLeftOut(t *testing.T) {
	v := outer{Flag: true, Size: 7}
	require.NoError(t, strict.DecodeJSON([]byte(`{"count":1,"raw":{"b":1.0,"a":[]},"list":[{"count":2}],"map":{"x":3},"ptr":{"count":4},"any":[null],"size":null}`), &v))
	require.Equal(t, 1, v.Count)
	require.Equal(t, `{"b":1.0,"a":[]}`, string(v.Raw))
	require.Equal(t, 2, v.List[0].Count)
	require.Equal(t, 4, v.Ptr.Count)
	require.True(t, v.Flag)
	require.EqualValues(t, 7, v.Size)
}

func TestDecodeChangesNothingOnError(t *testing.T) {
	v := outer{Size: 7}
	err := strict.DecodeJSON([]byte("{\"size\": 1,\n\"map\": {\"x\": true}, \"list\": [{\"count\": 1.5}], \"nope\": 1}"), &v)
	require.Error(t, err)
	for _, want := range []string{"line 2: map.x: is a truth value, want a number", "list[0].count", "nope: unknown key"} {
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, outer{Size: 7}, v)
	require.ErrorContains(t, strict.DecodeJSON([]byte(`{"size":256}`), &v), "size: 256 is not a whole number")
}

func TestDepthIsBounded(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	_, err := strict.ParseJSON([]byte(deep))
	require.ErrorContains(t, err, "deeper than")
	_, err = strict.ParseYAML([]byte(deep[:4000]))
	require.Error(t, err)
}

func TestCheckDepth(t *testing.T) {
	require.NoError(t, strict.CheckDepth([]byte(strings.Repeat("[", 100)+`"\"[[\\"`+strings.Repeat("]", 100))))
	require.NoError(t, strict.CheckDepth([]byte(strings.Repeat("[],", 500)+`"`+strings.Repeat(`[\"{`, 500)+`"`)))
	for _, open := range []string{"[", `{"a":`, `[{"]":`} {
		require.ErrorContains(t, strict.CheckDepth([]byte(strings.Repeat(open, 101))), "deeper than 100 levels", open)
	}
}

func TestPlaceFindsTheLine(t *testing.T) {
	docs, err := strict.ParseYAML([]byte("a:\n  b:\n  - x\n  - y\n"))
	require.NoError(t, err)
	err = docs[0].Place("in", errors.New("a.b[1]: is wrong"))
	require.EqualError(t, err, "line 4: in.a.b[1]: is wrong")
	err = docs[0].Place("", errors.New("a.b[7].c: is wrong"))
	require.EqualError(t, err, "line 3: a.b[7].c: is wrong")
	rest, b := docs[0].Get("a").Without("b")
	require.Empty(t, rest.Members)
	require.Equal(t, `["x","y"]`, string(b.JSON()))
}
