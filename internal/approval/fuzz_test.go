package approval_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// FuzzExpression: an expression of an agent's file, and arguments of a model, end in a decision or an
// error, in bounded time and the same each time. An expression and its negation never both let a
// call through, and nothing lets through arguments that are no JSON.
func FuzzExpression(f *testing.F) {
	for _, pair := range [][2]string{
		{`risk != "low" or arguments.amount > 100`, `{"amount":100.5}`}, {`arguments.amount > 100`, `{"amount":1e400}`}, {`arguments.a.b.c == nil`, `{"a":{"B":1}}`},
		{`tool matches "^p(a+)+$"`, `{}`}, {`any(arguments.items, # > 3) and sum(arguments.items) < 5.5`, `{"items":[1,2.5,"x"]}`}, {`len(repeat("x", 1000000)) > 3`, ``},
		{`let x = arguments?.id; x in ["a", "b"] or x startsWith run`, `{"id":"a"}`}, {`arguments.n ** 1000 > 2`, `{"n":10}`}, {`map(1..1000, map(1..1000, # + 1)) == []`, `null`},
		{`fromJSON(arguments.x).y > 3`, `{"x":"{\"y\":4}"}`}, {`arguments["am" + "ount"] == 1`, `{"amount":1,"Amount":2}`}, {`date("2026-01-01") > now()`, `{}`}, {`$env.tool == "pay"`, `{}`},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, text, arguments string) {
		asks := func(text string) (bool, error) {
			began := time.Now()
			_, required, err := approval.New().Required(&events.Approval{Policy: events.ApproveExpr, Expr: text},
				events.Call{Name: "pay", Arguments: arguments}, reducer.ToolInfo{Risk: "low"}, "r1")
			require.Less(t, time.Since(began), 10*time.Second)
			require.False(t, required && err != nil)
			return required, err
		}
		required, err := asks(text)
		if strings.TrimSpace(arguments) != "" && !json.Valid([]byte(arguments)) {
			require.Error(t, err)
		}
		again, errAgain := asks(text)
		require.Equal(t, required, again)
		require.Equal(t, err == nil, errAgain == nil)
		opposite, errOpposite := asks("not (" + text + "\n)")
		if err == nil && errOpposite == nil {
			require.NotEqual(t, required, opposite)
		}
	})
}
