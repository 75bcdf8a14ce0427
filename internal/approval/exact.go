package approval

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser/lexer"
	"github.com/expr-lang/expr/vm/runtime"

	"github.com/moorebus/moorebus/internal/agentfile/strict"
)

// Two numbers that differ must not look equal to an expression, and no sum may overflow. So
// numbers are ints and floats only where these are exact, and a [large] otherwise. The compiler
// rewrites operators, [adding] and [reading] into calls that compute with decimals (package apd)
// where an operand is large or the result may be. Everything else that meets a large number is an
// error.

// large is a number that neither an int within ±2^53 nor a float says exactly: its decimal text,
// the same for equal numbers.
type large struct{ text string }

// String returns the number, for the function string.
func (l large) String() string { return l.text }

// MarshalJSON returns the number, for the function toJSON.
func (l large) MarshalJSON() ([]byte, error) { return []byte(l.text), nil }

const (
	// mostExact is the bound of the integers that every float says exactly.
	mostExact = 1 << 53
	// maxDigits and maxExponent bound a number.
	maxDigits, maxExponent = 400, 400
	// quotientDigits is the precision of a division that does not come out even.
	quotientDigits = 50
)

// The functions that the rewritten expression calls.
const (
	computeName = "compute!"
	sumName     = "sum!"
	readName    = "read!"
	lookName    = "look!"
)

// computed are the operators on numbers.
var computed = []string{"==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "**", "^", "in"}

// reading are the functions that make numbers of texts.
var reading = []string{"int", "float", "fromJSON"}

func mayBeNumber(n ast.Node) bool {
	switch n.(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.StringNode:
		return false
	}
	switch n.Type().Kind() {
	case reflect.Bool, reflect.String:
		return false
	}
	return true
}

// compute is an operator. It panics where the operands are none for it, or the result is not exact.
func (m *meter) compute(args ...any) any {
	op, _ := args[0].(string)
	a, b := args[1], args[2]
	switch op {
	case "==":
		return m.equal(a, b)
	case "!=":
		return !m.equal(a, b)
	case "in":
		return m.in(a, b)
	}
	x, y := decimal(a), decimal(b)
	if x == nil || y == nil {
		return otherwise(op, a, b)
	}
	m.spend(4 + (len(x.Coeff.Bits())+len(y.Coeff.Bits()))*2)
	if strings.ContainsAny(op, "<>") {
		order := x.Cmp(y)
		return order < 0 && op[0] == '<' || order > 0 && op[0] == '>' || order == 0 && len(op) == 2
	}
	return arithmetic(op, x, y)
}

// otherwise is an operator on what are not two numbers.
func otherwise(op string, a, b any) any {
	switch op {
	case "<":
		return runtime.Less(a, b)
	case "<=":
		return runtime.LessOrEqual(a, b)
	case ">":
		return runtime.More(a, b)
	case ">=":
		return runtime.MoreOrEqual(a, b)
	case "+":
		return runtime.Add(a, b)
	case "-":
		return runtime.Subtract(a, b)
	case "*":
		return runtime.Multiply(a, b)
	}
	panic(fmt.Errorf("%T %s %T is not possible", a, op, b))
}

// exactContext is exact for every sum and product of numbers within the bounds.
var exactContext = apd.BaseContext.WithPrecision(4 * (maxDigits + maxExponent))

func arithmetic(op string, x, y *apd.Decimal) any {
	var d apd.Decimal
	var condition apd.Condition
	var err error
	switch op {
	case "+":
		condition, err = exactContext.Add(&d, x, y)
	case "-":
		condition, err = exactContext.Sub(&d, x, y)
	case "*":
		condition, err = exactContext.Mul(&d, x, y)
	case "/":
		_, err = apd.BaseContext.WithPrecision(quotientDigits).Quo(&d, x, y)
		if err == nil && !fits(&d) {
			err = errInexact
		}
	case "%":
		condition, err = exactContext.Rem(&d, x, y)
	default:
		condition, err = power(&d, x, y)
	}
	if err == nil && condition.Inexact() {
		err = errInexact
	}
	if err != nil {
		panic(err)
	}
	v, err := numberOf(&d)
	if err != nil {
		panic(err)
	}
	return v
}

// power raises to whole powers. Others are not exact.
func power(d, x, y *apd.Decimal) (apd.Condition, error) {
	n, err := y.Int64()
	if err != nil || n < 0 || n > maxDigits {
		return 0, errInexact
	}
	d.SetInt64(1)
	for range n {
		if condition, err := exactContext.Mul(d, d, x); err != nil || condition.Inexact() || !fits(d) {
			return condition, errInexact
		}
	}
	return 0, nil
}

var errInexact = errors.New("a number is too large or too long to be computed with")

func fits(d *apd.Decimal) bool {
	return d.Form == apd.Finite && d.NumDigits() <= maxDigits && max(d.Exponent, -d.Exponent) <= maxExponent
}

// equal compares what an expression computes with. Numbers are equal if their values are, in
// lists and maps too.
func (m *meter) equal(a, b any) bool {
	m.spend(1)
	x, y := decimal(a), decimal(b)
	if x != nil && y != nil {
		m.spend(len(x.Coeff.Bits()) + len(y.Coeff.Bits()))
		return x.Cmp(y) == 0
	}
	v, w := reflect.ValueOf(a), reflect.ValueOf(b)
	switch {
	case isList(v) && isList(w):
		if v.Len() != w.Len() {
			return false
		}
		for i := range v.Len() {
			if !m.equal(v.Index(i).Interface(), w.Index(i).Interface()) {
				return false
			}
		}
		return true
	case v.Kind() == reflect.Map && w.Kind() == reflect.Map && v.Type().Key() == w.Type().Key():
		if v.Len() != w.Len() {
			return false
		}
		for pairs := v.MapRange(); pairs.Next(); {
			other := w.MapIndex(pairs.Key())
			if !other.IsValid() || !m.equal(pairs.Value().Interface(), other.Interface()) {
				return false
			}
		}
		return true
	}
	return runtime.Equal(a, b)
}

func isList(v reflect.Value) bool { return v.Kind() == reflect.Slice || v.Kind() == reflect.Array }

func (m *meter) in(needle, all any) bool {
	v := reflect.ValueOf(all)
	if !isList(v) {
		return runtime.In(m.look(needle), all)
	}
	for i := range v.Len() {
		if m.equal(needle, v.Index(i).Interface()) {
			return true
		}
	}
	return false
}

// sum adds the elements of a list.
func (m *meter) sum(args ...any) any {
	v := reflect.ValueOf(args[0])
	if !isList(v) {
		panic(fmt.Errorf("sum wants a list, not %T", args[0]))
	}
	var total any = 0
	for i := range v.Len() {
		total = m.compute("+", total, v.Index(i).Interface())
	}
	return total
}

// read is one of the functions of [reading].
func (m *meter) read(args ...any) any {
	name, _ := args[0].(string)
	text, isText := args[1].(string)
	m.weigh(args[1], 0)
	var v any
	var err error
	switch {
	case name == "fromJSON" && isText:
		v, err = m.spellings.parse(text)
	case name == "fromJSON":
		err = fmt.Errorf("fromJSON wants a text, not %T", args[1])
	case isText:
		v, err = number(strings.TrimSpace(text))
	default:
		v = args[1]
		if decimal(v) == nil {
			err = fmt.Errorf("%s wants a number, not %T", name, v)
		}
	}
	if err != nil {
		panic(err)
	}
	if name == "int" {
		v = whole(v)
	}
	return v
}

// whole cuts what is behind the point.
func whole(v any) any {
	if f, is := v.(float64); is {
		return int(f) // floats are below 2^53
	}
	if _, is := v.(large); is {
		d := decimal(v)
		if !isWhole(d) {
			panic(errInexact)
		}
	}
	return v
}

// decimal returns a number, or nil for what is none.
func decimal(v any) *apd.Decimal {
	var d *apd.Decimal
	var err error
	switch v := v.(type) {
	case int:
		return apd.New(int64(v), 0)
	case large:
		d, _, err = apd.NewFromString(v.text)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			panic(errInexact)
		}
		d, _, err = apd.NewFromString(strconv.FormatFloat(v, 'g', -1, 64))
	default:
		n := reflect.ValueOf(v)
		switch {
		case n.CanInt() && n.Type().PkgPath() == "":
			return apd.New(n.Int(), 0)
		case n.CanUint() && n.Type().PkgPath() == "":
			d, _, err = apd.NewFromString(strconv.FormatUint(n.Uint(), 10))
		case n.CanFloat():
			return decimal(n.Float())
		}
	}
	if err != nil {
		panic(err)
	}
	return d
}

// numberOf returns a number as expressions have it.
func numberOf(d *apd.Decimal) (any, error) {
	if !fits(d) {
		return nil, errInexact
	}
	reduced, _ := new(apd.Decimal).Reduce(d)
	if isWhole(reduced) {
		if n, err := reduced.Int64(); err == nil && n >= -mostExact && n <= mostExact {
			return int(n), nil
		}
		return large{reduced.Text('f')}, nil
	}
	f, err := strconv.ParseFloat(reduced.Text('g'), 64)
	if err == nil {
		if back, _, err := apd.NewFromString(strconv.FormatFloat(f, 'g', -1, 64)); err == nil && back.Cmp(reduced) == 0 && math.Abs(f) < mostExact {
			return f, nil
		}
	}
	return large{reduced.Text('f')}, nil
}

// isWhole reports whether a reduced number is an integer.
func isWhole(d *apd.Decimal) bool { return d.Exponent >= 0 || d.IsZero() }

// number reads a number.
func number(text string) (any, error) {
	if len(text) > maxDigits+maxExponent {
		return nil, fmt.Errorf("the number %.40s… is too long", text)
	}
	d, condition, err := apd.NewFromString(text)
	if err != nil || condition != 0 || !fits(d) {
		return nil, fmt.Errorf("the number %.40s is too large, too small or no number", text)
	}
	return numberOf(d)
}

// spellings are what an expression and its arguments know of keys, by their folded forms: the
// texts of the expression, and the one spelling of keys that were read, empty if there are
// several.
type spellings struct {
	texts map[string][]string
	keys  map[string]string
}

// look returns a key that an expression looks up. A key that was read and differs from it in case
// alone is an error: the expression would not find it, and a program that ignores the case would.
func (s *spellings) look(key any) any {
	if text, is := key.(string); is {
		if other, read := s.keys[folded(text)]; read && other != text {
			panic(fmt.Errorf("a key of the arguments differs from %.100q in upper and lower case only", text))
		}
	}
	return key
}

// arguments reads a call's arguments. None are nil.
func (s *spellings) arguments(text string) (any, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	v, err := s.parse(text)
	if err != nil {
		return nil, fmt.Errorf("the arguments cannot be read without doubt: %w", err)
	}
	return v, nil
}

// parse reads JSON of which every reader has the same understanding. In an object no key stands
// twice, or in upper and lower case. No key is one of the expression's texts in another case, see
// [spellings.look].
func (s *spellings) parse(text string) (any, error) {
	node, err := strict.ParseJSON([]byte(text))
	if err != nil {
		return nil, err
	}
	return s.valueOf(node)
}

func (s *spellings) valueOf(n *strict.Node) (any, error) {
	switch n.Kind {
	case strict.Null:
		return nil, nil
	case strict.Bool:
		return n.Text == "true", nil
	case strict.String:
		return n.Text, nil
	case strict.Number:
		return number(n.Text)
	case strict.Array:
		all := make([]any, len(n.Items))
		for i, item := range n.Items {
			v, err := s.valueOf(item)
			if err != nil {
				return nil, err
			}
			all[i] = v
		}
		return all, nil
	}
	all, keys := make(map[string]any, len(n.Members)), make(map[string]string, len(n.Members))
	for _, member := range n.Members {
		fold := folded(member.Key)
		other, twice := keys[fold]
		if texts := s.texts[fold]; len(texts) > 0 && !slices.Contains(texts, member.Key) {
			other, twice = texts[0], true
		}
		if twice {
			return nil, fmt.Errorf("the keys %.100q and %.100q differ in upper and lower case only", other, member.Key)
		}
		keys[fold] = member.Key
		if known, read := s.keys[fold]; !read {
			s.keys[fold] = member.Key
		} else if known != member.Key {
			s.keys[fold] = ""
		}
		v, err := s.valueOf(member.Value)
		if err != nil {
			return nil, err
		}
		all[member.Key] = v
	}
	return all, nil
}

// folded is a text without regard to case.
func folded(text string) string { return strings.ToLower(strings.ToUpper(text)) }

// checkNumbers refuses numbers of an expression that its parser would round.
func checkNumbers(text string) error {
	tokens, err := lexer.Lex(file.NewSource(text))
	if err != nil {
		return err
	}
	for _, token := range tokens {
		if token.Kind != lexer.Number {
			continue
		}
		plain := strings.ReplaceAll(token.Value, "_", "")
		if len(plain) > 1 && plain[0] == '0' && strings.ContainsAny(plain[1:2], "xXbBoO") {
			continue // an integer, which the parser reads exactly or not at all
		}
		v, err := number(plain)
		if _, is := v.(large); err != nil || is && strings.ContainsAny(plain, ".eE") {
			return fmt.Errorf("the number %s has more digits than are kept: write fewer, or an integer", token.Value)
		}
	}
	return nil
}
