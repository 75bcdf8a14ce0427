package textprotocol

import (
	"encoding/json"
	"slices"
	"strings"
)

// parameters reads a tool's parameters from its schema: required ones first, each group
// by name. It follows no references. An invalid schema has no parameters.
func parameters(schema json.RawMessage) []parameter {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	all := make([]parameter, 0, len(s.Properties))
	for name, raw := range s.Properties {
		p := parameter{name: name, required: slices.Contains(s.Required, name)}
		p.kind, p.items, p.description = property(raw)
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b parameter) int {
		if a.required != b.required {
			if a.required {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	return all
}

func property(raw json.RawMessage) (kind, items, description string) {
	var s struct {
		Type        json.RawMessage `json:"type"`
		Items       json.RawMessage `json:"items"`
		Description json.RawMessage `json:"description"`
	}
	if json.Unmarshal(raw, &s) != nil {
		return "", "", ""
	}
	var item struct {
		Type json.RawMessage `json:"type"`
	}
	_ = json.Unmarshal(s.Items, &item) // a schema that says nothing of them is one
	_ = json.Unmarshal(s.Description, &description)
	return kindOf(s.Type), kindOf(item.Type), description
}

// kindOf returns a schema's type, or the first of several that is not null.
func kindOf(raw json.RawMessage) string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var several []string
	_ = json.Unmarshal(raw, &several) // what is no list of types is none
	for _, kind := range several {
		if kind != kindNull {
			return kind
		}
	}
	return ""
}
