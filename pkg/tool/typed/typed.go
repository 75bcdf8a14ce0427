// Package typed makes tools of Go functions.
//
// The JSON Schema that the model sees comes from the function's input type, a
// struct: json tags name the properties, a `jsonschema:"…"` tag describes one,
// and a field without omitempty or omitzero is required. Arguments are checked
// against that schema before the function runs, so unknown and missing keys,
// trailing data and values of the wrong type are failures with code
// invalid_arguments. Numbers reach the function as they were written: integers
// keep all digits, and json.Number fields keep the model's text.
package typed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/pkg/tool"
)

// New makes a tool out of a function whose input In is a struct, or a map with
// string keys. Where def has a Schema it is announced and checked instead of
// In's own. The function must be safe for concurrent use and return soon after
// ctx ends; its errors become failures, see [tool.Failure].
func New[In any](def tool.Definition, fn func(ctx context.Context, in In) (string, error)) (tool.Tool, error) {
	if fn == nil {
		return nil, fmt.Errorf("tool %q: the function is nil", def.Name)
	}
	schema, raw, err := schemaOf[In](def.Schema)
	if err != nil {
		return nil, fmt.Errorf("tool %q: %w", def.Name, err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("tool %q: schema: %w", def.Name, err)
	}
	def.Schema = raw
	def = def.WithDefaults()
	if err := def.Validate(); err != nil {
		return nil, err
	}
	return &function[In]{def: def, schema: resolved, fn: fn}, nil
}

// schemaOf gives the schema to check and the text to announce.
func schemaOf[In any](given json.RawMessage) (*jsonschema.Schema, json.RawMessage, error) {
	if len(given) > 0 {
		var s jsonschema.Schema
		if err := json.Unmarshal(given, &s); err != nil {
			return nil, nil, fmt.Errorf("schema: %w", err)
		}
		return &s, given, nil
	}
	in := reflect.TypeFor[In]()
	s, err := jsonschema.For[In](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.Number](): {Type: "number"},
	}})
	if err != nil {
		return nil, nil, fmt.Errorf("schema of %s: %w", in, err)
	}
	if s.Type != "object" {
		return nil, nil, fmt.Errorf("schema of %s: the input must be a struct or a map with string keys", in)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, nil, fmt.Errorf("schema of %s: %w", in, err)
	}
	return s, raw, nil
}

// function is the tool made of one function.
type function[In any] struct {
	def    tool.Definition
	schema *jsonschema.Resolved
	fn     func(context.Context, In) (string, error)
}

// Definition returns the definition, defaults applied.
func (f *function[In]) Definition() tool.Definition { return f.def }

// Run checks and decodes the arguments and calls the function, whose context
// knows the call (see [CallFrom]).
func (f *function[In]) Run(ctx context.Context, call tool.Call) (string, error) {
	var in In
	if err := f.decode(call.Arguments, &in); err != nil {
		return "", tool.Failf(tool.CodeInvalidArguments, "the arguments do not fit: %v", err)
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return f.fn(context.WithValue(ctx, callKey{}, call), in)
}

func (f *function[In]) decode(arguments string, in *In) error {
	if strings.TrimSpace(arguments) == "" {
		arguments = "{}"
	}
	var value any
	if err := decodeOne(arguments, &value); err != nil {
		return err
	}
	value, err := checkable(value)
	if err != nil {
		return err
	}
	if err := f.schema.Validate(value); err != nil {
		return err
	}
	return decodeOne(arguments, in)
}

// checkable replaces every json.Number, which the schema library takes for a
// string, by a Go number. It serves the check alone: the function's input is
// decoded from the text.
func checkable(value any) (any, error) {
	var err error
	switch v := value.(type) {
	case json.Number:
		return checkableNumber(v)
	case []any:
		for i := range v {
			if v[i], err = checkable(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = checkable(v[key]); err != nil {
				return nil, err
			}
		}
	}
	return value, nil
}

func checkableNumber(n json.Number) (any, error) {
	if i, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return i, nil
	}
	if u, err := strconv.ParseUint(string(n), 10, 64); err == nil {
		return u, nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, fmt.Errorf("the number %s is out of range", n)
	}
	return f, nil
}

// decodeOne decodes exactly one value, numbers in untyped places as json.Number.
func decodeOne(text string, into any) error {
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("unexpected data after the value at byte %d", dec.InputOffset())
	}
	return nil
}

type callKey struct{}

// CallFrom returns the call that a function runs for, given its context: its
// run, id and idempotency key. It is false outside of such a function.
func CallFrom(ctx context.Context) (tool.Call, bool) {
	call, ok := ctx.Value(callKey{}).(tool.Call)
	return call, ok
}
