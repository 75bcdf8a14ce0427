package builtin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/cockroachdb/apd/v3"

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

func (c *calculator) Definition() tool.Definition { return c.def }

// Run evaluates {"expression"} and returns the number as text. Its time is
// bounded by the bounds on the expression alone.
func (c *calculator) Run(ctx context.Context, call tool.Call) (string, error) {
	var in struct {
		Expression string `json:"expression"`
	}
	if err := decode(call.Arguments, &in); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	result, err := evaluate(in.Expression)
	if err != nil {
		return "", tool.Failf(tool.CodeFailed, "%v", err)
	}
	return result, nil
}

// function is one that an expression may call with min to max arguments.
type function struct {
	min, max int
	apply    func(args []*apd.Decimal) (*apd.Decimal, error)
}

const functionNames = "abs, ceil, floor, max, min, round, sqrt"

var functions = map[string]function{
	"abs":   {1, 1, func(a []*apd.Decimal) (*apd.Decimal, error) { return new(apd.Decimal).Abs(a[0]), nil }},
	"ceil":  {1, 1, whole(wide.Ceil)},
	"floor": {1, 1, whole(wide.Floor)},
	"max":   {1, math.MaxInt, func(a []*apd.Decimal) (*apd.Decimal, error) { return extreme(a, 1), nil }},
	"min":   {1, math.MaxInt, func(a []*apd.Decimal) (*apd.Decimal, error) { return extreme(a, -1), nil }},
	"round": {1, 2, round},
	"sqrt":  {1, 1, sqrt},
}

func whole(fn func(d, x *apd.Decimal) (apd.Condition, error)) func([]*apd.Decimal) (*apd.Decimal, error) {
	return func(args []*apd.Decimal) (*apd.Decimal, error) {
		v := new(apd.Decimal)
		cond, err := fn(v, args[0])
		return v, explain(cond, err)
	}
}

func extreme(args []*apd.Decimal, sign int) *apd.Decimal {
	v := args[0]
	for _, a := range args[1:] {
		if a.Cmp(v) == sign {
			v = a
		}
	}
	return v
}

// round is round(x) or round(x, digits); halves go away from zero, and negative
// digits round to tens, hundreds and so on.
func round(args []*apd.Decimal) (*apd.Decimal, error) {
	digits := int64(0)
	if len(args) == 2 {
		n, err := args[1].Int64()
		if err != nil || n < -maxMagnitude || n > maxMagnitude {
			return nil, errors.New("the digits of round must be an integer of reasonable size")
		}
		digits = n
	}
	x := args[0]
	if int64(x.Exponent) >= -digits {
		return x, nil
	}
	v := new(apd.Decimal)
	cond, err := wide.Quantize(v, x, int32(-digits))
	return v, explain(cond, err)
}

func sqrt(args []*apd.Decimal) (*apd.Decimal, error) {
	if args[0].Negative && !args[0].IsZero() {
		return nil, errors.New("a negative number has no real square root")
	}
	v := new(apd.Decimal)
	cond, err := arithmetic.Sqrt(v, args[0])
	return v, explain(cond, err)
}

// Results have 34 digits; what leads to them is computed with more, so that
// 1/3*3 is 1. Magnitudes beyond 1e±6144 (decimal128's) are errors, which is also
// what makes 9^9^9^9 fail at once.
const (
	resultDigits      = 34
	workingDigits     = 60
	maxMagnitude      = 6144
	maxExponentDigits = 5
)

var (
	arithmetic = apd.Context{
		Precision: workingDigits, MaxExponent: maxMagnitude, MinExponent: -maxMagnitude,
		Traps: apd.DefaultTraps | apd.Underflow | apd.Subnormal, Rounding: apd.RoundHalfUp,
	}
	// wide has every digit that a value within the magnitudes can have.
	wide = arithmetic.WithPrecision(2*maxMagnitude + workingDigits)

	hundred = apd.New(100, 0)
)

var errDivisionByZero = errors.New("division by zero")

// explain is the classifier of apd's conditions.
func explain(cond apd.Condition, err error) error {
	switch {
	case err == nil:
		return nil
	case cond.DivisionByZero():
		return errDivisionByZero
	case cond.Overflow():
		return fmt.Errorf("the result is too large (beyond 1e%d)", maxMagnitude)
	case cond.Underflow() || cond.Subnormal():
		return fmt.Errorf("the result is too close to zero (below 1e-%d)", maxMagnitude)
	case cond.DivisionUndefined():
		return errors.New("0 / 0 is undefined")
	case cond.DivisionImpossible():
		return errors.New("the operands of % are too far apart")
	case cond.InvalidOperation():
		return errors.New("the operation is not defined for these numbers")
	}
	return fmt.Errorf("cannot compute this: %w", err)
}

func binary(op string, a, b *apd.Decimal) (*apd.Decimal, error) {
	v := new(apd.Decimal)
	var cond apd.Condition
	var err error
	switch op {
	case "+":
		cond, err = arithmetic.Add(v, a, b)
	case "-":
		cond, err = arithmetic.Sub(v, a, b)
	case "*", "of":
		cond, err = arithmetic.Mul(v, a, b)
	case "/":
		cond, err = arithmetic.Quo(v, a, b)
	case "%":
		if b.IsZero() {
			return nil, errDivisionByZero
		}
		cond, err = wide.Rem(v, a, b)
	}
	if err != nil {
		return nil, explain(cond, err)
	}
	return v, nil
}

// power computes a^b. Whether the result is within the magnitudes is estimated
// first: the exact way there could be long.
func power(a, b *apd.Decimal) (*apd.Decimal, error) {
	whole := isWhole(b)
	switch {
	case a.IsZero() && b.Negative:
		return nil, errDivisionByZero
	case a.IsZero() && b.IsZero():
		return nil, errors.New("0 ^ 0 is undefined")
	case a.Negative && !whole:
		return nil, errors.New("a negative number has no real power with a fractional exponent")
	}
	if err := checkMagnitude(a, b); err != nil {
		return nil, err
	}
	v := new(apd.Decimal)
	cond, err := arithmetic.Pow(v, a, b)
	if err != nil {
		return nil, explain(cond, err)
	}
	return v, nil
}

func isWhole(d *apd.Decimal) bool {
	r := new(apd.Decimal)
	r.Reduce(d)
	return r.Exponent >= 0
}

// checkMagnitude estimates log10(|a|^b) in floating point, with room for error.
func checkMagnitude(a, b *apd.Decimal) error {
	if a.IsZero() {
		return nil
	}
	y, err := b.Float64()
	if err != nil {
		y = math.Inf(1)
	}
	lead := new(apd.Decimal).Abs(a)
	scale := lead.NumDigits() - 1
	x := math.Log10(leading(lead)) + float64(scale+int64(lead.Exponent))
	if estimate := x * y; estimate > maxMagnitude+1 {
		return explain(apd.Overflow, errTooFar)
	} else if estimate < -maxMagnitude-1 {
		return explain(apd.Underflow, errTooFar)
	}
	if math.Abs(y) > 1e6 && x != 0 {
		return errors.New("the exponent is too large (beyond 1000000)")
	}
	return nil
}

var errTooFar = errors.New("magnitude out of range")

// leading returns d's digits as a number of 1 up to 10.
func leading(d *apd.Decimal) float64 {
	m := new(apd.Decimal).Set(d)
	m.Exponent = -int32(d.NumDigits() - 1)
	f, err := m.Float64()
	if err != nil {
		return 1
	}
	return f
}

// format rounds v to the digits of a result and prints it.
func format(v *apd.Decimal) (string, error) {
	out := new(apd.Decimal)
	if cond, err := arithmetic.WithPrecision(resultDigits).Round(out, v); err != nil {
		return "", explain(cond, err)
	}
	out.Reduce(out)
	if out.IsZero() {
		return "0", nil
	}
	if magnitude := out.NumDigits() - 1 + int64(out.Exponent); magnitude >= resultDigits || magnitude < -resultDigits {
		return strings.ToLower(out.Text('E')), nil
	}
	return out.Text('f'), nil
}

// number reads digits with an optional fraction and exponent; outside of
// function arguments the integer part may have digit groups.
func (p *parser) number() (*apd.Decimal, error) {
	start := p.pos
	digits, err := p.integer()
	if err != nil {
		return nil, err
	}
	if p.at(0) == '.' {
		p.pos++
		digits += "." + p.digits()
	}
	if digits == "." {
		return nil, fmt.Errorf("unexpected \".\" at byte %d", start)
	}
	exponent, err := p.exponent()
	if err != nil {
		return nil, err
	}
	if c := p.at(0); c == '.' || isLetter(c) || c == '_' {
		return nil, fmt.Errorf("malformed number %q at byte %d", p.text[start:p.pos+1], start)
	}
	exact, _, err := apd.NewFromString(digits + exponent)
	if err != nil {
		return nil, fmt.Errorf("the number at byte %d is out of range", start)
	}
	v := new(apd.Decimal)
	cond, err := arithmetic.Round(v, exact)
	return v, explain(cond, err)
}

// at returns the byte that far ahead, 0 behind the end.
func (p *parser) at(ahead int) byte {
	if p.pos+ahead >= len(p.text) {
		return 0
	}
	return p.text[p.pos+ahead]
}

func (p *parser) digits() string {
	start := p.pos
	for isDigit(p.at(0)) {
		p.pos++
	}
	return p.text[start:p.pos]
}

func (p *parser) integer() (string, error) {
	start := p.pos
	whole := p.digits()
	if p.inArgs || p.at(0) != ',' || whole == "" {
		return whole, nil
	}
	if len(whole) > 3 {
		return "", fmt.Errorf("misplaced comma at byte %d: groups have three digits", p.pos)
	}
	for p.at(0) == ',' {
		p.pos++
		group := p.digits()
		if len(group) != 3 {
			return "", fmt.Errorf("misplaced comma in the number at byte %d: groups have three digits", start)
		}
		whole += group
	}
	return whole, nil
}

// exponent reads an exponent; an "e" without digits belongs to what follows.
func (p *parser) exponent() (string, error) {
	if p.at(0)|0x20 != 'e' {
		return "", nil
	}
	ahead := 1
	if p.at(1) == '+' || p.at(1) == '-' {
		ahead = 2
	}
	if !isDigit(p.at(ahead)) {
		return "", nil
	}
	start := p.pos
	p.pos += ahead
	if digits := strings.TrimLeft(p.digits(), "0"); len(digits) > maxExponentDigits {
		return "", fmt.Errorf("the exponent of the number at byte %d is too large", start)
	}
	return p.text[start:p.pos], nil
}
