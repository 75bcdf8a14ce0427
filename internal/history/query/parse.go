package query

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/history/words"
)

// Parse reads a query. Times such as 24h are before now. An error is a *BadError.
func Parse(text string, now time.Time) (Query, error) {
	var q Query
	bad := func(at int, err error) (Query, error) {
		return Query{}, &BadError{At: utf8.RuneCountInString(text[:at]), Message: err.Error(), Fields: Fields()}
	}
	if len(text) > MaxBytes {
		return bad(0, fmt.Errorf("the query has more than %d bytes", MaxBytes))
	}
	for at := 0; ; {
		at += len(text[at:]) - len(strings.TrimLeftFunc(text[at:], unicode.IsSpace))
		if at == len(text) {
			return q, nil
		}
		chars, end, err := cut(text, at)
		if err != nil {
			return bad(at, err)
		}
		if len(q.Terms) == MaxTerms {
			return bad(at, fmt.Errorf("the query has more than %d terms", MaxTerms))
		}
		term, err := parseTerm(chars, now)
		if err != nil {
			return bad(at, err)
		}
		term.At = utf8.RuneCountInString(text[:at])
		q.Terms = append(q.Terms, term)
		at = end
	}
}

// Prefixes returns terms that ask for each word of a text as the beginning of a word, in any text.
func Prefixes(text string) []Term {
	var terms []Term
	for w := range words.Of(text) {
		terms = append(terms, Term{Op: Is, Values: []Value{{Text: w, Words: []string{w}, Prefix: true}}})
	}
	return terms
}

// char is a character of a term. Quoted ones, and quotes, which are empty, have no meaning of their own.
type char struct {
	text   string
	quoted bool
}

// cut returns the characters of the term that begins at a byte, and where it ends.
func cut(text string, at int) (term []char, end int, err error) {
	quoted := false
	for at < len(text) {
		r, size := utf8.DecodeRuneInString(text[at:])
		c := char{text[at : at+size], quoted}
		switch {
		case r == '"':
			quoted, c = !quoted, char{"", true}
		case quoted && (strings.HasPrefix(text[at:], `\"`) || strings.HasPrefix(text[at:], `\\`)):
			at++
			c.text = text[at : at+size]
		case !quoted && unicode.IsSpace(r):
			return term, at, nil
		}
		term, at = append(term, c), at+size
	}
	if quoted {
		err = fmt.Errorf("the quote is not closed")
	}
	return term, at, err
}

// plain returns the characters of a term up to the first quoted one.
func plain(chars []char) string {
	var b strings.Builder
	for _, c := range chars {
		if c.quoted {
			break
		}
		b.WriteString(c.text)
	}
	return b.String()
}

// named is a term that begins with a name and a comparison.
var named = regexp.MustCompile(`^([\pL_][\pL\pM\pN_.-]*)(:|>=|<=|>|<|=)`)

func parseTerm(chars []char, now time.Time) (Term, error) {
	t := Term{Op: Is}
	for len(chars) > 0 && chars[0] == (char{"-", false}) {
		t.Not, chars = !t.Not, chars[1:]
	}
	var err error
	match := named.FindStringSubmatch(plain(chars))
	if match == nil {
		v, err := parseValue(chars, text)
		t.Values = []Value{v}
		return t, err
	}
	chars = chars[utf8.RuneCountInString(match[0]):]
	t.Op = Op(match[2])
	var k kind
	if t.Field, t.Key, k, err = find(match[1]); err != nil {
		return t, err
	}
	switch {
	case t.Op != Is && k < number:
		return t, fmt.Errorf("%s is not compared with %s; write %s:VALUE", match[1], t.Op, match[1])
	case t.Op != Is:
		v, err := parseSize(chars, k, now)
		t.Values = []Value{v}
		return t, err
	case k >= number && k != score:
		return t, fmt.Errorf("%s is compared with >, <, >=, <= or =", match[1])
	case len(chars) == 1 && chars[0] == (char{"*", false}):
		t.Op = Any
		return t, nil
	}
	for rest := chars; rest != nil; {
		var one []char
		if comma := slices.Index(rest, char{",", false}); comma >= 0 {
			one, rest = rest[:comma], rest[comma+1:]
		} else {
			one, rest = rest, nil
		}
		v, err := parseValue(one, k)
		if err != nil {
			return t, fmt.Errorf("%s: %w", match[1], err)
		}
		t.Values = append(t.Values, v)
	}
	return t, nil
}

// key is what may follow "label.".
var key = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// find returns the field with a name.
func find(full string) (f Field, rest string, k kind, err error) {
	for _, f := range fields {
		rest, found := strings.CutPrefix(full, f.name)
		keyed := strings.HasSuffix(f.name, ".")
		switch {
		case !found || !keyed && rest != "":
		case keyed && !key.MatchString(rest) && (f.field == Label || rest == ""):
			return "", "", 0, fmt.Errorf("%.100s is not a %s", full, f.field)
		default:
			return f.field, rest, f.kind, nil
		}
	}
	return "", "", 0, fmt.Errorf("%.100q is no field; put quotes around text with this sign", full)
}

// parseValue reads a value that is compared exactly or by words.
func parseValue(chars []char, k kind) (v Value, err error) {
	if last := len(chars) - 1; last >= 0 && chars[last] == (char{"*", false}) {
		v.Prefix, chars = true, chars[:last]
	}
	var b strings.Builder
	for _, c := range chars {
		b.WriteString(c.text)
	}
	v.Text = b.String()
	if k != text {
		if len(chars) == 0 {
			err = fmt.Errorf("a value is missing")
		}
		return v, err
	}
	v.Words = slices.Collect(words.Of(v.Text))
	if !strings.ContainsFunc(strings.Join(v.Words, ""), func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
		err = fmt.Errorf("there is no letter or digit")
	}
	return v, err
}

// parseSize reads a value that is compared by size.
func parseSize(chars []char, k kind, now time.Time) (Value, error) {
	v, _ := parseValue(chars, name)
	if v.Prefix {
		v.Text += "*"
	}
	var err error
	switch k {
	case moment:
		v.Time, err = parseTime(v.Text, now)
	case duration:
		v.Duration, err = parseDuration(v.Text)
	default:
		v.Number, err = strconv.ParseFloat(v.Text, 64)
		if err != nil || math.IsNaN(v.Number) || math.IsInf(v.Number, 0) {
			err = fmt.Errorf("%.100q is not a number", v.Text)
		}
	}
	return v, err
}

// parseTime reads a time, a date, which is its midnight in UTC, or how long ago a time was.
func parseTime(text string, now time.Time) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), nil
		}
	}
	if ago, err := parseDuration(text); err == nil {
		return now.Add(-ago).UTC(), nil
	}
	return time.Time{}, fmt.Errorf("%.100q is no time; use 2026-01-31T15:04:05Z, 2026-01-31 or 24h (ago)", text)
}

// parseDuration reads a duration. Days, such as 30d, have 24 hours.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); err != nil && ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%.100q is no duration such as 10s or 30d", text)
	}
	return d, nil
}
