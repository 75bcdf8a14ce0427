package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of a schema. What the library does to compile one grows with the square of its parts,
// and with the length of their JSON pointers.
const (
	// maxSize is the length of its text in bytes.
	maxSize = 256 << 10
	// maxParts is the number of objects, lists and truth values in it.
	maxParts = 4000
	// maxPointers is the length of the JSON pointers to them, together, in bytes.
	maxPointers = 1 << 20
)

// errLarge is why a schema is refused for its size.
var errLarge = fmt.Errorf("it is too large: a schema has at most %d KiB, and %d objects, lists and truth values, whose JSON pointers have %d KiB together", maxSize>>10, maxParts, maxPointers>>10)

// extent counts the parts of a schema's text.
type extent struct{ parts, pointers int }

// add counts a value whose JSON pointer has so many bytes.
func (e *extent) add(v any, pointer int) error {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if err := e.add(value, pointer+1+len(key)); err != nil {
				return err
			}
		}
	case []any:
		for i, value := range v {
			if err := e.add(value, pointer+1+len(strconv.Itoa(i))); err != nil {
				return err
			}
		}
	case bool:
	default:
		return nil
	}
	e.parts++
	e.pointers += pointer
	if e.parts > maxParts || e.pointers > maxPointers {
		return errLarge
	}
	return nil
}

// expansion is what a schema may take for one value: its steps if all alternatives are tried,
// and how many parts then apply, each within the one before.
type expansion struct{ steps, chain int }

var errRing = errors.New("it refers to itself without a property or an item between, so that no check would end")

// expand refuses a schema that may take more than a check's steps for any value, however small.
// What depends on how deep the arguments are nested is left to the check.
func (b *budget) expand() error {
	parts := map[*jsonschema.Schema]*part{}
	for _, p := range b.parts {
		parts[p.schema] = p
	}
	known := map[*jsonschema.Schema]*expansion{}
	most := 0
	var visit func(*jsonschema.Schema) (expansion, error)
	visit = func(s *jsonschema.Schema) (expansion, error) {
		p := parts[s]
		if p == nil { // true or false
			return expansion{1, 1}, nil
		}
		if e, seen := known[s]; seen {
			if e == nil {
				return expansion{}, errRing
			}
			return *e, nil
		}
		known[s] = nil
		e := expansion{steps: p.steps + p.weight}
		for _, within := range b.within(s) {
			x, err := visit(within)
			if err != nil {
				return e, err
			}
			e.steps = min(e.steps+x.steps, maxSteps+1)
			e.chain = max(e.chain, x.chain)
		}
		e.chain++
		b.chain = max(b.chain, e.chain)
		most = max(most, e.steps)
		known[s] = &e
		return e, nil
	}
	for _, p := range b.parts {
		if _, err := visit(p.schema); err != nil {
			return err
		}
	}
	if may := b.allowance(measure{}); most > may {
		return fmt.Errorf("it branches too often: its anyOf, oneOf, allOf and $ref come to more than %d steps for one value", may)
	}
	return nil
}

// within returns the schemas that a schema applies to the same value.
func (b *budget) within(s *jsonschema.Schema) []*jsonschema.Schema {
	if s.Ref != nil && s.DraftVersion < 2019 {
		return []*jsonschema.Schema{s.Ref}
	}
	all := slices.Concat(s.AllOf, s.AnyOf, s.OneOf, []*jsonschema.Schema{s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else})
	all = slices.AppendSeq(all, maps.Values(s.DependentSchemas))
	for _, d := range s.Dependencies {
		if d, is := d.(*jsonschema.Schema); is {
			all = append(all, d)
		}
	}
	// Where these two lead depends on the way to them.
	if s.RecursiveRef != nil {
		all = append(all, b.where(func(o *jsonschema.Schema) bool { return o.RecursiveAnchor })...)
	}
	if d := s.DynamicRef; d != nil {
		all = append(all, d.Ref)
		all = append(all, b.where(func(o *jsonschema.Schema) bool { return d.Anchor != "" && o.DynamicAnchor == d.Anchor })...)
	}
	return slices.DeleteFunc(all, func(o *jsonschema.Schema) bool { return o == nil })
}

func (b *budget) where(is func(*jsonschema.Schema) bool) (found []*jsonschema.Schema) {
	for _, p := range b.parts {
		if is(p.schema) {
			found = append(found, p.schema)
		}
	}
	return found
}

// maxDigits is how long a number may be, in bytes.
const maxDigits = 10_000

// numberWeight is what computing with a number exactly costs, in steps.
func numberWeight(n json.Number) int {
	digits := len(n)
	if i := strings.IndexAny(string(n), "eE"); i >= 0 {
		exponent, _ := strconv.Atoi(string(n[i+1:])) // [decoder.checkNumber] has seen it
		digits = i + max(exponent, -exponent)
	}
	return 1 + digits/32
}

// duplicates returns two elements of a list that are equal. The library's way can be made to
// compare each element with each other one.
func duplicates(list []any) (i, j int, found bool) {
	seen := make(map[string]int, len(list))
	for j, v := range list {
		var b strings.Builder
		canonical(&b, v)
		if i, found := seen[b.String()]; found {
			return i, j, true
		}
		seen[b.String()] = j
	}
	return 0, 0, false
}

// canonical writes a value so that equal values, and only they, have equal texts.
func canonical(b *strings.Builder, v any) {
	switch v := v.(type) {
	case map[string]any:
		b.WriteByte('{')
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b.WriteString(strconv.Quote(key) + ":")
			canonical(b, v[key])
			b.WriteByte(',')
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for _, e := range v {
			canonical(b, e)
			b.WriteByte(',')
		}
		b.WriteByte(']')
	case string:
		b.WriteString(strconv.Quote(v))
	case json.Number:
		n, _ := new(big.Rat).SetString(string(v)) // it is one
		b.WriteString(n.RatString())
	default:
		fmt.Fprint(b, v)
	}
}
