package inputs

import (
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/internal/control"
)

// Schema returns the JSON Schema of a list of inputs.
func Schema() *jsonschema.Schema {
	items := &jsonschema.Schema{}
	for _, kind := range inputKinds {
		items.AnyOf = append(items.AnyOf, kind.schema())
	}
	return &jsonschema.Schema{Title: "Inputs", Type: "array", Items: items, MaxItems: jsonschema.Ptr(maxInputs)}
}

// schema is that of one type of input.
func (k *inputKind) schema() *jsonschema.Schema {
	s := k.keysSchema()
	types := &jsonschema.Schema{Description: "In kebab case; snake, camel and Pascal case are accepted too."}
	for name, kind := range inputNames {
		if kind == k {
			types.Enum = append(types.Enum, name)
		}
	}
	slices.SortFunc(types.Enum, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	s.Properties["type"] = types
	s.Required = append([]string{"type"}, s.Required...)
	s.PropertyOrder = append([]string{"type"}, s.PropertyOrder...)
	return s
}

// keysSchema has the keys in both spellings. Only those of one spelling can be required.
func (k *inputKind) keysSchema() *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}}
	for _, key := range k.keys {
		for _, name := range []string{key.name, camelCase(key.name)} {
			if s.Properties[name] == nil {
				s.Properties[name] = k.value(key.name)
				s.PropertyOrder = append(s.PropertyOrder, name)
			}
		}
		if key.required && !strings.Contains(key.name, "_") {
			s.Required = append(s.Required, key.name)
		}
	}
	return s
}

// value is the schema of a key's value.
func (k *inputKind) value(key string) *jsonschema.Schema {
	text, count := &jsonschema.Schema{Type: "string"}, &jsonschema.Schema{Type: "integer", Minimum: jsonschema.Ptr(0.0)}
	switch key {
	case "timestamp":
		return &jsonschema.Schema{Types: []string{"number", "string"}, Description: "Milliseconds, or RFC 3339. The order of the log counts."}
	case "message_id":
		return &jsonschema.Schema{Type: "string", MinLength: jsonschema.Ptr(1), MaxLength: jsonschema.Ptr(control.MaxMessageID)}
	case "content":
		if k.names[0] == "user-message" {
			return &jsonschema.Schema{Types: []string{"string", "array"}, Description: "A text, or a list of parts."}
		}
	case "increment":
		return &jsonschema.Schema{Type: "integer", Minimum: jsonschema.Ptr(1.0)}
	case "tool_call_ids", "call_ids":
		return &jsonschema.Schema{Title: "Inputs", Type: "array", Items: text}
	case "calls":
		return &jsonschema.Schema{Title: "Inputs", Type: "array", Items: callKind.keysSchema()}
	case "arguments":
		return &jsonschema.Schema{Types: []string{"object", "string"}}
	case "usage":
		return &jsonschema.Schema{Type: "object"}
	case "result":
		return resultKeys.keysSchema()
	case "success", "is_success":
		return &jsonschema.Schema{Type: "boolean"}
	case "offset", "latency_ms":
		return count
	}
	return text
}
