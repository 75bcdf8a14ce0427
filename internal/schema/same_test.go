package schema

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// values generates small values, many of them equal in different spellings.
func values(depth int) *rapid.Generator[any] {
	leaf := rapid.SampledFrom([]any{nil, true, false, json.Number("1"), json.Number("1.0"), json.Number("10e-1"), json.Number("2"), "a", "b", "", "a@b.c", "1"})
	if depth == 0 {
		return leaf
	}
	return rapid.OneOf(leaf, leaf,
		rapid.SliceOfN(values(depth-1), 0, 4).AsAny(),
		rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), values(depth-1), 0, 3).AsAny())
}

// schemas generates schemas of all keywords that the budget has a hand in, and some others.
func schemas(depth int) *rapid.Generator[any] {
	keyword := rapid.SampledFrom([]string{"const", "enum", "uniqueItems", "format", "pattern", "type", "minimum", "required", "minLength"})
	return rapid.Custom(func(t *rapid.T) any {
		if rapid.IntRange(0, 9).Draw(t, "bool") == 0 {
			return rapid.Bool().Draw(t, "schema")
		}
		s := map[string]any{}
		for _, k := range rapid.SliceOfN(keyword, 0, 2).Draw(t, "keywords") {
			switch k {
			case "const":
				s[k] = values(2).Draw(t, k)
			case "enum":
				s[k] = rapid.SliceOfN(values(2), 1, 3).Draw(t, k)
			case "uniqueItems":
				s[k] = true
			case "format":
				s[k] = rapid.SampledFrom([]any{"email", "ipv4", "none"}).Draw(t, k)
			case "pattern":
				s[k] = rapid.SampledFrom([]any{"^a", "b$", "@"}).Draw(t, k)
			case "type":
				s[k] = rapid.SampledFrom([]any{"object", "array", "string", "integer", "null"}).Draw(t, k)
			case "required":
				s[k] = []any{"a"}
			default:
				s[k] = json.Number("1")
			}
		}
		if depth == 0 {
			return s
		}
		sub := schemas(depth - 1)
		switch rapid.SampledFrom([]string{"allOf", "anyOf", "oneOf", "not", "if", "items", "contains", "properties", "patternProperties", "propertyNames", "additionalProperties", "unevaluated", "dependent", "ref", ""}).Draw(t, "applicator") {
		case "allOf":
			s["allOf"] = rapid.SliceOfN(sub, 1, 3).Draw(t, "all")
		case "anyOf":
			s["anyOf"] = rapid.SliceOfN(sub, 1, 3).Draw(t, "any")
		case "oneOf":
			s["oneOf"] = rapid.SliceOfN(sub, 1, 3).Draw(t, "one")
		case "not":
			s["not"] = sub.Draw(t, "not")
		case "if":
			s["if"], s["then"], s["else"] = sub.Draw(t, "if"), sub.Draw(t, "then"), sub.Draw(t, "else")
		case "items":
			s["items"] = sub.Draw(t, "items")
		case "contains":
			s["contains"] = sub.Draw(t, "contains")
		case "properties":
			s["properties"] = map[string]any{"a": sub.Draw(t, "a"), "b": sub.Draw(t, "b")}
		case "patternProperties":
			s["patternProperties"] = map[string]any{"^a": sub.Draw(t, "a"), "b": sub.Draw(t, "b")}
		case "propertyNames":
			s["propertyNames"] = sub.Draw(t, "names")
		case "additionalProperties":
			s["additionalProperties"] = sub.Draw(t, "more")
		case "unevaluated":
			s["unevaluatedProperties"], s["unevaluatedItems"] = sub.Draw(t, "left"), sub.Draw(t, "items left")
			s["anyOf"] = rapid.SliceOfN(sub, 1, 2).Draw(t, "any")
		case "dependent":
			s["dependentSchemas"] = map[string]any{"a": sub.Draw(t, "a")}
		case "ref":
			s["$ref"], s["$defs"] = "#/$defs/x", map[string]any{"x": sub.Draw(t, "x")}
			delete(s, "const") // drafts 6 and 7 ignore it beside $ref, the library does not
		}
		return s
	})
}

// The budget changes no answer: what the library alone accepts is accepted, and nothing else.
func TestBudgetChangesNoAnswer(t *testing.T) {
	drafts := []string{"", "https://json-schema.org/draft/2019-09/schema", "http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-06/schema#"}
	accepted, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		doc := schemas(3).Draw(rt, "schema")
		s, isObject := doc.(map[string]any)
		if draft := rapid.SampledFrom(drafts).Draw(rt, "draft"); draft != "" && isObject {
			s["$schema"] = draft
		}
		text, err := json.Marshal(doc)
		require.NoError(rt, err)
		same, err := decode(string(text))
		require.NoError(rt, err)
		c := jsonschema.NewCompiler()
		require.NoError(rt, c.AddResource(resourceURL, same))
		alone, err := c.Compile(resourceURL)
		ours, unusable := compile(text)
		if err != nil {
			require.Error(rt, unusable)
			return
		}
		if errors.Is(unusable, errRing) {
			return
		}
		require.NoError(rt, unusable, string(text))
		for _, v := range rapid.SliceOfN(values(3), 5, 5).Draw(rt, "values") {
			want, got := alone.Validate(v), ours.check(v)
			if (want == nil) != (got == nil) {
				rt.Fatalf("%s of %v: alone %v, ours %v", text, v, want, got)
			}
			if want == nil {
				accepted++
			} else {
				refused++
			}
		}
	})
	require.NotZero(t, accepted)
	require.NotZero(t, refused)
}
