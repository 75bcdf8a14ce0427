package schema

import (
	"fmt"
	"regexp"
	expr "regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxPattern is the length of a pattern in bytes. maxProgram is the length of its program in
// instructions, maxPrograms that of all programs of a schema.
const maxPattern, maxProgram, maxPrograms = 4 << 10, 20_000, 100_000

// patterns are the compiled patterns of a schema, RE2 expressions all.
type patterns struct {
	known map[string]*pattern
	size  int
}

// pattern pays for its matches.
type pattern struct {
	*regexp.Regexp
	budget *budget
	size   int
}

// MatchString reports whether the text matches, for the text times the program.
func (p *pattern) MatchString(text string) bool {
	p.budget.spend(1 + (1+len(text))*p.size/16)
	return p.Regexp.MatchString(text)
}

// compilePattern is the library's engine.
func (b *budget) compilePattern(text string) (jsonschema.Regexp, error) {
	if p := b.patterns.known[text]; p != nil {
		return p, nil
	}
	if len(text) > maxPattern {
		return nil, fmt.Errorf("a pattern has at most %d bytes", maxPattern)
	}
	parsed, err := expr.Parse(text, expr.Perl)
	if err != nil {
		return nil, err
	}
	p := &pattern{budget: b, size: instructions(parsed)}
	if b.patterns.size += p.size; p.size > maxProgram || b.patterns.size > maxPrograms {
		return nil, fmt.Errorf("the pattern is too long when it is written out: its repetitions and classes come to more than %d instructions, or those of all patterns to more than %d", maxProgram, maxPrograms)
	}
	if p.Regexp, err = regexp.Compile(text); err != nil {
		return nil, err
	}
	if b.patterns.known == nil {
		b.patterns.known = map[string]*pattern{}
	}
	b.patterns.known[text] = p
	return p, nil
}

// instructions returns about how long the program of an expression is. It is not compiled for
// that: a short one with repetitions can take 100 MB.
func instructions(re *expr.Regexp) int {
	n := 1 + len(re.Rune)
	if re.Op == expr.OpCharClass {
		n = 1 + len(re.Rune)/8
	}
	for _, sub := range re.Sub {
		n += 1 + instructions(sub)
	}
	if re.Op == expr.OpRepeat {
		n *= max(re.Min+1, re.Max)
	}
	return n
}
