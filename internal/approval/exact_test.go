package approval_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// asks reports whether a call with these arguments waits for a human. What cannot be evaluated
// waits.
func asks(expr, arguments string) bool {
	_, required, err := approval.New().Required(&events.Approval{Policy: events.ApproveExpr, Expr: expr},
		events.Call{Name: "pay", Arguments: arguments}, reducer.ToolInfo{Risk: "low"}, "r1")
	return required || err != nil
}

// A call that differs from those that a policy lets through waits.
func TestGuardsDoNotFailOpen(t *testing.T) {
	const above, sum = `(arguments?.amount ?? 0) > 100`, `sum(arguments.items, .price) > 100`
	for _, c := range []struct{ expr, arguments string }{
		{above, `{"amount":1e999}`},
		{above, `{"amount":1` + strings.Repeat("0", 300) + `}`},
		{above, `{"amount":100.00000000000000000001}`},
		{above, `{"amount":1,"AMOUNT":1000}`},
		{above, `{"amount":1,"amount":1000}`},
		{above, `{"AMOUNT":1000}`},
		{`"amount" in arguments and arguments["amount"] > 100`, `{"Amount":1000}`},
		{`any(arguments.items, .price > 100)`, `{"items":[{"Price":1000}]}`},
		{`(arguments["am" + "ount"] ?? 0) > 100`, `{"AMOUNT":1000}`},
		{`(arguments?.["am" + "ount"] ?? 0) > 100`, `{"AMOUNT":1000}`},
		{`let k = lower(tool); (arguments[k] ?? 0) > 100`, `{"PAY":1000}`},
		{`(get(arguments, "am" + "ount") ?? 0) > 100`, `{"AMOUNT":1000}`},
		{`(arguments | get(arguments.key) ?? 0) > 100`, `{"key":"amount","AMOUNT":1000}`},
		{`("am" + "ount") in arguments and arguments["am" + "ount"] > 100`, `{"AMOUNT":1000}`},
		{`lower(arguments.key) in arguments`, `{"key":"amount","AMOUNT":1000}`},
		{`any(arguments.items, (#["pri" + "ce"] ?? 0) > 100)`, `{"items":[{"price":1},{"Price":1000}]}`},
		{`any(arguments.items, (#[arguments.key] ?? 0) > 100)`, `{"key":"price","items":[{"PRICE":1},{"Price":1000}]}`},
		{`arguments == {("am" + "ount"): 1000}`, `{"AMOUNT":1000}`},
		{`(fromJSON(arguments.text).amount ?? 0) > 100`, `{"text":"{\"AMOUNT\":1000}"}`},
		{`(fromJSON(arguments.text)["am" + "ount"] ?? 0) > 100`, `{"text":"{\"AMOUNT\":1000}"}`},
		{above, `{"amount":1}{"amount":1000}`},
		{above, `{"amount":1} x`},
		{above, `{"amount":"1"}`},
		{above, "{\"amount\":1,\"\u212Aey\":1,\"key\":2}"},
		{`arguments.id not in [9007199254740992]`, `{"id":9007199254740993}`},
		{`arguments.id != 9007199254740992`, `{"id":9007199254740993}`},
		{`not (arguments.ids == [9007199254740992])`, `{"ids":[9007199254740993]}`},
		{`arguments.amount * 100 > 1000`, `{"amount":92233720368547759}`},
		{`arguments.amount * arguments.amount > 1000`, `{"amount":4611686018427387904}`},
		{`arguments.amount + 1 > 1000`, `{"amount":9223372036854775807}`},
		{`int(arguments.amount) > 100`, `{"amount":1e300}`},
		{`int(arguments.amount) > 100`, `{"amount":"1e300"}`},
		{`float(arguments.id) != 9007199254740992`, `{"id":"9007199254740993"}`},
		{`fromJSON(arguments.text).amount > 100`, `{"text":"{\"amount\":1e999}"}`},
		{`fromJSON(arguments.text).amount > 100`, `{"text":"{\"amount\":1,\"Amount\":101}"}`},
		{sum, `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"price":9007199254740992},`, 1025), ",") + `]}`},
		{`sum(arguments.items) >= 1`, `{"items":[0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1]}`},
		{`reduce(arguments.items, #acc + #) >= 1`, `{"items":[0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1]}`},
		{`100 / arguments.n < 5`, `{"n":0}`},
		{`-arguments.amount < -100`, `{"amount":1e300}`},
		{`max(arguments.amount, 1) > 100`, `{"amount":1e300}`},
		{`len(arguments.text) > 3`, `{"text":90071992547409931234}`},
		{`string(arguments.id) == "90071992547409931234"`, `{"id":90071992547409931234}`},
		{`toJSON(arguments.id) == "90071992547409931234"`, `{"id":90071992547409931234}`},
		{`arguments.amount ** 2 > 100`, `{"amount":1e200}`},
	} {
		require.True(t, asks(c.expr, c.arguments), "%s with %.80s", c.expr, c.arguments)
	}
	for _, c := range []struct{ expr, arguments string }{
		{above, `{"amount":100}`}, {above, `{"amount":1e2}`}, {above, `{}`}, {above, ``}, {above, `{"amount":100.00}`}, {above, `{"amount":-1e300}`},
		{`arguments.id not in [9007199254740993]`, `{"id":9007199254740993}`},
		{`arguments.id != 36028797018963969`, `{"id":36028797018963969}`},
		{`arguments.price * 100 != 1995`, `{"price":19.95}`},
		{`sum(arguments.items) != 0.3`, `{"items":[0.1,0.2]}`},
		{`arguments.n / 4 != 2.5 or arguments.n % 4 != 2 or arguments.n ** 2 != 100`, `{"n":10}`},
		{`arguments.a != arguments.b`, `{"a":{"x":[1,2.50]},"b":{"x":[1.0,2.5]}}`},
		{`int(arguments.n) != 3 or int("12") != 12 or float("0.5") != 0.5`, `{"n":3.7}`},
		{`tool + "x" != "payx"`, `{}`},
		{`(arguments.amount ?? arguments.Amount) > 100`, `{"Amount":7}`},
		{`(arguments["am" + "ount"] ?? 0) > 100`, `{"amount":7}`},
		{`(arguments?.["am" + "ount"] ?? 0) > 100`, `{"other":1000}`},
		{`(get(arguments, "am" + "ount") ?? 0) > 100`, `{"amount":7}`},
		{`arguments.items[arguments.i] > 100 or arguments.items[-1] > 100`, `{"items":[101,7,8],"i":1}`},
		{`arguments.id in ["a", "b"] or lower(arguments.id) in ["a", "b"]`, `{"id":"ID"}`},
		{`lower(arguments.id) in arguments`, `{"id":"X"}`},
		{`arguments == {("am" + "ount"): 1000}`, `{"amount":7}`},
	} {
		_, required, err := approval.New().Required(&events.Approval{Policy: events.ApproveExpr, Expr: c.expr},
			events.Call{Name: "pay", Arguments: c.arguments}, reducer.ToolInfo{Risk: "low"}, "r1")
		require.NoError(t, err, c.expr)
		require.False(t, required, c.expr)
	}
	for _, text := range []string{`arguments.id == 9007199254740993.5`, `arguments.id == 1e400`} {
		require.Error(t, approval.New().Check(&events.Approval{Policy: events.ApproveExpr, Expr: text}), text)
	}
}

// FuzzNumbers: two numbers with different values never look equal, and never in the wrong order.
func FuzzNumbers(f *testing.F) {
	for _, pair := range [][2]string{{"1", "1.0"}, {"9007199254740992", "9007199254740993"}, {"1e400", "1e401"}, {"0.1", "0.10000000000000001"}, {"-0", "0"}, {"1e-300", "2e-300"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if !json.Valid([]byte(a)) || !json.Valid([]byte(b)) || len(a) > 60 || len(b) > 60 {
			return
		}
		small := func(text string) bool { // else the oracle takes all memory
			_, exponent, found := strings.Cut(strings.ToLower(text), "e")
			return !found || len(strings.TrimLeft(exponent, "+-0")) <= 3
		}
		x, xIs := new(big.Rat).SetString(a)
		y, yIs := new(big.Rat).SetString(b)
		if !xIs || !yIs || !small(a) || !small(b) {
			return
		}
		arguments := fmt.Sprintf(`{"a":%s,"b":%s}`, a, b)
		if order := x.Cmp(y); order != 0 {
			require.True(t, asks(`arguments.a != arguments.b`, arguments))
			if order > 0 {
				require.True(t, asks(`arguments.a > arguments.b`, arguments))
			}
		}
	})
}
