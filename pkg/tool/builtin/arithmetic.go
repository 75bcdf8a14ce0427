package builtin

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/cockroachdb/apd/v3"
)

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
	// wide has room for every digit that a value within the magnitudes can have.
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
