package codec_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/reducertest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// everything has a field of every type that has a decoder, and of some that are left to
// package json.
type everything struct {
	Text   string  `json:"text"`
	Yes    bool    `json:"yes"`
	Int    int     `json:"int"`
	Small  int32   `json:"small"`
	Uint   uint64  `json:"uint"`
	Float  float64 `json:"float"`
	hidden int     //lint:ignore U1000 neither way has an unexported field
	Inner
	Pointer *Inner            `json:"pointer"`
	List    []string          `json:"list"`
	Pairs   [][2]int64        `json:"pairs,omitempty"`
	Bytes   []byte            `json:"bytes,omitempty"`
	Map     map[string]*Inner `json:"map"`
	Raw     json.RawMessage   `json:"raw"`
	At      time.Time         `json:"at"`
	For     events.Duration   `json:"for,omitempty"`
	Any     any               `json:"any,omitempty"`
	Next    *everything       `json:"next,omitempty"`
	Skipped string            `json:"-"`
}

type Inner struct {
	Name  string `json:"name,omitempty"`
	Count int    `json:"count,omitempty"`
}

func some() everything {
	return everything{
		Text: "größer <b> \"\\\b\f\n\r\t\x00\u2028 🚌", Yes: true, Int: -7, Small: math.MinInt32, Uint: math.MaxUint64, Float: -1.5e-9,
		Inner: Inner{Name: "n", Count: 3}, Pointer: &Inner{}, List: []string{"", "a longer text than eight bytes"}, Pairs: [][2]int64{{1, 2}, {3, 4}},
		Bytes: []byte("bytes"), Map: map[string]*Inner{"a": nil, "b\n": {Name: "\t"}}, Raw: json.RawMessage(`{"a":["}","\"]",{}],"b":1}`),
		At: time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC), For: events.Duration(time.Minute), Any: map[string]any{"x": 1.5}, Next: &everything{List: []string{}, Raw: json.RawMessage(`null`)},
	}
}

func written(t testing.TB, v any) []byte {
	t.Helper()
	text, err := codec.Append(nil, v)
	require.NoError(t, err)
	return text
}

// sameAsJSON reads a text by both packages. What is in the canonical form is the same
// to both, and nothing that package json refuses is.
func sameAsJSON[T any](t testing.TB, text []byte) (canonical bool) {
	t.Helper()
	kept := bytes.Clone(text)
	want, fast, got := new(T), new(T), new(T)
	wantErr := json.Unmarshal(text, want)
	if canonical = codec.Canonical(text, fast); canonical {
		require.NoError(t, wantErr, "%s", text)
		require.Equal(t, want, fast, "%s", text)
	}
	err := codec.Unmarshal(text, got)
	require.Equal(t, wantErr, err)
	require.Equal(t, want, got)
	require.Equal(t, kept, text, "reading changed the text")
	return canonical
}

func TestWhatIsWrittenIsCanonical(t *testing.T) {
	for _, v := range []everything{some(), {}} {
		text := written(t, v)
		require.True(t, sameAsJSON[everything](t, text), "%s", text)
		escaped, err := json.Marshal(v) // with the escapes for HTML
		require.NoError(t, err)
		require.True(t, sameAsJSON[everything](t, escaped), "%s", escaped)
		for i := range text {
			require.False(t, sameAsJSON[everything](t, text[:i]), "%d of %d bytes", i, len(text))
		}
	}
}

func TestOtherFormsAreLeftToPackageJSON(t *testing.T) {
	text := string(written(t, everything{Text: "t", List: []string{"a"}}))
	for name, change := range map[string][2]string{
		"white space":       {`"yes":`, `"yes": `},
		"an unknown member": {`{`, `{"more":1,`},
		"another order":     {`"text":"t","yes":false`, `"yes":false,"text":"t"`},
		"a missing member":  {`"yes":false,`, ``},
		"a double member":   {`"yes":false,`, `"yes":false,"yes":true,`},
		"capital letters":   {`"yes"`, `"Yes"`},
		"an escaped key":    {`"yes"`, `"\u0079es"`},
		"null for a text":   {`"t"`, `null`},
		"an empty option":   {`"pointer"`, `"name":"","pointer"`},
		"a double key":      {`"map":null`, `"map":{"a":{"name":"x"},"a":{"count":1}}`},
		"surrogates":        {`"t"`, `"\ud83d\ude00"`},
		"a fraction":        {`"int":0`, `"int":1.0`},
		"negative zero":     {`"int":0`, `"int":-0`},
		"a leading zero":    {`"int":0`, `"int":01`},
		"too large":         {`"small":0`, `"small":2147483648`},
		"another type":      {`"t"`, `1`},
		"deep nesting":      {`"raw":null`, `"raw":` + strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999)},
		"too deep nesting":  {`"raw":null`, `"raw":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)},
		"invalid UTF-8":     {`"t"`, "\"\xff\""},
		"a control code":    {`"t"`, "\"\x1f\""},
	} {
		t.Run(name, func(t *testing.T) {
			other := strings.Replace(text, change[0], change[1], 1)
			require.NotEqual(t, text, other)
			require.False(t, sameAsJSON[everything](t, []byte(other)))
		})
	}
}

func TestTimes(t *testing.T) {
	text := string(written(t, everything{}))
	const never = `"at":"0001-01-01T00:00:00Z"`
	require.Contains(t, text, never)
	for _, at := range []string{
		"2026-11-20T18:40:50Z", "2026-11-20T18:40:50.5Z", "2024-02-29T00:00:00.000000001Z", "9999-12-31T23:59:59.999999999Z", "2026-11-20T18:40:50+01:00",
		"2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-11-20T24:00:00Z", "2026-11-20T18:60:00Z", "2026-11-20T18:40:50.Z", "x", "", `2026-11-20T18:40:50\u005a`,
	} {
		sameAsJSON[everything](t, []byte(strings.Replace(text, never, `"at":"`+at+`"`, 1)))
	}
}

// A struct that package json reads by rules of its own is left to it.
func TestStructsWithRulesOfTheirOwn(t *testing.T) {
	type twice struct {
		Inner
		Name string `json:"name"`
	}
	sameAsJSON[twice](t, []byte(`{"name":"a","count":1}`))
	type quoted struct {
		N int `json:"n,string"`
	}
	sameAsJSON[quoted](t, []byte(`{"n":"1"}`))
	type untagged struct{ Name string }
	sameAsJSON[untagged](t, []byte(`{"Name":"a"}`))
	type pointer struct{ *Inner }
	sameAsJSON[pointer](t, []byte(`{"name":"a"}`))
	sameAsJSON[pointer](t, []byte(`{}`))
}

// Every memory that a run comes to is written in the canonical form.
func TestMemoriesAreCanonical(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		run := reducertest.NewRun(reducer.NewMachine(reducer.MachineOptions{}))
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			e := reducertest.Next(t, run)
			if e.Payload == nil {
				break
			}
			run.Append(e.Origin, e.Payload)
		}
		text, err := json.Marshal(run.Mem)
		require.NoError(t, err)
		want, got := new(reducer.Memory), new(reducer.Memory)
		require.NoError(t, json.Unmarshal(text, want))
		require.True(t, codec.Canonical(text, got))
		require.Equal(t, want, got)
	})
}

// Whatever strings a text has, those that were read take little more memory than they
// are long.
func TestStringsTakeLittleMemory(t *testing.T) {
	short, long, escaped := "short", strings.Repeat("a long text ", 10_000), strings.Repeat("a line\n", 100)
	var texts []string
	for range 100 {
		texts = append(texts, short, long, short, short, escaped)
	}
	text := written(t, texts)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var got []string
	require.NoError(t, codec.Unmarshal(text, &got))
	runtime.ReadMemStats(&after)
	require.Equal(t, texts, got)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(len(text))*5/4)
}

func TestAppend(t *testing.T) {
	b, err := codec.Append([]byte("x"), some())
	require.NoError(t, err)
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	require.NoError(t, e.Encode(some()))
	require.Equal(t, "x"+strings.TrimSuffix(want.String(), "\n"), string(b))

	b, err = codec.Append([]byte("x"), math.NaN())
	var unsupported *json.UnsupportedValueError
	require.ErrorAs(t, err, &unsupported)
	require.Equal(t, "x", string(b))
}

func FuzzUnmarshal(f *testing.F) {
	text := written(f, some())
	f.Add(text)
	for i := 0; i < len(text); i += 50 {
		f.Add(text[:i])
	}
	for _, quoted := range []string{`"\u0041\"\\\/\b\f\n\r\t"`, `"\ud83d\ude8c"`, `"\ud83dx"`, `"\u00e"`, `"\q"`, `"\`, `"`, "\"\x1f\"", `"\u"`, `0`, `-0`, `1e3`, `1E+2`, `1e400`, `-`, `1.`, `+1`} {
		f.Add(fmt.Appendf(nil, `{"text":%s,"float":%[1]s}`, quoted))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		sameAsJSON[everything](t, text)
		sameAsJSON[string](t, text)
		sameAsJSON[float64](t, text)
		sameAsJSON[int64](t, text)
		sameAsJSON[json.RawMessage](t, text)
		sameAsJSON[[]time.Time](t, text)
	})
}

// FuzzMembers: what package json reads as an object has the same members here, and
// nothing else that is read as one has values that package json reads.
func FuzzMembers(f *testing.F) {
	for _, text := range []string{`{}`, `{"a":1,"b":{"c":[1,"}"]}}`, ` { "a" : "\"" , "b" : [ ] } `, `{"a":1,}`, `{,"a":1}`, `{"a" 1}`, `{"a":1 2}`, `{"a":[1}]}`, `[]`, `{"\u0061":1}`, `{"a":1}x`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		valid, keys := true, []string{}
		err := codec.Members(text, func(key, value []byte) error {
			keys = append(keys, string(key))
			valid = valid && json.Valid(value)
			return nil
		})
		var want map[string]json.RawMessage
		if utf8.Valid(text) && json.Unmarshal(text, &want) == nil && want != nil {
			require.NoError(t, err)
			for key := range want {
				require.Contains(t, keys, key)
			}
		}
		if err == nil && valid {
			require.True(t, json.Valid(text), "%q", text)
		}
	})
}

// BenchmarkUnmarshal reads the memory of a run of 10,000 events.
func BenchmarkUnmarshal(b *testing.B) {
	mem := &reducer.Memory{RunID: "r", ToolCalls: map[string]*reducer.ToolCallRecord{}}
	for i := range 10_000 {
		mem.Trace = append(mem.Trace, reducer.TraceEntry{Step: i, State: "Acting", Event: "ToolSuccess", Data: `{"text":"this is a step"}`})
		if i%3 == 0 {
			mem.History = append(mem.History, reducer.HistoryEntry{
				Step: i, Tool: reducer.ToolCall{ID: "c", Name: "echo", Arguments: `{"text":"this is a step"}`}, Observation: "this is a step", Success: true,
			})
		}
	}
	text := written(b, mem)
	for name, unmarshal := range map[string]func([]byte, any) error{"codec": codec.Unmarshal, "package json": json.Unmarshal} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				require.NoError(b, unmarshal(text, new(reducer.Memory)))
			}
		})
	}
}

func TestStrict(t *testing.T) {
	var v struct {
		A int `json:"a"`
	}
	require.NoError(t, codec.Strict([]byte(" {\"a\": 1}\n"), &v))
	require.Equal(t, 1, v.A)
	require.ErrorContains(t, codec.Strict([]byte(`{"a":1,"b":2}`), &v), `unknown field "b"`)
	require.ErrorContains(t, codec.Strict([]byte(`{"a":1}{}`), &v), "something follows the JSON object")
	require.Error(t, codec.Strict([]byte(`{"a":"x"}`), &v))
	var of any
	require.NoError(t, codec.Strict([]byte(`[1.50, {"b": 12345678901234567890}]`), &of))
	require.Equal(t, []any{json.Number("1.50"), map[string]any{"b": json.Number("12345678901234567890")}}, of)
	require.ErrorContains(t, codec.Strict([]byte(`1 apple`), &of), "something follows the JSON object")
}
