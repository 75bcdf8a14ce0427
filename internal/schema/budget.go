package schema

import (
	"errors"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A schema that branches at each of several levels can take forever, and all memory for its
// report, on a few bytes of arguments. The library has no bound for that. But it calls the
// extensions of a schema whenever a part of it was evaluated, so an extension counts.
const (
	// baseSteps and stepsPerByte are how many steps a check of arguments may take, at most
	// maxSteps. A step is a keyword, or an element of one.
	baseSteps, stepsPerByte, maxSteps = 100_000, 16, 2_000_000
)

// errBudget is what a check panics with that takes too many steps.
var errBudget = errors.New("the schema branches too often for these arguments: make its anyOf, oneOf and $ref simpler")

// budget counts the steps of the checks by one schema, of which one runs at a time.
type budget struct {
	mu   sync.Mutex
	left int
}

// bounded is a compiled schema and its budget.
type bounded struct {
	*jsonschema.Schema
	budget *budget
}

// vocabulary makes every part of a schema count.
func (b *budget) vocabulary() *jsonschema.Vocabulary {
	return &jsonschema.Vocabulary{URL: "moorebus:///budget", Compile: func(_ *jsonschema.CompilerContext, part map[string]any) (jsonschema.SchemaExt, error) {
		steps := 1
		for _, keyword := range part {
			steps++
			switch keyword := keyword.(type) {
			case []any:
				steps += len(keyword)
			case map[string]any:
				steps += len(keyword)
			}
		}
		return &counted{b, steps}, nil
	}}
}

// counted is a part of a schema.
type counted struct {
	budget *budget
	steps  int
}

// Validate counts the part. It panics when there were too many.
func (c *counted) Validate(*jsonschema.ValidatorContext, any) {
	if c.budget.left -= c.steps; c.budget.left < 0 {
		panic(errBudget)
	}
}

// check evaluates the schema for a value that has so many bytes.
func (s *bounded) check(value any, size int) (err error) {
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.budget.left = min(baseSteps+stepsPerByte*size, maxSteps)
	defer func() {
		if p := recover(); p != nil {
			if p != any(errBudget) {
				panic(p)
			}
			err = errBudget
		}
	}()
	return s.Schema.Validate(value)
}
