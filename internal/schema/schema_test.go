package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/tool"
)

const search = `{"type":"object","required":["query"],"additionalProperties":false,"properties":{
	"query":{"type":"string","minLength":1},"limit":{"type":"integer","maximum":100},
	"tags":{"type":"array","items":{"type":"string"}},
	"where":{"anyOf":[{"type":"string"},{"type":"null"}]}}}`

func TestValidateAccepts(t *testing.T) {
	v := New(Options{})
	for _, arguments := range []string{
		`{"query":"x"}`, ` {"query":"x","limit":100} `, `{"query":"x","tags":[],"where":null}`,
	} {
		require.NoError(t, v.Validate(json.RawMessage(search), arguments), arguments)
	}
	for _, empty := range []string{"", " \n"} {
		require.NoError(t, v.Validate(json.RawMessage(`{"type":"object"}`), empty))
		require.NoError(t, v.Validate(nil, empty))
	}
	require.NoError(t, v.Validate(json.RawMessage(`true`), `[1]`))
}

func TestValidateNamesEveryViolation(t *testing.T) {
	err := New(Options{}).Validate(json.RawMessage(search),
		`{"query":7,"limit":101,"tags":["a",1,{}],"where":3,"extra/key":true}`)
	var f *tool.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, tool.CodeInvalidArguments, f.Code)
	for _, want := range []string{
		"- /query: ", "- /limit: ", "- /tags/1: ", "- /tags/2: ", "- /where: ", "'extra/key'", "want string", "100",
	} {
		require.Contains(t, err.Error(), want)
	}
	require.NotContains(t, err.Error(), "moorebus:")
	require.NotErrorIs(t, err, ErrSchema)
}

func TestValidateMissingProperty(t *testing.T) {
	err := New(Options{}).Validate(json.RawMessage(search), "")
	require.ErrorContains(t, err, "- (the whole value): missing property 'query'")
}

func TestReportIsReadable(t *testing.T) {
	schema := json.RawMessage(`{"$defs":{"a":{"type":"string"}},"properties":{"x~/":{"$ref":"#/$defs/a"},"q":false,
		"y":{"anyOf":[{"type":"string"},{"minimum":3}]}},"propertyNames":{"maxLength":3}}`)
	err := New(Options{}).Validate(schema, `{"x~/":1,"q":1,"y":2,"longname":1}`)
	lines := strings.Split(err.Error(), "\n")
	require.Equal(t, "the arguments do not match the tool's schema:", lines[0])
	require.ElementsMatch(t, []string{
		"- /x~0~1: got number, want string", "- /q: must not be there", "- /y: none of the alternatives fits",
		"  - /y: got number, want string", "  - /y: minimum: got 2, want 3",
		`- (the whole value): the name "longname" is not allowed`, "  - (the whole value): maxLength: got 8, want 3",
	}, lines[1:])
}

func TestValidateNotJSON(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"a": tru}`:     "at byte 9",
		`{"a":1`:         "ends too early at byte 6",
		`{"a":1,}`:       "at byte 7",
		`{"a":1} {`:      "after top-level value at byte 8",
		`{"a":1}x`:       "after top-level value at byte 7",
		`{"a":1,"a":2}`:  `"a" occurs twice`,
		`{"a":1e999999}`: "exponent",
		`nonsense`:       "at byte 1",
		`]`:              "at byte 0",
		`{1:2}`:          "at byte 1",
	} {
		err := New(Options{}).Validate(nil, arguments)
		require.ErrorContains(t, err, "not valid JSON", arguments)
		require.ErrorContains(t, err, want, arguments)
		var f *tool.Failure
		require.ErrorAs(t, err, &f)
	}
	require.ErrorContains(t, New(Options{}).Validate(nil, strings.Repeat("[", 2000)+strings.Repeat("]", 2000)), "nested")
}

// What is decoded is what package json makes of the same text.
func TestDecode(t *testing.T) {
	for _, text := range []string{
		`{}`, ` [ ] `, `true`, ` false`, "null\n", `""`, `-0.5e+3`, `0`, `"plain"`, `"\"\\\u00e9\ud83d\ude00\n"`, "\"not \xff UTF-8\"", `"\\"`,
		"{ \"a\" : [ 1 , -2.5 , {\"b\":null} ,\t\"c,:]}\" ] ,\r\n\"\\u0062\" : {} , \"\":true}", `[[],[{}],"\\\"",[1,2,[3]]]`, `{"é":"ü\/","a\"b":1}`,
	} {
		var want any
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		require.NoError(t, dec.Decode(&want), text)
		got, err := decode(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, want := range map[string]string{
		`{"a": 1, "\u0061":2}`: "again at byte 17",
		`[1e1001]`:             "the number ending at byte 7",
		strings.Repeat("[", 1001) + strings.Repeat("]", 1001):           "nested more than 1000 deep at byte 1001",
		strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000):       "max depth",
		strings.Repeat(`{"a":`, 1001) + "1" + strings.Repeat("}", 1001): "nested more than 1000 deep at byte 5001",
	} {
		_, err := decode(text)
		require.ErrorContains(t, err, want)
	}
}

func TestNumbersAreExact(t *testing.T) {
	schema := json.RawMessage(`{"const": 12345678901234567890123}`)
	v := New(Options{})
	require.NoError(t, v.Validate(schema, `12345678901234567890123`))
	require.Error(t, v.Validate(schema, `12345678901234567890124`))
	require.NoError(t, v.Validate(json.RawMessage(`{"multipleOf":0.1,"type":"number"}`), `0.3`))
	require.NoError(t, v.Validate(json.RawMessage(`{"type":"integer"}`), `1e1000`))
}

func TestSchemaErrors(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"objekt"}`:                 "/type",
		`{"properties":[]}`:                 "/properties",
		`7`:                                 "",
		`{`:                                 "not valid JSON",
		`{"$ref":"#/$defs/none"}`:           "$defs/none",
		`{"pattern":"("}`:                   "pattern",
		`{"maximum":1e99999999}`:            "exponent",
		`{"$schema":"http://nowhere.test"}`: "may only refer to itself",
	} {
		err := Check(json.RawMessage(schema))
		require.ErrorIs(t, err, ErrSchema, schema)
		require.ErrorContains(t, err, want, schema)
		require.ErrorIs(t, New(Options{}).Validate(json.RawMessage(schema), "{}"), ErrSchema, schema)
	}
	require.NoError(t, Check(json.RawMessage(search)))
	require.NoError(t, Check(json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`)))
	require.NoError(t, Check(json.RawMessage(`{"$defs":{"a":{"type":"string"}},"properties":{"x":{"$ref":"#/$defs/a"}}}`)))
}

func TestNothingIsLoaded(t *testing.T) {
	asked := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked = true
		fmt.Fprint(w, `{}`)
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "s.json")
	require.NoError(t, os.WriteFile(file, []byte(`{}`), 0o600))
	for _, ref := range []string{srv.URL + "/s.json", "file://" + file, file, "s.json", "../s.json"} {
		for _, schema := range []string{`{"$ref":%q}`, `{"$dynamicRef":%q}`, `{"properties":{"a":{"$ref":%q}}}`, `{"$id":%q,"$ref":"x.json"}`} {
			err := Check(json.RawMessage(fmt.Sprintf(schema, ref)))
			require.ErrorIs(t, err, ErrSchema, ref)
		}
	}
	require.False(t, asked, "the schema's reference was fetched")
}

func TestReportIsBounded(t *testing.T) {
	arguments := "[" + strings.Repeat("1,", 5000) + "1]"
	err := New(Options{}).Validate(json.RawMessage(`{"items":{"type":"string"}}`), arguments)
	require.ErrorContains(t, err, "and 4901 more")
	require.Less(t, len(err.Error()), 50_000)
}

func TestCacheIsBoundedAndShared(t *testing.T) {
	v := New(Options{CacheSize: 4})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				schema := json.RawMessage(fmt.Sprintf(`{"const":%d}`, (i+g)%9))
				if err := v.Validate(schema, fmt.Sprint((i+g)%9)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NotEmpty(t, v.cache)
	require.LessOrEqual(t, len(v.cache), 4)
}

func FuzzValidate(f *testing.F) {
	f.Add(search, `{"query":"x","limit":1.0}`)
	f.Add(`{"uniqueItems":true}`, `[1,1.0,1e0]`)
	f.Add(`{"$ref":"#"}`, `{}`)
	f.Add(`{"multipleOf":1e-900}`, `1e900`)
	f.Add(`{"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`, `1`)
	v := New(Options{CacheSize: 8})
	f.Fuzz(func(t *testing.T, schema, arguments string) {
		if value, err := decode(arguments); err == nil {
			var want any
			dec := json.NewDecoder(strings.NewReader(arguments))
			dec.UseNumber()
			require.NoError(t, dec.Decode(&want))
			require.Equal(t, want, value)
		}
		err := v.Validate(json.RawMessage(schema), arguments)
		if err == nil {
			return
		}
		var failure *tool.Failure
		if !errors.Is(err, ErrSchema) && !errors.As(err, &failure) {
			t.Fatalf("unclassified: %v", err)
		}
		if utf8.ValidString(arguments) && utf8.ValidString(schema) && !utf8.ValidString(err.Error()) {
			t.Fatalf("not UTF-8: %q", err)
		}
	})
}
