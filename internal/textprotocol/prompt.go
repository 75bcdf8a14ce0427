package textprotocol

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/llm"
)

// howTo tells the model how to reply.
const howTo = `Reply with exactly one <agent> element and nothing else.

To think:
<agent>
<next_state>thinking</next_state>
<thinking_log>what you have worked out</thinking_log>
</agent>
next_state is thinking to go on thinking, or executing to act next.

To act, with exactly one action:
<agent>
<action>
<type>the action's name</type>
<argument>its value</argument>
</action>
</agent>
Each argument is an element with the argument's own name. For a list, write one element for each item. Instead, all arguments can stand as one JSON object in <arguments>.
In values, write &lt; for < and &amp; for &.
The action's <result> comes in the next message. Never write a <result> yourself.

The <memory> at the end of the conversation holds your state, your working memory and your last thoughts.`

// The states of the protocol, and the key of the prompt for both of them.
const (
	stateThinking  = "thinking"
	stateExecuting = "executing"
	promptBase     = "base"
)

// The prompts of agents that have none of their own.
var statePrompts = map[string]string{
	stateThinking:  "Your state is thinking: build chains of reasoning, analyse what you know, and decide what to do next.",
	stateExecuting: "Your state is executing: perform one action.",
}

// systemPrompt returns the text before the conversation: the agent's own prompts, how to
// reply, and the available actions.
func systemPrompt(system []string, req *llm.Request, memory *llm.Memory) string {
	now := state(memory)
	parts := append(system, memory.Prompts[promptBase])
	if own := memory.Prompts[now]; own != "" {
		parts = append(parts, own)
	} else {
		parts = append(parts, statePrompts[now])
	}
	parts = append(parts, howTo, actions(req))
	if len(req.OutputSchema) > 0 {
		parts = append(parts, "The value of "+answerName(req.Tools)+" has to be JSON, and nothing but JSON, that satisfies this JSON Schema:\n"+string(req.OutputSchema))
	}
	given := parts[:0:0]
	for _, part := range parts {
		if part != "" {
			given = append(given, part)
		}
	}
	return strings.Join(given, "\n\n")
}

// actions lists every tool, and the answer.
func actions(req *llm.Request) string {
	var b strings.Builder
	b.WriteString("The actions:\n")
	for _, t := range req.Tools {
		b.WriteString("- " + t.Name)
		if t.Description != "" {
			b.WriteString(": " + indent(t.Description))
		}
		b.WriteByte('\n')
		for _, p := range parameters(t.Schema) {
			b.WriteString(p.line())
		}
	}
	b.WriteString("- " + answerName(req.Tools) + ": Gives the final answer to the user.\n")
	b.WriteString(parameter{name: valueElement, kind: "string", required: true, description: "the answer itself"}.line())
	return strings.TrimSuffix(b.String(), "\n")
}

func (p parameter) line() string {
	var about []string
	switch {
	case p.kind == kindArray && p.items != "":
		about = append(about, "list of "+p.items)
	case p.kind == kindArray:
		about = append(about, "list")
	case p.kind == kindObject:
		about = append(about, "JSON object")
	case p.kind != "":
		about = append(about, p.kind)
	}
	if p.required {
		about = append(about, "required")
	}
	if !isName(p.name) {
		about = append(about, "only in <arguments>")
	}
	line := "  " + p.name
	if len(about) > 0 {
		line += " (" + strings.Join(about, ", ") + ")"
	}
	if p.description != "" {
		line += ": " + indent(p.description)
	}
	return line + "\n"
}

// indent keeps a description within its item of the list.
func indent(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") }

// answerName returns the name of the final answer: answer, or its alias if a tool has
// that name. If tools have both names, the tool answer cannot be called.
func answerName(tools []llm.Tool) string {
	taken := map[string]bool{}
	for _, t := range tools {
		taken[t.Name] = true
	}
	if taken[answerAction] && !taken[answerAlias] {
		return answerAlias
	}
	return answerAction
}

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
