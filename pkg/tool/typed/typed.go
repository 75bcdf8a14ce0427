// Package typed makes tools of Go functions.
//
// The JSON Schema that the model sees is generated from the function's input type, a
// struct: json tags name the properties, a `jsonschema:"…"` tag describes one, and a
// field without omitempty or omitzero is required. Arguments are checked against that
// schema before the function runs. So unknown and missing keys, trailing data and values
// of the wrong type are failures with code invalid_arguments, which list every violation.
// Numbers reach the function as they were written: integers keep all digits, and
// json.Number fields keep the model's text.
package typed

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/internal/codec"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/pkg/tool"
)

// New makes a tool of a function whose input In is a struct, or a map with string keys.
// A result that is a string is the text that the model sees; any other result is written
// as JSON. If def has a Schema, it is announced and checked instead of In's own. The
// function must be safe for concurrent use and return soon after ctx ends. Its errors
// become failures, see [tool.Failure].
func New[In, Out any](def tool.Definition, fn func(ctx context.Context, in In) (Out, error)) (tool.Tool, error) {
	if fn == nil {
		return nil, fmt.Errorf("tool %q: the function is nil", def.Name)
	}
	if len(def.Schema) == 0 {
		var err error
		if def.Schema, err = schemaOf[In](); err != nil {
			return nil, fmt.Errorf("tool %q: %w", def.Name, err)
		}
	}
	def = def.WithDefaults()
	if err := def.Validate(); err != nil {
		return nil, err
	}
	checker := schema.New(schema.Options{CacheSize: 1})
	if err := checker.Check(def.Schema); err != nil {
		return nil, fmt.Errorf("tool %q: %w", def.Name, err)
	}
	return &function[In, Out]{def: def, checker: checker, fn: fn}, nil
}

// schemaOf generates the schema of a type.
func schemaOf[In any]() (json.RawMessage, error) {
	in := reflect.TypeFor[In]()
	s, err := jsonschema.For[In](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.Number](): {Type: "number"},
	}})
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", in, err)
	}
	if s.Type != "object" {
		return nil, fmt.Errorf("schema of %s: the input must be a struct or a map with string keys", in)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", in, err)
	}
	return raw, nil
}

// function is the tool made of one function.
type function[In, Out any] struct {
	def     tool.Definition
	checker *schema.Validator
	fn      func(context.Context, In) (Out, error)
}

func (f *function[In, Out]) Definition() tool.Definition { return f.def }

// Run checks and decodes the arguments and calls the function, whose context has the call
// (see [CallFrom]).
func (f *function[In, Out]) Run(ctx context.Context, call tool.Call) (string, error) {
	arguments := call.Arguments
	if strings.TrimSpace(arguments) == "" {
		arguments = "{}"
	}
	if err := f.checker.Validate(f.def.Schema, arguments); err != nil {
		return "", err
	}
	var in In
	if err := codec.Strict([]byte(arguments), &in); err != nil {
		return "", tool.Failf(tool.CodeInvalidArguments, "the arguments do not fit: %v", err)
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	out, err := f.fn(context.WithValue(ctx, callKey{}, call), in)
	if err != nil {
		return "", err
	}
	if text, ok := any(out).(string); ok {
		return text, nil
	}
	data, err := json.Marshal(out)
	if err != nil {
		return "", fmt.Errorf("the result cannot be written as JSON: %w", err)
	}
	return string(data), nil
}

type callKey struct{}

// CallFrom returns the call that a function runs for, given its context: its run, id and
// idempotency key. It is false outside of such a function.
func CallFrom(ctx context.Context) (tool.Call, bool) {
	call, ok := ctx.Value(callKey{}).(tool.Call)
	return call, ok
}
