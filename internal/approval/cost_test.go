package approval_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

func evaluate(t *testing.T, expr string, arguments any) (bool, error) {
	t.Helper()
	text, err := json.Marshal(arguments)
	require.NoError(t, err)
	_, required, err := approval.New().Required(&events.Approval{Policy: events.ApproveExpr, Expr: expr},
		events.Call{Name: "pay", Arguments: string(text)}, reducer.ToolInfo{Risk: "low"}, "r1")
	return required, err
}

func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// What an expression costs is bounded, whatever it says and whatever it is given.
func TestCostIsBounded(t *testing.T) {
	type object = map[string]any
	long := strings.Repeat("x", 450_000)
	var deep any = 1
	for range 9000 {
		deep = []any{deep}
	}
	for expr, arguments := range map[string]any{
		"all(arguments.n, all(arguments.n, all(arguments.n, all(arguments.n, true))))":                  object{"n": numbers(2000)},
		"any(arguments.items, # in arguments.blocked)":                                                  object{"items": numbers(80_000), "blocked": []int{-1}, "x": 1},
		"any(arguments.items, any(arguments.blocked, # == -2))":                                         object{"items": numbers(80_000), "blocked": numbers(80_000)},
		"all(1..900000, arguments.s != arguments.t)":                                                    object{"s": long, "t": long + "y"},
		"all(1..900000, arguments.s < arguments.t)":                                                     object{"s": long, "t": long + "y"},
		"all(1..900000, not (arguments.s contains 'ab'))":                                               object{"s": long},
		"all(1..900000, len(arguments.s) > 1)":                                                          object{"s": long},
		"all(1..900000, not (arguments.s in arguments.m))":                                              object{"s": long, "m": object{}},
		"all(1..900000, arguments.m[arguments.s] == nil)":                                               object{"s": long, "m": object{}},
		"all(1..900000, {{(arguments.s): 1} != nil})":                                                   object{"s": long},
		"len(groupBy(1..900000, arguments.s)) > 1":                                                      object{"s": long},
		"len(reduce(1..100, #acc + #acc, 'x')) > 1":                                                     object{},
		"len(reduce(1..30, concat(#acc, #acc), [1])) > 1":                                               object{},
		"len(repeat(arguments.s, 1000000)) > 1":                                                         object{"s": long},
		"len(replace(arguments.s, '', arguments.s)) > 1":                                                object{"s": long},
		"len(join(split(arguments.s, ''), arguments.s)) > 1":                                            object{"s": long},
		"len(uniq(arguments.n)) > 1":                                                                    object{"n": numbers(80_000)},
		"len(toJSON(arguments)) > 1":                                                                    object{"d": []any{deep, deep, deep, deep}},
		"len(flatten([arguments.d])) > 1":                                                               object{"d": []any{deep, deep, deep, deep}},
		"arguments.s matches '(x?){500}(x?){500}(x?){500}y'":                                            object{"s": long},
		"arguments.s matches arguments.p":                                                               object{"s": long, "p": strings.Repeat("(x?){900}", 1000)},
		"all(1..900000, string($env) != '')":                                                            object{"s": long},
		"all(1..300000, timezone('Europe/Berlin') != nil)":                                              object{},
		"any(1..900000, let a = [1, 2, 3, 4, 5, 6, 7, 8, 9]; a == [9, 8, 7] and a != a and tool != '')": object{},
		"len(1..9000000000) > 1":                                                                        object{},
		"sum(arguments.n | map(# + 1) | filter(# > arguments.n[0]) | map(arguments.n | sum())) < 0":     object{"n": numbers(80_000)},
	} {
		t.Run(expr, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			_, err := evaluate(t, expr, arguments)
			took := time.Since(began)
			runtime.ReadMemStats(&after)
			require.Error(t, err)
			require.Less(t, took, time.Minute)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20))
		})
	}
}

// What an expression says does not change by its being counted.
func TestCountedExpressionsSayTheSame(t *testing.T) {
	arguments := map[string]any{
		"amount": 120.5, "to": []string{"bob", "eve", "bob"}, "path": "C:\\tmp\\x", "nested": map[string]any{"deep": []any{1, "two", nil, true}},
		"items": numbers(400), "blocked": []int{399}, "pattern": "^b.b$",
	}
	for _, expr := range []string{
		`tool in ["pay", "refund"] && risk not in ["high"]`,
		`arguments.amount > 100 and arguments.amount < 121 or false`,
		`any(arguments.items, # in arguments.blocked)`,
		`all(arguments.items, any(arguments.items, # >= 0))`,
		`arguments.to[0] matches "^b" and arguments.to[1] matches arguments.to[1] and arguments.to[2] matches arguments.pattern`,
		`not (arguments.missing matches "x") && arguments.missing == nil`,
		`join(arguments.to, "+") == "bob+eve+bob" and join(uniq(arguments.to)) == "bobeve"`,
		`replace(arguments.path, "\\", "/") startsWith "C:/tmp" and repeat("ab", 2) == "abab"`,
		`count(arguments.to, # == "bob") == 2 and len(filter(arguments.to, # != "bob")) == 1`,
		`arguments.nested.deep[1] == "two" and arguments?.none?.more == nil and (arguments.none ?? "x") == "x"`,
		`let n = len(arguments.to); n == 3 and sum(arguments.items) == 79800 and tool contains "ay"`,
		`{"a": {"b": 1}}.a.b == 1 and keys({"k": 1})[0] == "k" and trim(lower(" ABC")) == "abc"`,
		`reduce(arguments.items, #acc + #) == 79800 and 5 in 1..10 and (1..3)[0:2] == [1, 2]`,
		`run == "r1" ? true : false`,
		`date("2024-01-02").Year() == 2024`,
	} {
		yes, err := evaluate(t, expr, arguments)
		require.NoError(t, err, expr)
		require.True(t, yes, expr)
	}
}

// Mistakes are found in the expression as it is written.
func TestMistakesAreFoundInTheExpressionItself(t *testing.T) {
	check := func(text string) error {
		return approval.New().Check(&events.Approval{Policy: events.ApproveExpr, Expr: text})
	}
	require.ErrorContains(t, check("tool + 1 == 2"), "mismatched types string and int")
	require.ErrorContains(t, check(`tool matches "("`), "missing closing")
	require.ErrorContains(t, check("true and pay!(1, 2)"), "pay")
	require.ErrorContains(t, check(`let p = $env["pay!"]; all(arguments.n, all(arguments.n, p(true, -1000000)))`), "$env is not available")
	require.ErrorContains(t, check(`let g = get($env, "grow!"); g("timezone", "Europe/Berlin") != nil`), "$env is not available")
	require.ErrorContains(t, check("true or "+strings.Repeat("true or ", 2000)+"true"), "at most 8192 are allowed")
}
