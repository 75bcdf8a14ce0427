package schema_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/pkg/tool"
)

// branching is a schema whose every definition tries the next one several times, in the value
// itself or one level below.
func branching(draft string, width, depth int, below bool) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"$schema":%q,"allOf":[{"$ref":"#/$defs/d0"}],"$defs":{`, draft)
	for i := range depth {
		next := fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1)
		if below {
			next = fmt.Sprintf(`{"properties":{"x":%s}}`, next)
		}
		fmt.Fprintf(&b, `"d%d":{"anyOf":[%s]},`, i, strings.TrimSuffix(strings.Repeat(next+",", width), ","))
	}
	fmt.Fprintf(&b, `"d%d":{"required":["never"]}}}`, depth)
	return []byte(b.String())
}

// repeat joins n texts by commas.
func repeat(n int, text func(i int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = text(i)
	}
	return strings.Join(all, ",")
}

func same(text string) func(int) string { return func(int) string { return text } }

// nest puts a text n times into another one around %s.
func nest(n int, around, within string) string {
	before, after, _ := strings.Cut(around, "%s")
	return strings.Repeat(before, n) + within + strings.Repeat(after, n)
}

const (
	draft20 = "https://json-schema.org/draft/2020-12/schema"
	draft7  = "http://json-schema.org/draft-07/schema#"
)

// cost is a hostile schema, or a harmless one with hostile arguments.
type cost struct{ schema, arguments string }

// costs are the worst that we know, by what is wrong with them.
func costs() map[string]map[string]cost {
	ring := func(n int, how string) string {
		return `{"$ref":"#/$defs/d0","$defs":{` + repeat(n, func(i int) string { return fmt.Sprintf(how, i, (i+1)%n) }) + `}}`
	}
	names := repeat(50_000, func(i int) string { return fmt.Sprintf(`"k%d":1`, i) })
	// Items whose hashes are equal in the library.
	var alike []string
	for i := range 1 << 13 {
		item := ""
		for bit := range 13 {
			item += "x" + map[bool]string{true: `","`, false: `\u0004`}[i>>bit&1 == 1]
		}
		alike = append(alike, `["`+item+`"]`)
	}
	levels := func(around string) string {
		return `{"$schema":"` + draft7 + `","not":{"$ref":"#/definitions/a"},"definitions":{"a":{"$ref":"#/definitions/d0"},` +
			repeat(40, func(i int) string {
				return fmt.Sprintf(`"d%d":`, i) + strings.ReplaceAll(around, "NEXT", fmt.Sprint(i+1))
			}) + `,"d40":false}}`
	}
	return map[string]map[string]cost{
		"branches too often": {
			"branches":                   {string(branching(draft20, 8, 14, false)), `{}`},
			"branches of an older draft": {string(branching(draft7, 8, 14, false)), `{}`},
			"branches behind a property": {`{"properties":{"p":{"$ref":"#/$defs/d0"}},` + strings.SplitN(string(branching(draft20, 8, 14, false)), `"allOf":[{"$ref":"#/$defs/d0"}],`, 2)[1], `{}`},
			"conditions": {`{"$ref":"#/$defs/d0","$defs":{` + repeat(30, func(i int) string {
				return fmt.Sprintf(`"d%d":{"if":{"$ref":"#/$defs/d%d"},"then":{"$ref":"#/$defs/d%d"}}`, i, i+1, i+1)
			}) + `,"d30":{"type":"object"}}}`, `{}`},
			"schemas that depend": {`{"$ref":"#/$defs/d0","$defs":{` + repeat(14, func(i int) string {
				return fmt.Sprintf(`"d%d":{"dependentSchemas":{`, i) + repeat(8, func(k int) string { return fmt.Sprintf(`"%d":{"$ref":"#/$defs/d%d"}`, k, i+1) }) + `}}`
			}) + `,"d14":{"type":"object"}}}`, `{}`},
		},
		"refers to itself": {
			"itself":              {`{"$ref":"#"}`, `{}`},
			"a ring":              {ring(1000, `"d%d":{"$ref":"#/$defs/d%d"}`), `{}`},
			"a ring of anyOf":     {ring(300, `"d%d":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/d%d"}]}`), `{}`},
			"a dynamic reference": {`{"$dynamicAnchor":"n","anyOf":[{"$dynamicRef":"#n"}]}`, `{}`},
			"a recursive one":     {`{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"anyOf":[{"$recursiveRef":"#"}]}`, `{}`},
		},
		"too large": {
			"a megabyte of allOf":      {`{"allOf":[` + repeat(60_000, same(`{"minLength":1}`)) + `]}`, `{}`},
			"a megabyte of properties": {`{"properties":{` + repeat(60_000, func(i int) string { return fmt.Sprintf(`"p%d":true`, i) }) + `}}`, `{}`},
			"many small parts":         {`{"properties":{` + repeat(5000, func(i int) string { return fmt.Sprintf(`"p%d":{}`, i) }) + `}}`, `{}`},
			"long pointers":            {`{"$defs":{"` + strings.Repeat("x", 60_000) + `":{"allOf":[` + repeat(1000, same(`{}`)) + `]}}}`, `{}`},
			"nested allOf":             {nest(490, `{"allOf":[%s]}`, `{}`), `{}`},
		},
		"pattern": {
			"of many instructions": {`{"pattern":"` + strings.Repeat("a{1000}", 500) + `"}`, `{}`},
			"nested repetitions":   {`{"pattern":"(((a{1000}){1000}){1000})"}`, `{}`},
			"long":                 {`{"pattern":"` + strings.Repeat("a", 100_000) + `"}`, `{}`},
			"classes":              {`{"patternProperties":{` + repeat(900, func(i int) string { return fmt.Sprintf(`"[\\pL%d\\pN]\\pL\\pL\\PL":true`, i) }) + `}}`, `{}`},
			"not RE2":              {`{"pattern":"(a)\\1"}`, `{}`},
			"not RE2 in draft 4":   {`{"$schema":"http://json-schema.org/draft-04/schema#","properties":{"a":{"pattern":"(?<!a)b"}}}`, `{}`},
		},
		"is not valid regex": {
			"not RE2 in draft 7": {`{"$schema":"` + draft7 + `","patternProperties":{"^(?=a)":true}}`, `{}`},
		},
		// What only the arguments make expensive.
		"the arguments cannot be checked": {
			"branches of levels":           {string(branching(draft20, 8, 14, true)), nest(16, `{"x":%s}`, `{}`)},
			"many leaves at every element": {`{"properties":{"a":{"items":{"anyOf":[` + repeat(1500, same(`{"const":"no"}`)) + `]}}}}`, `{"a":[` + repeat(5000, same("1")) + `]}`},
			"levels that nobody reports":   {levels(`{"items":{"$ref":"#/definitions/dNEXT"},"contains":{"$ref":"#/definitions/dNEXT"}}`), nest(40, `[%s]`, `1`)},
			"patterns of levels":           {levels(`{"patternProperties":{"a":{"$ref":"#/definitions/dNEXT"},"b":{"$ref":"#/definitions/dNEXT"}}}`), nest(40, `{"ab":%s}`, `1`)},
			"choices":                      {`{"items":{"enum":[` + repeat(20_000, func(i int) string { return fmt.Sprintf("%d", i) }) + `]}}`, `[` + repeat(20_000, same("-1")) + `]`},
			"large choices":                {`{"items":{"enum":[` + repeat(3000, func(i int) string { return fmt.Sprintf("[1,2,3,4,5,6,7,8,9,10,%d]", i) }) + `]}}`, `[` + repeat(10_000, same("[1,2,3,4,5,6,7,8,9,10,-1]")) + `]`},
			"large numbers":                {`{"items":{"enum":[` + repeat(1000, func(i int) string { return fmt.Sprintf("%de999", i) }) + `]}}`, `[` + repeat(20_000, same("-1e999")) + `]`},
			"a pattern of a long text":     {`{"properties":{"a":{"pattern":"(x+x+){1,100}y"}}}`, `{"a":"` + strings.Repeat("x", 900_000) + `"}`},
			"patterns of names":            {`{"patternProperties":{` + repeat(1500, func(i int) string { return fmt.Sprintf(`"^[a-z]+%d$":true`, i) }) + `}}`, `{` + names + `}`},
			"names":                        {`{"propertyNames":{"anyOf":[` + repeat(1500, func(i int) string { return fmt.Sprintf(`{"const":"%d"}`, i) }) + `]}}`, `{` + names + `}`},
			"what is left":                 {`{"allOf":[` + repeat(1500, same(`{"minProperties":1}`)) + `],"unevaluatedProperties":true}`, `{` + names + `}`},
			"what is left of other types":  {`{"allOf":[` + repeat(1500, same(`{"type":"string","unevaluatedProperties":true}`)) + `]}`, `{` + names + `}`},
			"a chain":                      {`{"items":{"$ref":"#/$defs/d0"},"$defs":{` + repeat(1200, func(i int) string { return fmt.Sprintf(`"d%d":{"$ref":"#/$defs/d%d"}`, i, i+1) }) + `,"d1200":{"type":"string"}}}`, `[` + repeat(20_000, same("1")) + `]`},
			"errors of deep values":        {`{"$ref":"#/$defs/a","$defs":{"a":{"properties":{"x":{"$ref":"#/$defs/a"}},"anyOf":[` + repeat(200, same("false")) + `]}}}`, nest(900, `{"x":%s}`, `1`)},
			"required":                     {`{"items":{"required":[` + repeat(20_000, func(i int) string { return fmt.Sprintf(`"r%d"`, i) }) + `]}}`, `[` + repeat(20_000, same("{}")) + `]`},
		},
		// What looks bad and is not.
		"": {
			"equal hashes":                      {`{"uniqueItems":true}`, `[` + strings.Join(alike, ",") + `]`},
			"equal hashes of a schema":          {`{"$schema":"` + draft7 + `","enum":[` + strings.Join(alike[:2500], ",") + `]}`, alike[0]},
			"references into what is no schema": {`{"$defs":{` + repeat(1200, func(i int) string { return fmt.Sprintf(`"d%d":{"$ref":"#/x/u%d"}`, i, i) }) + `},"x":{` + repeat(1200, func(i int) string { return fmt.Sprintf(`"u%d":{}`, i) }) + `},"allOf":[` + repeat(1200, func(i int) string { return fmt.Sprintf(`{"$ref":"#/x/u%d"}`, i) }) + `]}`, `{}`},
			"a number and its multiple":         {`{"items":{"multipleOf":1e-999}}`, `[` + repeat(10_000, same("1e999")) + `]`},
			"long numbers":                      {`{"items":{"type":"integer"}}`, `[` + repeat(90, same(strings.Repeat("9", 9990))) + `]`},
			"many parts":                        {`{"properties":{` + repeat(3900, func(i int) string { return fmt.Sprintf(`"p%d":{"type":"string"}`, i) }) + `}}`, `{}`},
			"long lists":                        {`{"required":[` + repeat(20_000, func(i int) string { return fmt.Sprintf(`"r%d"`, i) }) + `]}`, `{` + repeat(20_000, func(i int) string { return fmt.Sprintf(`"r%d":1`, i) }) + `}`},
			"the schema of schemas":             {`{"properties":{"s":{"$ref":"` + draft20 + `"}}}`, `{"s":` + nest(20, `{"type":"object","properties":{"a":%s}}`, `{}`) + `}`},
			"long arguments":                    {`{"properties":{"a":{"items":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}}}`, `{"a":[` + repeat(100_000, same(`{"n":1}`)) + `]}`},
		},
	}
}

// A schema cannot take all time and memory, whatever it says. What branches too often for any
// value is no schema that can be used.
func TestCostIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it takes seconds of processor time
	}
	for why, group := range costs() {
		for name, c := range group {
			t.Run(name, func(t *testing.T) {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				began := time.Now()
				v := schema.New(schema.Options{})
				unusable := v.Check([]byte(c.schema))
				compiled := time.Since(began)
				err := v.Validate([]byte(c.schema), c.arguments)
				took := time.Since(began)
				runtime.ReadMemStats(&after)
				t.Logf("compiled in %s, checked in %s, %d MB", compiled, took-compiled, (after.TotalAlloc-before.TotalAlloc)>>20)
				require.Less(t, took, 30*time.Second, "half a second on a machine with nothing else to do")
				require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2<<30), "most of it garbage, and a fifth of it without the race detector")
				var f *tool.Failure
				switch why {
				case "":
					require.NoError(t, err)
				case "the arguments cannot be checked":
					require.NoError(t, unusable)
					require.ErrorContains(t, err, "branches too often")
					require.ErrorAs(t, err, &f)
					require.Equal(t, tool.CodeInvalidArguments, f.Code)
					require.Error(t, v.Validate([]byte(c.schema), c.arguments), "each check has its own budget, and is not stuck")
				default:
					require.ErrorIs(t, unusable, schema.ErrSchema)
					require.ErrorIs(t, err, schema.ErrSchema)
					require.ErrorContains(t, err, why)
					require.Less(t, len(err.Error()), 200_000)
				}
			})
		}
	}
}
