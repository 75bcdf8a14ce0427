// Package docschema has the JSON Schemas of the documents that people and programs write for
// Moorebus, and of those that it writes. They are made of the Go types that the readers and
// writers use. All functions are safe for concurrent use and return schemas that the caller may
// change.
package docschema

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/pkg/events"
)

// Of returns the schema of the JSON that package json writes for values of v's type. Keys
// without omitempty are required. refs are schemas for Go types inside of it, besides
// the module's own; may be nil. A v that is a *jsonschema.Schema is copied. The error is for
// types that have no JSON.
func Of(v any, refs map[reflect.Type]*jsonschema.Schema) (*jsonschema.Schema, error) {
	if s, is := v.(*jsonschema.Schema); is {
		return s.CloneSchemas(), nil
	}
	known := ownForms()
	maps.Copy(known, refs)
	t := reflect.TypeOf(v)
	if by := reflect.TypeFor[events.By](); t == by {
		delete(known, by)
	}
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: known})
	if err != nil {
		return nil, fmt.Errorf("JSON Schema of %s: %w", t, err)
	}
	each(s, func(s *jsonschema.Schema) {
		// The library writes a pointer to any value as a pointer to nothing.
		if len(s.Types) == 1 && s.Types[0] == "null" {
			s.Types = nil
		}
		// What the type says by itself reads better before null.
		slices.Reverse(s.Types)
	})
	return s, nil
}

// ownForms are the schemas of Go types that have their own form in JSON.
func ownForms() map[reflect.Type]*jsonschema.Schema {
	return map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {},
		reflect.TypeFor[[]byte]():          {Type: "string", ContentEncoding: "base64"},
		reflect.TypeFor[time.Time]():       {Type: "string", Format: "date-time"},
		reflect.TypeFor[agentfile.Size]():  {Types: []string{"string", "integer"}, Description: "A number of bytes, such as 512MiB or 2GiB."},
		reflect.TypeFor[events.Duration](): {Type: "string", Description: "A duration such as 30s, 10m or 24h."},
		reflect.TypeFor[events.Models]():   models(),
		reflect.TypeFor[events.Labels]():   {Type: "object", AdditionalProperties: &jsonschema.Schema{Type: "string"}},
		// The library misses a field that is named like the struct that it is embedded with.
		reflect.TypeFor[events.By](): {Type: "object", Properties: map[string]*jsonschema.Schema{"by": {Type: "string"}, "reason": {Type: "string"}}},
	}
}

// models is the schema of [events.Models].
func models() *jsonschema.Schema {
	text := &jsonschema.Schema{Type: "string"}
	ref := func() *jsonschema.Schema {
		return &jsonschema.Schema{
			Type: "object", Required: []string{"model"}, AdditionalProperties: never(),
			Properties: map[string]*jsonschema.Schema{
				"provider": {Type: "string", Description: "One of the planner's providers. Default: the agent's."},
				"model":    {Type: "string", Description: "The model's name."},
			},
			PropertyOrder: []string{"provider", "model"},
		}
	}
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		text.CloneSchemas(), ref(),
		{Type: "array", Items: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{text.CloneSchemas(), ref()}}},
	}}
}

// never is the schema that nothing satisfies.
func never() *jsonschema.Schema { return &jsonschema.Schema{Not: &jsonschema.Schema{}} }

// each calls visit for a schema and all schemas in it.
func each(s *jsonschema.Schema, visit func(*jsonschema.Schema)) {
	if s == nil {
		return
	}
	for _, inner := range s.Properties {
		each(inner, visit)
	}
	for _, inner := range slices.Concat(s.AnyOf, s.AllOf, s.OneOf) {
		each(inner, visit)
	}
	for _, inner := range []*jsonschema.Schema{s.Items, s.AdditionalProperties} {
		if inner != nil && inner.Not == nil {
			each(inner, visit)
		}
	}
	visit(s)
}

// Open allows objects of the schema to have further keys, which further is the schema of; nil
// leaves them unsaid.
func Open(s, further *jsonschema.Schema) {
	each(s, func(s *jsonschema.Schema) {
		if s.AdditionalProperties != nil && s.AdditionalProperties.Not != nil {
			s.AdditionalProperties = further
		}
	})
}
