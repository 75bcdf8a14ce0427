package builtin

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cockroachdb/apd/v3"
)

// Bounds on an expression; with those on exponents they bound the time that it
// can take.
const (
	maxExpression = 4096 // bytes
	maxNesting    = 100
)

// evaluate computes an arithmetic expression exactly in decimal and returns the
// number with at most 34 significant digits, without trailing zeros, in plain
// notation; from 1e34 upwards (and below 1e-34) as 1.5e+40.
//
//	expression = term { ("+" | "-") term }
//	term       = unary { ("*" | "/" | "%" | "of") unary }
//	unary      = { "+" | "-" } power
//	power      = postfix [ ("^" | "**") unary ]        (from right to left)
//	postfix    = primary { "%" }
//	primary    = number | "(" expression ")" | name "(" expression { "," expression } ")"
//
// A "%" is the remainder where an operand follows (a number, a name but "of", or
// an opening parenthesis), and divides by 100 everywhere else: `10 % 4` is 2,
// `10% + 4` and `10% - 4` have a percentage; write `10 % (-4)` for the remainder
// by a negative number. The remainder has the sign of the dividend. Commas group
// digits (2,340) except among the arguments of a function, where they separate.
// The signs × ÷ − are read as * / -.
func evaluate(expression string) (string, error) {
	if len(expression) > maxExpression {
		return "", fmt.Errorf("the expression has %d bytes, more than the %d allowed; compute it in parts",
			len(expression), maxExpression)
	}
	p := &parser{text: expression}
	if p.peek() == "" {
		return "", errors.New("the expression is empty")
	}
	v, err := p.expression()
	if err != nil {
		return "", err
	}
	if t := p.peek(); t != "" {
		return "", p.unexpected(t)
	}
	return format(v)
}

// parser evaluates while it reads: there is no tree to keep.
type parser struct {
	text  string
	pos   int // in bytes
	depth int
	// inArgs is true where a comma separates arguments.
	inArgs bool
}

// enter counts one level of nesting; every recursion passes through it.
func (p *parser) enter() error {
	p.depth++
	if p.depth > maxNesting {
		return fmt.Errorf("the expression is nested more than %d deep", maxNesting)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// peek returns the next token, "" at the end, without taking it: an entire name, a
// "digit" as the sign of a number, or one sign in its ASCII form.
func (p *parser) peek() string {
	p.pos += len(p.text[p.pos:]) - len(strings.TrimLeftFunc(p.text[p.pos:], unicode.IsSpace))
	rest := p.text[p.pos:]
	if rest == "" {
		return ""
	}
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case isDigit(rest[0]) || rest[0] == '.':
		return tokenNumber
	case isLetter(rest[0]):
		return rest[:len(rest)-len(strings.TrimLeftFunc(rest, isNameRune))]
	case strings.HasPrefix(rest, "**"):
		return "**"
	case r == '×' || r == '·':
		return "*"
	case r == '÷':
		return "/"
	case r == '−':
		return "-"
	}
	return rest[:size]
}

// tokenNumber stands for any number in what peek returns.
const tokenNumber = "0"

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func isNameRune(r rune) bool {
	return r < utf8.RuneSelf && (isLetter(byte(r)) || isDigit(byte(r)) || r == '_')
}

// skip moves behind the token that peek returned last. Signs that peek
// translates are longer than what it gives for them.
func (p *parser) skip(token string) {
	if isLetter(token[0]) || token == "**" {
		p.pos += len(token)
		return
	}
	_, size := utf8.DecodeRuneInString(p.text[p.pos:])
	p.pos += size
}

func (p *parser) unexpected(token string) error {
	if token == "" {
		return errors.New("the expression ends too early")
	}
	if token == tokenNumber {
		token = p.text[p.pos : p.pos+1]
	}
	hint := ""
	if token == "," && p.inArgs {
		hint = " (among the arguments of a function a comma separates: write 2340, not 2,340)"
	}
	return fmt.Errorf("unexpected %q at byte %d%s", token, p.pos, hint)
}

func (p *parser) expression() (*apd.Decimal, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	left, err := p.term()
	for err == nil {
		op := p.peek()
		if op != "+" && op != "-" {
			return left, nil
		}
		p.skip(op)
		var right *apd.Decimal
		if right, err = p.term(); err == nil {
			left, err = binary(op, left, right)
		}
	}
	return nil, err
}

func (p *parser) term() (*apd.Decimal, error) {
	left, err := p.unary()
	for err == nil {
		op := p.peek()
		if op != "*" && op != "/" && op != "%" && op != "of" {
			return left, nil
		}
		p.skip(op)
		var right *apd.Decimal
		if right, err = p.unary(); err == nil {
			left, err = binary(op, left, right)
		}
	}
	return nil, err
}

func (p *parser) unary() (*apd.Decimal, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	op := p.peek()
	if op != "+" && op != "-" {
		return p.power()
	}
	p.skip(op)
	v, err := p.unary()
	if err != nil || op == "+" {
		return v, err
	}
	return new(apd.Decimal).Neg(v), nil
}

func (p *parser) power() (*apd.Decimal, error) {
	base, err := p.postfix()
	if err != nil {
		return nil, err
	}
	op := p.peek()
	if op != "^" && op != "**" {
		return base, nil
	}
	p.skip(op)
	exponent, err := p.unary()
	if err != nil {
		return nil, err
	}
	return power(base, exponent)
}

func (p *parser) postfix() (*apd.Decimal, error) {
	v, err := p.primary()
	for err == nil && p.peek() == "%" && !p.isRemainder() {
		p.skip("%")
		v, err = binary("/", v, hundred)
	}
	return v, err
}

// isRemainder tells whether an operand follows the "%" at hand.
func (p *parser) isRemainder() bool {
	next := &parser{text: p.text, pos: p.pos + 1}
	token := next.peek()
	return token == tokenNumber || token == "(" || token != "" && token != "of" && isLetter(token[0])
}

func (p *parser) primary() (*apd.Decimal, error) {
	token := p.peek()
	switch {
	case token == tokenNumber:
		return p.number()
	case token == "(":
		p.skip(token)
		values, err := p.closed(false)
		if err != nil {
			return nil, err
		}
		return values[0], nil
	case token != "" && token != "of" && isLetter(token[0]):
		return p.function(token)
	}
	return nil, p.unexpected(token)
}

// closed reads expressions up to the closing parenthesis, several only as
// arguments of a function.
func (p *parser) closed(args bool) ([]*apd.Decimal, error) {
	outer := p.inArgs
	p.inArgs = args
	defer func() { p.inArgs = outer }()
	var values []*apd.Decimal
	for {
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		values = append(values, v)
		token := p.peek()
		if token == ")" {
			p.skip(token)
			return values, nil
		}
		if token == "" {
			return nil, errors.New("a closing parenthesis is missing")
		}
		if token != "," || !args {
			return nil, p.unexpected(token)
		}
		p.skip(token)
	}
}

func (p *parser) function(name string) (*apd.Decimal, error) {
	fn, ok := functions[strings.ToLower(name)]
	if !ok {
		return nil, fmt.Errorf("unknown name %q at byte %d; there are the functions %s", name, p.pos, functionNames)
	}
	p.skip(name)
	if token := p.peek(); token != "(" {
		return nil, fmt.Errorf("%s needs its argument in parentheses", name)
	}
	p.skip("(")
	args, err := p.closed(true)
	if err != nil {
		return nil, err
	}
	if len(args) < fn.min || len(args) > fn.max {
		return nil, fmt.Errorf("%s does not take %d arguments (among arguments a comma separates: write 2340, not 2,340)",
			name, len(args))
	}
	return fn.apply(args)
}
