package llmhttp

import (
	"encoding/json"
	"slices"
)

// strictKeywords are those that a schema for strict output may use. A schema
// with another one is sent as a hint only: the server would refuse it.
var strictKeywords = []string{
	"$schema", "type", "title", "description", "properties", "required", "additionalProperties", "items", "enum", "const",
}

// StrictSchema reports whether the provider can be asked to hold its reply to
// the schema: an object all of whose parts are closed and required.
func StrictSchema(schema json.RawMessage) bool {
	var root struct {
		Type any `json:"type"`
	}
	return json.Unmarshal(schema, &root) == nil && root.Type == "object" && strictPart(schema)
}

func strictPart(schema json.RawMessage) bool {
	var keys map[string]json.RawMessage
	if json.Unmarshal(schema, &keys) != nil {
		return false
	}
	for k := range keys {
		if !slices.Contains(strictKeywords, k) {
			return false
		}
	}
	var part struct {
		Type                 any                        `json:"type"`
		Properties           map[string]json.RawMessage `json:"properties"`
		Required             []string                   `json:"required"`
		AdditionalProperties any                        `json:"additionalProperties"`
		Items                json.RawMessage            `json:"items"`
	}
	if json.Unmarshal(schema, &part) != nil || part.Type == nil {
		return false
	}
	if part.Type == "object" && (part.AdditionalProperties != false || len(part.Required) != len(part.Properties)) {
		return false
	}
	if part.Type == "array" && part.Items == nil {
		return false
	}
	for name, p := range part.Properties {
		if !slices.Contains(part.Required, name) || !strictPart(p) {
			return false
		}
	}
	return part.Items == nil || strictPart(part.Items)
}
