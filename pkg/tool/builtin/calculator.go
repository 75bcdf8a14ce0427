package builtin

import (
	"context"

	"github.com/moorebus/moorebus/pkg/tool"
)

const calculatorDescription = "Evaluates an arithmetic expression exactly, in decimal. " +
	"Operators + - * / ^ (power) and parentheses; functions sqrt(x), abs(x), floor(x), ceil(x), round(x, digits), " +
	"min(a, b, ...), max(a, b, ...). 17.5% is 0.175, except that a % b is the remainder of a / b. " +
	"Numbers may have digit groups (2,340) outside of function arguments and exponents (1e3)."

const calculatorSchema = `{"type":"object","properties":{"expression":{"type":"string",` +
	`"description":"The expression, for example 17.5% * 2,340 + 12","minLength":1,"maxLength":4096}},` +
	`"required":["expression"],"additionalProperties":false}`

// calculator evaluates expressions; it runs no code.
type calculator struct{ def tool.Definition }

func newCalculator() *calculator {
	return &calculator{definition(Calculator, calculatorDescription, calculatorSchema)}
}

// Definition returns the tool's definition.
func (c *calculator) Definition() tool.Definition { return c.def }

// Run evaluates {"expression"} and returns the number as text. Its time is
// bounded by the bounds on the expression alone.
func (c *calculator) Run(ctx context.Context, call tool.Call) (string, error) {
	expression, err := expressionOf(call.Arguments)
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	result, err := evaluate(expression)
	if err != nil {
		return "", tool.Failf(tool.CodeFailed, "%v", err)
	}
	return result, nil
}

func expressionOf(arguments string) (string, error) {
	if text, ok := soleText(arguments, "expression"); ok {
		return text, nil
	}
	var in struct {
		Expression string `json:"expression"`
	}
	err := decode(arguments, &in)
	return in.Expression, err
}
