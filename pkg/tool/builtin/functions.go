package builtin

import (
	"errors"
	"math"

	"github.com/cockroachdb/apd/v3"
)

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
			return nil, errors.New("the digits of round must be a whole number of reasonable size")
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
