package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// A schema that branches at each of several levels can take forever, and all memory for its
// report, on a few bytes of arguments. The library has no bound for that. So every part of a
// compiled schema pays for its work before it does it: the library asks for a part's format
// first, and [part.format] is that. What would cost more than a part and a value tell (enum,
// const, uniqueItems, pattern) is evaluated here, where it can be paid for.

// maxSteps is how many steps a check may take. A step is a keyword, or an element of one or of
// the value. It is worth some 100 ns, or a microsecond at worst.
const maxSteps = 2_000_000

// errBudget is what a check panics with that takes too many steps.
var errBudget = errors.New("the schema branches too often for these arguments, or has too many alternatives or patterns for values of this length: make its anyOf, oneOf, $ref and pattern simpler")

// budget counts the steps of the checks by one schema, of which one runs at a time.
type budget struct {
	mu   sync.Mutex
	left int

	parts []*part
	// chain is how many parts at most apply to one value, each within the one before. number is
	// the weight of the longest number in the schema.
	chain, number int
	// leftover says that the schema asks what its parts left unevaluated, so that each of them
	// copies the names that the value has.
	leftover bool
	patterns patterns
}

// spend pays for work. It panics when there was too much.
func (b *budget) spend(steps int) {
	if b.left -= steps; b.left < 0 {
		panic(errBudget)
	}
}

// bounded is a compiled schema and its budget.
type bounded struct {
	*jsonschema.Schema
	budget *budget
	// size is about what it takes to keep it, in bytes of its text.
	size int
}

// allowance returns how many steps a check of a value may take. An error of a deep value holds
// its path, every part of a chain is compared with all of it, and numbers are computed with
// exactly: each makes a step dearer.
func (b *budget) allowance(m measure) int {
	return maxSteps / ((1 + m.depth/16) * (1 + b.chain/64) * max(1, m.number, b.number))
}

// check evaluates the schema for a value.
func (s *bounded) check(value any) (err error) {
	b := s.budget
	var m measure
	m.value(value, 0)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = b.allowance(m)
	defer func() {
		switch p := recover(); {
		case p == nil:
		case p == any(errBudget):
			err = errBudget
		default: // whatever a foreign schema makes the library do, it does not end this process
			err = fmt.Errorf("the schema cannot be evaluated: %v", p)
		}
	}()
	return s.Validate(value)
}

// measure is what the cost of a JSON value depends on.
type measure struct {
	// nodes are the values in it, depth is how deep they are nested, number the weight of its
	// longest number.
	nodes, depth, number int
}

func (m *measure) value(v any, depth int) {
	m.nodes++
	m.depth = max(m.depth, depth)
	switch v := v.(type) {
	case map[string]any:
		for key, e := range v {
			m.nodes += len(key) / 32
			m.value(e, depth+1)
		}
	case []any:
		for _, e := range v {
			m.value(e, depth+1)
		}
	case string:
		m.nodes += len(v) / 32
	case json.Number:
		weight := numberWeight(v)
		m.nodes += 2 + weight // to compare it is to parse it
		m.number = max(m.number, weight)
	}
}

// nodesOf returns how many values are in one, more for long ones.
func nodesOf(v any) int {
	var m measure
	m.value(v, 0)
	return m.nodes
}

// part is a part of a compiled schema: a schema in it that is an object.
type part struct {
	budget *budget
	schema *jsonschema.Schema
	// steps are what it takes for any value, and again for each element if the schema asks
	// what is left over.
	steps  int
	format *jsonschema.Format
	// values are those of enum or const, costing so many steps; nil: any value will do.
	values []any
	fixed  *any
	weight int
	unique bool
}

// vocabulary makes every part of a schema pay.
func (b *budget) vocabulary() *jsonschema.Vocabulary {
	return &jsonschema.Vocabulary{URL: "moorebus:///budget", Compile: func(ctx *jsonschema.CompilerContext, keywords map[string]any) (jsonschema.SchemaExt, error) {
		s := ctx.Enqueue(nil) // the schema that is being compiled, whose keywords these are
		p := &part{budget: b, schema: s, steps: steps(keywords), format: s.Format, fixed: s.Const, unique: s.UniqueItems}
		if s.Enum != nil {
			p.values = s.Enum.Values
		}
		p.weight = nodesOf(p.values)
		if p.fixed != nil {
			p.weight += nodesOf(*p.fixed)
		}
		s.Enum, s.Const, s.UniqueItems = nil, nil, false
		s.Format = &jsonschema.Format{Validate: p.before}
		if p.format != nil && p.format.Name == "regex" {
			p.format = nil // no pattern of the arguments is compiled
		}
		if p.format != nil {
			s.Format.Name = p.format.Name
		}
		b.leftover = b.leftover || s.UnevaluatedItems != nil || s.UnevaluatedProperties != nil
		b.parts = append(b.parts, p)
		return p, nil
	}}
}

// steps returns what a part takes for any value: its keywords, and their elements unless they
// are looked up by name or cost nothing.
func steps(keywords map[string]any) int {
	n := 1
	for keyword, value := range keywords {
		n++
		switch keyword {
		case "properties", "$defs", "definitions", "default", "examples", "enum", "const":
		case "dependencies", "dependentRequired":
			n += nodesOf(value)
		default:
			switch value := value.(type) {
			case []any:
				n += len(value)
			case map[string]any:
				n += len(value)
			}
		}
	}
	return n
}

// before pays for the part, before any of its keywords but type is evaluated.
func (p *part) before(v any) error {
	n := 0
	switch v := v.(type) {
	case map[string]any:
		n = len(v)
	case []any:
		n = len(v)
	case string:
		n = len(v) / 32
	}
	if p.budget.leftover {
		n = p.steps * nodesOf(v)
	}
	p.budget.spend(p.steps + n)
	if p.format == nil {
		return nil
	}
	return p.format.Validate(v)
}

// Validate evaluates what the part was relieved of, after its other keywords.
func (p *part) Validate(ctx *jsonschema.ValidatorContext, v any) {
	p.budget.spend(p.weight)
	if p.fixed != nil && !same(ctx, v, *p.fixed) {
		ctx.AddError(&kind.Const{Got: v, Want: *p.fixed})
	}
	if p.values != nil && !p.listed(ctx, v) {
		ctx.AddError(&kind.Enum{Got: v, Want: p.values})
	}
	list, isList := v.([]any)
	if !p.unique || !isList {
		return
	}
	p.budget.spend(nodesOf(v))
	if i, j, found := duplicates(list); found {
		ctx.AddError(&kind.UniqueItems{Duplicates: [2]int{i, j}})
	}
}

func (p *part) listed(ctx *jsonschema.ValidatorContext, v any) bool {
	for _, value := range p.values {
		if same(ctx, v, value) {
			return true
		}
	}
	return false
}

func same(ctx *jsonschema.ValidatorContext, a, b any) bool {
	equal, err := ctx.Equals(a, b)
	return err == nil && equal
}
