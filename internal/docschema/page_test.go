package docschema_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/docschema"
)

// row is a key of a file.
type row struct {
	path   string
	schema *jsonschema.Schema
}

// keysOf returns the keys of a schema and those below them, in order.
func keysOf(s *jsonschema.Schema, path string) []row {
	var rows []row
	for _, option := range s.AnyOf {
		rows = append(rows, keysOf(option, path)...)
	}
	order := s.PropertyOrder
	if len(order) != len(s.Properties) {
		panic(path + " has an order of its own")
	}
	for _, key := range order {
		inner := s.Properties[key]
		at := strings.TrimPrefix(path+"."+key, ".")
		rows = append(rows, row{at, inner})
		if key == "script" || key == "capabilities" {
			continue // they are explained elsewhere
		}
		rows = append(rows, keysOf(inner, at)...)
	}
	if s.Items != nil {
		rows = append(rows, keysOf(s.Items, path+"[]")...)
	}
	if every := s.AdditionalProperties; every != nil && every.Not == nil {
		at := strings.TrimPrefix(path+".*", ".")
		if every.Description != "" {
			rows = append(rows, row{at, every})
		}
		rows = append(rows, keysOf(every, at)...)
	}
	return rows
}

// typeOf names the type of a key's values.
func typeOf(s *jsonschema.Schema) string {
	var names []string
	for _, name := range append(slices.Clone(s.Types), s.Type) {
		switch name {
		case "null", "":
		case "string":
			names = append(names, "text")
		case "integer":
			names = append(names, "whole number")
		case "boolean":
			names = append(names, "true or false")
		case "array":
			names = append(names, "list")
		case "object":
			names = append(names, "mapping")
		default:
			names = append(names, name)
		}
	}
	for _, option := range s.AnyOf {
		if name := typeOf(option); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(s.Enum) > 0 {
		names = nil
		for _, v := range s.Enum {
			if text, is := v.(string); is && text != "" {
				names = append(names, "`"+text+"`")
			}
		}
		return strings.Join(names, ", ")
	}
	return strings.Join(names, " or ")
}

func table(t *testing.T, k kind) string {
	s, err := k.schema()
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString("| key | values | default | meaning |\n|---|---|---|---|\n")
	for _, row := range keysOf(s, "") {
		usual := ""
		if row.schema.Default != nil {
			usual = "`" + strings.Trim(string(row.schema.Default), `"`) + "`"
		}
		path := strings.Replace("\n"+row.path, "\n*", "NAME", 1)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", strings.TrimPrefix(path, "\n"), typeOf(row.schema), usual, strings.ReplaceAll(row.schema.Description, "|", `\|`))
	}
	return b.String()
}

// TestPage compares docs/files.md and docs/schema with the schemas.
func TestPage(t *testing.T) {
	golden := func(file, want string) {
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
			require.NoError(t, os.WriteFile(file, []byte(want), 0o600))
			return
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(text), "run go test ./internal/docschema -update")
	}
	page := "# Keys of files\n\n<!-- written by go test ./internal/docschema -update -->\n\n" +
		"Every key of agent definitions, tool files and provider files. A key that is not listed here is an error. A key without a value counts as missing. " +
		"`a.b` is the key b in the mapping a, `a[].b` that of each mapping in the list a, and `*` is any key. A duration is a text such as `30s`, `10m` or `24h`. " +
		"[Agent and tool files](reference/agent-files.md) explains what the keys do together.\n\n" +
		"`moorebus schema agent`, `tools` and `providers` print the JSON Schemas that this page is made of, and `moorebus schema event TYPE` that of an event. " +
		"Editors with the YAML language server check a document that names its schema, a path or a URL, in a comment. Each document of a file has its own comment:\n\n" +
		"```yaml\n# yaml-language-server: $schema=docs/schema/agent.json\nname: researcher\nllm: {provider: openai}\n---\n# yaml-language-server: $schema=docs/schema/tools.json\ntools:\n  - {builtin: calculator}\n```\n"
	for _, k := range kinds {
		s, err := k.schema()
		require.NoError(t, err)
		page += "\n## " + map[string]string{"agent": "Agent definitions", "tools": "Tool files", "providers": "Provider files"}[k.name] + "\n\n"
		page += "The schema is [" + k.name + ".json](schema/" + k.name + ".json).\n\n" + table(t, k)
		text, err := docschema.Text(s)
		require.NoError(t, err)
		require.True(t, json.Valid(text))
		golden(filepath.Join("../../docs/schema", k.name+".json"), string(text))
	}
	golden("../../docs/files.md", page)
}
