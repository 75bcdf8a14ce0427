package builtin

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/apd/v3"
)

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
