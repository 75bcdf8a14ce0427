package docschema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
)

// draft is the draft of the schemas of files: the newest that all editors know.
const draft = "http://json-schema.org/draft-07/schema#"

// key says what a schema cannot take from a Go type: what a key of a file means, and which
// values its reader takes. The path names it: a.b in a mapping, a[].b in a list of mappings,
// and a.*.b in a mapping of any keys.
type key struct {
	path, text string
	limits     []limit
}

// limit limits a key's values, or says what stands for a missing one.
type limit func(*jsonschema.Schema)

// file is the schema of a kind of file. A key that is there without a value counts as missing.
func file(title, text string, v any, keys []key) (*jsonschema.Schema, error) {
	s, err := Of(v, nil)
	if err != nil {
		return nil, err
	}
	each(s, func(s *jsonschema.Schema) { s.Required = nil })
	for _, inner := range s.Properties {
		each(inner, nullable)
	}
	for _, k := range keys {
		at := find(s, k.path)
		if at == nil {
			return nil, fmt.Errorf("JSON Schema of %s: there is no key %s", title, k.path)
		}
		at.Description = k.text
		for _, limit := range k.limits {
			limit(at)
		}
	}
	s.Title, s.Description = title, text
	return s, nil
}

// find returns the schema of the key that a path names, or nil.
func find(s *jsonschema.Schema, path string) *jsonschema.Schema {
	for part := range strings.SplitSeq(path, ".") {
		name, list := strings.CutSuffix(part, "[]")
		if name == "*" {
			s = s.AdditionalProperties
		} else {
			s = s.Properties[name]
		}
		if s != nil && list {
			s = s.Items
		}
		if s == nil {
			return nil
		}
	}
	return s
}

// nullable allows null, which is what a key without a value has.
func nullable(s *jsonschema.Schema) {
	if s.Type != "" {
		s.Types, s.Type = []string{s.Type, "null"}, ""
	}
	if s.AnyOf != nil {
		s.AnyOf = append(s.AnyOf, &jsonschema.Schema{Type: "null"})
	}
}

// choice limits a key to values. An empty one counts as missing.
func choice[S ~string](values ...S) limit {
	return func(s *jsonschema.Schema) {
		for _, v := range append(values, "") {
			s.Enum = append(s.Enum, string(v))
		}
		s.Enum = append(s.Enum, nil)
	}
}

// least is the least value of a number.
func least(n float64) limit { return func(s *jsonschema.Schema) { s.Minimum = &n } }

func most(n float64) limit { return func(s *jsonschema.Schema) { s.Maximum = &n } }

// usually is the value of a key that is missing.
func usually(v any) limit {
	return func(s *jsonschema.Schema) { s.Default, _ = json.Marshal(v) } // a constant
}

// members is for a list of some of the values.
func members(values ...any) limit { return func(s *jsonschema.Schema) { s.Items.Enum = values } }

// example shows values.
func example(values ...any) limit { return func(s *jsonschema.Schema) { s.Examples = values } }

// there is for a key that must have a value.
func there(s *jsonschema.Schema) {
	s.Types = slices.DeleteFunc(s.Types, func(t string) bool { return t == "null" })
	if len(s.Types) == 1 {
		s.Type, s.Types = s.Types[0], nil
	}
	if s.Type == "string" {
		s.MinLength = jsonschema.Ptr(1)
	}
}

// name is the pattern of the names of agents, pools and providers.
const name = "^[a-z0-9][a-z0-9_-]{0,62}$"

func named(pattern string) limit { return func(s *jsonschema.Schema) { s.Pattern = pattern } }

// mapping replaces the schema of a value that the Go type leaves open.
func mapping(s *jsonschema.Schema) { s.Types = []string{"object", "null"} }

// Text returns a schema as the text of a file, indented and with its draft.
func Text(s *jsonschema.Schema) ([]byte, error) {
	s.Schema = draft
	data, err := json.MarshalIndent(s, "", "  ")
	return append(data, '\n'), err
}

// Agent returns the schema of an agent definition.
func Agent() (*jsonschema.Schema, error) {
	s, err := file("Agent", "An agent definition of Moorebus.", events.Agent{}, agentKeys)
	if err != nil {
		return nil, err
	}
	s.Required = []string{"llm"}
	s.Properties["llm"].Required = []string{"provider"}
	defaults, err := json.Marshal(events.DefaultAgent().Config)
	if err != nil {
		return nil, err
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(defaults, &values); err != nil {
		return nil, err
	}
	delete(values, "context_window_size") // it depends on the mode
	for key, value := range values {
		s.Properties["config"].Properties[key].Default = value
	}
	return s, nil
}

// toolFile is an [agentfile.ToolFile] as it stands in a file.
type toolFile struct {
	Tools []agentfile.ToolEntry `json:"tools"`
	MCP   agentfile.MCP         `json:"mcp"`

	Approval agentfile.ToolApproval `json:"approval"`
}

// Tools returns the schema of a tool file.
func Tools() (*jsonschema.Schema, error) {
	s, err := file("Tools", "The tools of an actor of Moorebus.", toolFile{}, toolKeys)
	if err != nil {
		return nil, err
	}
	s.Properties["tools"].Items.AnyOf = nil
	for _, kind := range []string{"http", "exec", "builtin", "agent", "handoff", "a2a", "service"} {
		entry := s.Properties["tools"].Items
		entry.AnyOf = append(entry.AnyOf, &jsonschema.Schema{Required: []string{kind}})
	}
	mcp := s.Properties["mcp"]
	mcp.Required = []string{"file"}
	s.Properties["mcp"] = &jsonschema.Schema{Description: mcp.Description, AnyOf: []*jsonschema.Schema{{Type: "string", MinLength: jsonschema.Ptr(1)}, mcp}}
	mcp.Description = ""
	return s, nil
}

// providerFile makes the names of providers a key, for the paths of the keys below them.
type providerFile struct {
	Providers agentfile.Providers `json:"providers"`
}

// Providers returns the schema of a provider file.
func Providers() (*jsonschema.Schema, error) {
	all, err := file("Providers", "The model providers of a planner of Moorebus.", providerFile{}, providerKeys)
	if err != nil {
		return nil, err
	}
	s := all.Properties["providers"]
	s.Types, s.Type, s.Title, s.Description = nil, "object", all.Title, all.Description
	s.PropertyNames = &jsonschema.Schema{Pattern: name, Not: &jsonschema.Schema{Enum: []any{providers.Scripted}}}
	entry := s.AdditionalProperties
	entry.Required = []string{"kind"}
	capabilities, err := file("", "", providers.Capabilities{}, nil)
	if err != nil {
		return nil, err
	}
	capabilities.Description = entry.Properties["capabilities"].Description
	capabilities.Types, capabilities.Type = []string{"object", "null"}, ""
	for key, values := range providers.Choices() {
		at := capabilities.Properties[key]
		if at.Items != nil {
			at = at.Items
		}
		choice(values...)(at)
	}
	entry.Properties["capabilities"] = capabilities
	return s, nil
}
