// Package schema checks tool arguments against JSON Schema.
//
// A [Validator] takes the model's argument text and reports every violation, with its JSON
// pointer, in words that a model can act on. Schemas are draft 2020-12 unless they name
// another draft. `format` is an annotation, and `pattern` is an RE2 expression. Nothing is
// loaded: a `$ref` to another document makes the schema invalid. Numbers are compared exactly.
//
// Schemas come from whoever may offer tools or define agents. So a schema has bounds, and one
// that may branch too often for any value is invalid. A check has a budget of steps; one that
// takes more fails.
//
// The error of an invalid schema wraps [ErrSchema]. Every other error is a *tool.Failure
// with code invalid_arguments.
package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/moorebus/moorebus/pkg/tool"
)

// ErrSchema says that the schema is invalid, not the arguments.
var ErrSchema = errors.New("invalid JSON Schema")

// defaultCacheSize is how many compiled schemas a [Validator] keeps by default, maxKept how much
// they may take, see [bounded].
const defaultCacheSize, maxKept = 256, 4 << 20

// resourceURL names the compiled schema. Its scheme has no loader, so a relative reference
// cannot be resolved.
const resourceURL = "moorebus:///schema.json"

var _ tool.Validator = (*Validator)(nil)

// Options configure a [Validator]. The zero value is ready to use.
type Options struct {
	// CacheSize bounds the number of compiled schemas that are kept. Default 256.
	CacheSize int
}

// Validator is the [tool.Validator]. It is safe for concurrent use.
type Validator struct {
	size int

	mu sync.Mutex
	// cache has compiled schemas by their text, kept is their size. It is emptied when it is
	// full.
	cache map[string]*bounded
	kept  int
}

// New returns a Validator.
func New(opts Options) *Validator {
	if opts.CacheSize <= 0 {
		opts.CacheSize = defaultCacheSize
	}
	return &Validator{size: opts.CacheSize, cache: map[string]*bounded{}}
}

// Check returns nil for a usable schema, else an error that wraps [ErrSchema] and
// says what is wrong with it. An empty schema accepts anything.
func (v *Validator) Check(schema json.RawMessage) error {
	_, err := v.compiled(schema)
	return err
}

// Check is [Validator.Check] without a cache.
func Check(schema json.RawMessage) error {
	_, err := compile(schema)
	return err
}

// Validate checks the arguments. Empty arguments mean {}. A key that occurs twice in an
// object is an error, since its reader might see a value that was not checked.
func (v *Validator) Validate(schema json.RawMessage, arguments string) error {
	compiled, err := v.compiled(schema)
	if err != nil {
		return err
	}
	if strings.TrimSpace(arguments) == "" {
		arguments = "{}"
	}
	value, err := decode(arguments)
	if err != nil {
		return tool.Failf(tool.CodeInvalidArguments, "the arguments are not valid JSON: %v", err)
	}
	err = compiled.check(value)
	if err == nil {
		return nil
	}
	var violations *jsonschema.ValidationError
	if !errors.As(err, &violations) {
		return tool.Failf(tool.CodeInvalidArguments, "the arguments cannot be checked: %v", err)
	}
	return tool.Failf(tool.CodeInvalidArguments, "the arguments do not match the tool's schema:\n%s", report(violations))
}

func (v *Validator) compiled(schema json.RawMessage) (*bounded, error) {
	v.mu.Lock()
	s, ok := v.cache[string(schema)]
	v.mu.Unlock()
	if ok {
		return s, nil
	}
	s, err := compile(schema)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.kept += s.size; len(v.cache) >= v.size || v.kept > maxKept {
		clear(v.cache)
		v.kept = s.size
	}
	v.cache[string(schema)] = s
	return s, nil
}

// refuse refuses to load other documents.
type refuse struct{}

func (refuse) Load(url string) (any, error) {
	return nil, fmt.Errorf("reference to %q: a schema may only refer to itself (put the definition under $defs)",
		strings.TrimPrefix(url, "moorebus:///"))
}

func compile(schema json.RawMessage) (s *bounded, err error) {
	if len(schema) == 0 {
		schema = json.RawMessage("{}")
	}
	if len(schema) > maxSize {
		return nil, fmt.Errorf("%w: %w", ErrSchema, errLarge)
	}
	doc, err := decode(string(schema))
	if err != nil {
		return nil, fmt.Errorf("%w: not valid JSON: %w", ErrSchema, err)
	}
	var size extent
	if err := size.add(doc, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	var numbers measure
	numbers.value(doc, 0)
	b := &budget{number: numbers.number}
	defer func() {
		if p := recover(); p != nil { // the library is not made for foreign schemas
			s, err = nil, fmt.Errorf("%w: it cannot be compiled: %v", ErrSchema, p)
		}
	}()
	c := jsonschema.NewCompiler()
	c.UseLoader(refuse{})
	c.UseRegexpEngine(b.compilePattern)
	c.RegisterVocabulary(b.vocabulary())
	c.AssertVocabs()
	if err := c.AddResource(resourceURL, doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	made, err := c.Compile(resourceURL)
	if err != nil {
		return nil, schemaError(err)
	}
	if err := b.expand(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	return &bounded{made, b, len(schema) + size.pointers}, nil
}

// schemaError classifies the compiler's errors.
func schemaError(err error) error {
	var mismatch *jsonschema.SchemaValidationError
	if errors.As(err, &mismatch) {
		var violations *jsonschema.ValidationError
		if errors.As(mismatch.Err, &violations) {
			return fmt.Errorf("%w:\n%s", ErrSchema, report(violations))
		}
	}
	var load *jsonschema.LoadURLError
	if errors.As(err, &load) {
		return fmt.Errorf("%w: %w", ErrSchema, load.Err)
	}
	return fmt.Errorf("%w: %s", ErrSchema, strings.ReplaceAll(err.Error(), resourceURL, ""))
}
