package schema_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

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

// A schema cannot take all time and memory, whatever it says.
func TestCostIsBounded(t *testing.T) {
	deep := strings.Repeat(`{"x":`, 16) + `{}` + strings.Repeat(`}`, 16)
	for name, c := range map[string]struct {
		schema    []byte
		arguments string
	}{
		"branches":                     {branching("https://json-schema.org/draft/2020-12/schema", 8, 14, false), `{}`},
		"branches of levels":           {branching("https://json-schema.org/draft/2020-12/schema", 8, 14, true), deep},
		"branches of an older draft":   {branching("http://json-schema.org/draft-07/schema#", 8, 14, false), `{}`},
		"many leaves at every element": {[]byte(`{"properties":{"a":{"items":{"anyOf":[` + strings.TrimSuffix(strings.Repeat(`{"const":"no"},`, 3000), ",") + `]}}}}`), `{"a":[` + strings.TrimSuffix(strings.Repeat("1,", 5000), ",") + `]}`},
	} {
		t.Run(name, func(t *testing.T) {
			v := schema.New(schema.Options{})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := v.Validate(c.schema, c.arguments)
			runtime.ReadMemStats(&after)
			require.ErrorContains(t, err, "branches too often")
			var f *tool.Failure
			require.ErrorAs(t, err, &f)
			require.Equal(t, tool.CodeInvalidArguments, f.Code)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30))
			require.Error(t, v.Validate(c.schema, c.arguments), "each check has its own budget, and is not stuck")
		})
	}
	long := `{"a":[` + strings.TrimSuffix(strings.Repeat(`{"n":1},`, 100_000), ",") + `]}`
	require.NoError(t, schema.New(schema.Options{}).Validate([]byte(`{"properties":{"a":{"items":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}}}}`), long), "what is long is not what branches")
}
