package docschema_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/docschema"
	"github.com/moorebus/moorebus/internal/schema"
	"github.com/moorebus/moorebus/internal/script"
	"github.com/moorebus/moorebus/pkg/events"
)

var update = flag.Bool("update", false, "write docs/schema and docs/files.md anew")

// kind is a kind of file with its reader.
type kind struct {
	name   string
	schema func() (*jsonschema.Schema, error)
	read   func(data []byte) error
	// full is a document with every key.
	full string
}

var kinds = []kind{
	{"agent", docschema.Agent, func(data []byte) error {
		_, err := agentfile.ParseAgent(data, agentfile.Auto, agentfile.Options{Name: "unnamed", CheckScript: script.Check, CheckSchema: schema.Check})
		return err
	}, fullAgent},
	{"tools", docschema.Tools, func(data []byte) error {
		_, err := agentfile.ParseTools(data, agentfile.Auto)
		return err
	}, fullTools},
	{"providers", docschema.Providers, func(data []byte) error {
		_, err := agentfile.ParseProviders(data, agentfile.Auto)
		return err
	}, fullProviders},
}

const fullAgent = `{"name": "a", "description": "d", "system_prompt": "s", "task": "t", "mode": "task",
 "llm": {"provider": "scripted", "text": true, "temperature": 0.5, "top_p": 0.5, "seed": 3, "max_tokens": 9000, "stop": ["x"], "thinking_tokens": 2000,
  "state_prompts": {"base": "b"}, "script": [{"text": "hi", "confidence": 1, "usage": {"input": 1, "output": 2, "cached": 0, "total": 3, "cost_usd": 1}, "finish": "length",
   "reasoning": [{"kind": "text", "text": "t", "data": {}, "id": "i"}], "rest": {"text": "x"}},
   {"content": "c", "calls": [{"name": "n", "arguments": {}, "id": "i"}]}, {"error": {"kind": "network", "message": "m", "retry_after_ms": 3}}]},
 "models": {"default": "m", "x": {"provider": "p", "model": "m"}, "y": ["p/m", {"provider": "p", "model": "m"}]}, "on_cut": "fail",
 "reasoning": {"effort": "high", "show": true}, "record_reasoning": false,
 "config": {"max_steps": 3, "max_retries": 1, "confidence_threshold": 0.5, "reflect_every_n_steps": 2, "min_answer_length": 3, "parallel_tools": true, "context_window_size": 3,
  "expand_context_window_size": 2, "paging_limit": 100, "hard_limit": 200, "token_estimator": "o200k", "thinking_log_entries": 3, "max_iterations": 4, "max_invalid_replies": 4,
  "record_chunks": true, "max_depth": 2},
 "budget": {"max_input_tokens": 1, "max_output_tokens": 1, "max_total_tokens": 1, "max_cost_usd": 0.5, "max_wall_time": "3m"},
 "approval": {"policy": "always", "risk": "low", "tools": ["a"], "expr": "true", "expires": "1h", "outcome_unknown": "ask"},
 "output_schema": {"type": "object"}, "tools": ["a", "web/b"],
 "client_tools": [{"name": "c", "description": "d", "schema": {"type": "object"}, "risk": "low", "timeout": "5m"}], "blacklist": ["x"], "provider_tools": [{"type": "web_search"}]}`

const fullTools = `{"tools": [
 {"name": "h", "description": "d", "schema": {"type": "object"}, "http": {"url": "http://localhost/x", "method": "POST", "headers": {"A": "b"}}, "effect": "pure", "timeout": "3s",
  "retries": 2, "pool": "web", "risk": "high", "breaker": {"failures": 3, "open": "3s", "off": false}},
 {"name": "e", "exec": {"command": ["wc", "-w"], "env": {"A": "b"}, "dir": "x"}, "sandbox": "off"},
 {"name": "n", "exec": {"command": ["wc", "-w"]}, "network": "host", "read": ["/srv"], "require": ["landlock"]},
 {"builtin": "read_file", "root": "docs"}, {"builtin": "http_get", "hosts": ["example.com"]}, {"agent": "a"}, {"handoff": "b"},
 {"name": "f", "a2a": "http://localhost/card", "headers": {"A": "b"}}, {"service": "text", "pool": "web"}],
 "mcp": {"file": ".mcp.json", "pinned": "pins.json", "trust_hints": true, "servers": {"s": {"trust_hints": false, "pool": "web", "risk": "low", "effect": "once", "timeout": "3s", "tools": ["x"]}}}}`

const fullProviders = `{"mine": {"kind": "openai", "base_url": "http://localhost:1/v1", "api_key": "k", "model": "m", "headers": {"A": "b"}, "query": {"a": "b"},
 "extra_body": {"x": 1}, "like": "ollama", "capabilities": {"efforts": ["low"], "api": "chat", "body": {"x": 1}, "max_reply": 5}}, "other": {"kind": "anthropic", "api_key_env": "KEY", "max_tokens": 5}, "renewed": {"kind": "openai", "api_key_command": ["print-token"], "api_key_ttl": "5m"}}`

// compile compiles a schema with the library that checks all schemas.
func compile(t *testing.T, s *jsonschema.Schema, err error) *validator.Schema {
	t.Helper()
	require.NoError(t, err)
	text, err := docschema.Text(s)
	require.NoError(t, err)
	doc, err := validator.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := validator.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", doc))
	compiled, err := c.Compile("schema.json")
	require.NoError(t, err)
	return compiled
}

func (k kind) compiled(t *testing.T) *validator.Schema {
	s, err := k.schema()
	return compile(t, s, err)
}

// valid checks a value that is made of Go's JSON values.
func valid(t *testing.T, s *validator.Schema, v any) error {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	doc, err := validator.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	return s.Validate(doc)
}

// odd are values in place of others.
var odd = []any{nil, "", "x", "low", "5s", "-1s", 0, 1, -1, 0.5, 1e3, true, []any{}, []any{nil}, []any{"x"}, map[string]any{}, map[string]any{"x": "y"}, map[string]any{"x": nil}}

// mutations yields the document with each of its values replaced by odd ones, with each key
// left out, and with an unknown key in each mapping.
func mutations(t *testing.T, text string, yield func(what string, doc any)) {
	var doc any
	require.NoError(t, json.Unmarshal([]byte(text), &doc))
	var walk func(path string, v any, set func(any))
	walk = func(path string, v any, set func(any)) {
		for _, o := range odd {
			set(o)
			yield(fmt.Sprintf("%s = %v", path, o), doc)
		}
		set(v)
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				inner := v[key]
				delete(v, key)
				yield(path+" without "+key, doc)
				v[key] = inner
				walk(path+"."+key, inner, func(o any) { v[key] = o })
				v[key] = inner
			}
			v["unknown_key"] = "x"
			yield(path+" with an unknown key", doc)
			delete(v, "unknown_key")
		case []any:
			for i, inner := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), inner, func(o any) { v[i] = o })
				v[i] = inner
			}
		}
	}
	walk("", doc, func(o any) { doc = o })
}

// What a reader accepts matches the schema, for thousands of documents that differ from a good
// one in one value.
func TestWhatAReaderAcceptsMatchesTheSchema(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			s := k.compiled(t)
			require.NoError(t, k.read([]byte(k.full)))
			accepted, refused, both := 0, 0, 0
			mutations(t, k.full, func(what string, doc any) {
				data, err := json.Marshal(doc)
				require.NoError(t, err)
				read, matches := k.read(data), valid(t, s, doc)
				if read == nil {
					accepted++
					require.NoError(t, matches, what)
				} else if refused++; matches != nil {
					both++
				}
				if read != nil && strings.Contains(read.Error(), "unknown key") && !strings.Contains(what, ".rest") {
					require.Error(t, matches, "%s: %s", what, read)
				}
			})
			t.Logf("%d accepted; %d refused, %d of them by the schema too", accepted, refused, both)
			require.Greater(t, accepted, 30)
			require.Greater(t, both*10, refused*8, "the schema finds most of what the reader refuses")
		})
	}
}

// Every key of a file has its description.
func TestEveryKeyIsDescribed(t *testing.T) {
	for _, k := range kinds {
		s, err := k.schema()
		require.NoError(t, err)
		for _, row := range keysOf(s, "") {
			require.NotEmpty(t, row.schema.Description, "%s file: add the key %s to internal/docschema", k.name, row.path)
		}
	}
}

var modeline = regexp.MustCompile(`(?m)^# yaml-language-server: \$schema=(\S+)$`)

// Every document of the examples names the schema that it matches, and editors find it there.
func TestExamplesMatchTheirSchemas(t *testing.T) {
	compiled := map[string]*validator.Schema{}
	for _, k := range kinds {
		compiled[k.name+".json"] = k.compiled(t)
	}
	count := 0
	require.NoError(t, filepath.WalkDir("../../examples", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == "node_modules" || filepath.Ext(file) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for i, part := range strings.Split(string(text), "\n---\n") {
			named := modeline.FindStringSubmatch(part)
			require.NotNil(t, named, "%s: document %d lacks the line `# yaml-language-server: $schema=…`", file, i+1)
			_, err := os.Stat(filepath.Join(filepath.Dir(file), named[1]))
			require.NoError(t, err, file)
			var doc any
			require.NoError(t, yaml.Unmarshal([]byte(part), &doc))
			require.NoError(t, valid(t, compiled[filepath.Base(named[1])], doc), "%s: document %d", file, i+1)
			count++
		}
		return nil
	}))
	require.Greater(t, count, 8)
}

// All events of all recorded runs match their schemas, which know all of their keys.
func TestRecordedEventsMatchTheirSchemas(t *testing.T) {
	compiled := map[events.Type]*validator.Schema{}
	for _, typ := range events.Types() {
		s, err := docschema.Event(typ)
		require.NoError(t, err)
		compiled[typ] = compile(t, s, nil)
		close(s)
		compiled["closed "+typ] = compile(t, s, nil)
	}
	any, err := docschema.Events()
	all := compile(t, any, err)
	files, err := filepath.Glob("../../testdata/runs/*.jsonl")
	require.NoError(t, err)
	count := 0
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "broken_") {
			continue // its bodies are changed on purpose
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
			var record struct {
				Body json.RawMessage `json:"body"`
			}
			require.NoError(t, json.Unmarshal(line, &record), file)
			e, err := new(events.Codec).Decode(record.Body)
			if err != nil {
				continue // a poisoned record
			}
			doc, err := validator.UnmarshalJSON(bytes.NewReader(record.Body))
			require.NoError(t, err)
			require.NoError(t, compiled[e.Type()].Validate(doc), "%s line %d: %s", file, i+1, record.Body)
			if filepath.Base(file) != "foreign_writer.jsonl" { // it has keys of its own
				require.NoError(t, compiled["closed "+e.Type()].Validate(doc), "%s line %d: %s", file, i+1, record.Body)
			}
			require.NoError(t, all.Validate(doc))
			count++
		}
	}
	require.Greater(t, count, 200)
}

// close refuses keys that the schema does not name.
func close(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	for _, inner := range s.Properties {
		close(inner)
	}
	close(s.Items)
	if s.AdditionalProperties == nil && s.Properties != nil {
		s.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	} else if s.AdditionalProperties != nil && s.AdditionalProperties.Not == nil {
		close(s.AdditionalProperties)
	}
}

func TestUnknownEventType(t *testing.T) {
	_, err := docschema.Event("Strat")
	require.ErrorContains(t, err, `no event type "Strat"`)
}

var fenced = regexp.MustCompile("(?ms)^```ya?ml\n(.*?)^```")

// The documents in YAML that the pages show match their schemas. A part of an agent definition
// is completed first.
func TestExamplesOfThePages(t *testing.T) {
	compiled := map[string]*validator.Schema{}
	for _, k := range kinds {
		compiled[k.name] = k.compiled(t)
	}
	count := 0
	require.NoError(t, filepath.WalkDir("../../docs", func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".md" {
			return err
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, block := range fenced.FindAllStringSubmatch(string(text), -1) {
			for part := range strings.SplitSeq(block[1], "\n---\n") {
				var doc map[string]any
				require.NoError(t, yaml.Unmarshal([]byte(part), &doc), "%s: %s", file, part)
				kind := kindOf(doc)
				if kind == "" {
					continue
				}
				if kind == "agent" && doc["llm"] == nil {
					doc["llm"] = map[string]any{"provider": "openai"}
				}
				require.NoError(t, valid(t, compiled[kind], doc), "%s: %s", file, part)
				count++
			}
		}
		return nil
	}))
	t.Log(count)
	require.Greater(t, count, 10)
}

// kindOf says what a document is a kind of, or "" for a file of another program.
func kindOf(doc map[string]any) string {
	agents, tools := 0, 0
	for key, value := range doc {
		entry, _ := value.(map[string]any)
		switch list, _ := value.([]any); {
		case entry["kind"] != nil:
			return "providers"
		case key == "mcp", key == "tools" && len(list) > 0 && fmt.Sprintf("%T", list[0]) != "string":
			tools++
		case slices.Contains([]string{"name", "llm", "models", "config", "budget", "approval", "reasoning", "record_reasoning", "client_tools", "output_schema", "tools", "task", "system_prompt"}, key):
			agents++
		}
	}
	switch {
	case tools > 0:
		return "tools"
	case agents > 0:
		return "agent"
	}
	return ""
}
