package builtin

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/pkg/tool"
)

// The names of the tools by which an agent uses its memory.
const (
	workingMemoryAdd    = "working_memory_add"
	workingMemoryRemove = "working_memory_remove"
	storageLoad         = "storage_load"
	storageSave         = "storage_save"
	storageSearch       = "storage_search"
)

// MemoryNames returns the names of the tools for memory, sorted.
func MemoryNames() []string {
	return []string{storageLoad, storageSave, storageSearch, workingMemoryAdd, workingMemoryRemove}
}

// The parts of the schemas.
const (
	tagsSchema = `"tags":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}],` +
		`"description":"Tags, as a list or separated by commas. They are a set: their order does not matter, and spaces become underscores"}`
	valueSchema = `"value":{"type":"string","description":"The text to remember","minLength":1}`
	findSchema  = `"value":{"type":"string","description":"Text that the value has to hold, in upper or lower case"}`
)

func objectSchema(properties string, required ...string) string {
	names, err := json.Marshal(required)
	if err != nil || required == nil {
		names = []byte("[]")
	}
	return `{"type":"object","properties":{` + properties + `},"required":` + string(names) + `,"additionalProperties":false}`
}

// remember is a tool that acts on the memory of its call's run.
type remember struct {
	def  tool.Definition
	verb callctx.Verb
}

// newRemember returns the tool of that name, nil if it is another kind of tool.
func newRemember(name string) tool.Tool {
	switch name {
	case workingMemoryAdd:
		return remembering(name, callctx.Add, "Puts a text into working memory under a set of tags, in the place of one with the same tags. "+
			"When working memory is full, the oldest texts go to storage.", objectSchema(tagsSchema+","+valueSchema, "tags", "value"))
	case workingMemoryRemove:
		return remembering(name, callctx.Remove, "Removes the text with exactly these tags from working memory.", objectSchema(tagsSchema, "tags"))
	case storageLoad:
		return remembering(name, callctx.Load, "Copies from storage into working memory every text that has all of these tags.", objectSchema(tagsSchema, "tags"))
	case storageSave:
		return remembering(name, callctx.Save, "Keeps a text in storage under a set of tags, in the place of one with the same tags. "+
			"Storage outlives this task.", objectSchema(tagsSchema+","+valueSchema, "tags", "value"))
	case storageSearch:
		return remembering(name, callctx.Search, "Lists the texts in storage that have all of these tags and hold the value; both may be left out.",
			objectSchema(tagsSchema+","+findSchema))
	}
	return nil
}

// remembering makes a tool. What it does can be done again: the same tags replace.
func remembering(name string, verb callctx.Verb, description, schema string) tool.Tool {
	def := definition(name, description, schema)
	def.Effect, def.Retries = tool.Idempotent, 2
	return &remember{def: def, verb: verb}
}

func (m *remember) Definition() tool.Definition { return m.def }

// UsesMemory marks the tool, see [callctx.UsesMemory].
func (m *remember) UsesMemory() {}

// Run carries out the call's action on the memory of its run.
func (m *remember) Run(ctx context.Context, call tool.Call) (string, error) {
	memory := callctx.MemoryOf(ctx)
	if memory == nil {
		return "", tool.Failf("no_memory", "%s acts on an agent's memory, and there is none here", m.def.Name)
	}
	action, err := m.action(call)
	if err != nil {
		return "", err
	}
	return memory(ctx, action)
}

// action reads {"tags", "value"?}. Tags are an array of strings, or one string. Commas
// separate tags.
func (m *remember) action(call tool.Call) (callctx.Action, error) {
	var in struct {
		Tags  json.RawMessage `json:"tags"`
		Value *string         `json:"value"`
	}
	if err := decode(call.Arguments, &in); err != nil {
		return callctx.Action{}, err
	}
	a := callctx.Action{Verb: m.verb}
	var err error
	if a.Tags, err = tags(in.Tags); err != nil {
		return a, err
	}
	if in.Value != nil {
		a.Value = *in.Value
	}
	stores := m.verb == callctx.Add || m.verb == callctx.Save
	switch {
	case len(a.Tags) == 0 && m.verb != callctx.Search:
		return a, invalid("%s needs tags: give at least one, as in {\"tags\": \"plan, today\"}", m.def.Name)
	case a.Value == "" && stores:
		return a, invalid("%s needs a value: give the text to remember as {\"value\": \"…\"}", m.def.Name)
	case in.Value != nil && !stores && m.verb != callctx.Search:
		return a, invalid("%s takes tags alone, and no value", m.def.Name)
	}
	return a, nil
}

// tags reads a string or an array of strings; what is missing or null is none.
func tags(raw json.RawMessage) ([]string, error) {
	var one string
	var list []string
	if len(raw) > 0 && json.Unmarshal(raw, &one) != nil && json.Unmarshal(raw, &list) != nil {
		return nil, invalid("tags must be a string, with commas between the tags, or an array of strings; is %.100s", raw)
	}
	var all []string
	for _, text := range append(list, one) {
		for tag := range strings.SplitSeq(text, ",") {
			// Any white space counts as a space, so that a tag is one line.
			tag = strings.Map(blank, strings.TrimSpace(tag))
			if tag != "" {
				all = append(all, tag)
			}
		}
	}
	return all, nil
}

func blank(r rune) rune {
	if r == '\t' || r == '\n' || r == '\r' {
		return ' '
	}
	return r
}
