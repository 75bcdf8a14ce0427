package textprotocol

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// render writes a request as plain messages: the prompts, the conversation and the
// memory. Consecutive messages of one role become one, since many local models require
// alternating roles. Images and files come after the text of their message.
func render(req *llm.Request) []llm.Message {
	memory := req.Memory
	if memory == nil {
		memory = new(llm.Memory)
	}
	var system []string
	rest := req.Messages
	for len(rest) > 0 && rest[0].Role == llm.RoleSystem {
		system, rest = append(system, rest[0].Content), rest[1:]
	}
	messages := []llm.Message{{Role: llm.RoleSystem, Content: systemPrompt(system, req, memory)}}
	for _, m := range rest {
		var media []events.Part
		m.Content, media = contentOf(m)
		switch m.Role {
		case llm.RoleAssistant:
			messages = add(messages, llm.RoleAssistant, spoken(m, req.Tools), nil)
		case llm.RoleTool:
			messages = add(messages, llm.RoleUser, result(m), media)
		default:
			messages = add(messages, m.Role, m.Content, media)
		}
	}
	messages = add(messages, llm.RoleUser, remembered(memory), nil)
	for i := range messages {
		if m := &messages[i]; len(m.Parts) > 0 {
			m.Parts = append([]events.Part{{Type: events.PartText, Text: m.Content}}, m.Parts...)
		}
	}
	return messages
}

// contentOf returns a message's text, and its images and files.
func contentOf(m llm.Message) (text string, media []events.Part) {
	if len(m.Parts) == 0 {
		return m.Content, nil
	}
	var texts []string
	for _, p := range m.Parts {
		if p.Type == events.PartText {
			texts = append(texts, p.Text)
		} else {
			media = append(media, p)
		}
	}
	return strings.Join(texts, "\n"), media
}

func add(messages []llm.Message, role llm.Role, text string, media []events.Part) []llm.Message {
	if last := &messages[len(messages)-1]; last.Role == role {
		last.Content += "\n\n" + text
		last.Parts = append(last.Parts, media...)
		return messages
	}
	return append(messages, llm.Message{Role: role, Content: text, Parts: media})
}

// spoken is an assistant message as the model would have written it.
func spoken(m llm.Message, tools []llm.Tool) string {
	switch {
	case m.Raw:
		return m.Content
	case len(m.Calls) == 0:
		return agent(inline(typeElement, answerAction) + inline(valueElement, m.Content))
	}
	parts := make([]string, len(m.Calls))
	for i, c := range m.Calls {
		fields := inline(typeElement, c.Name) + writtenArguments(c, tools)
		parts[i] = agent(fields)
		if i == 0 && m.Content != "" {
			parts[i] = "<agent>\n" + inline(logElement, m.Content) + strings.TrimPrefix(parts[i], "<agent>\n")
		}
	}
	return strings.Join(parts, "\n")
}

func agent(fields string) string {
	return "<agent>\n<action>\n" + fields + "</action>\n</agent>"
}

func inline(name, text string) string {
	return "<" + name + ">" + escape(text) + "</" + name + ">\n"
}

// writtenArguments writes each argument of a call as an element if reading them gives
// the same arguments, else all of them as JSON.
func writtenArguments(c llm.Call, tools []llm.Tool) string {
	var known []parameter
	if i := slices.IndexFunc(tools, func(t llm.Tool) bool { return t.Name == c.Name }); i >= 0 {
		known = parameters(tools[i].Schema)
	}
	asJSON := inline(argumentsElement, c.Arguments)
	decoder := json.NewDecoder(strings.NewReader(c.Arguments))
	if t, err := decoder.Token(); err != nil || t != json.Delim('{') {
		return asJSON
	}
	var b strings.Builder
	var fields []field
	for decoder.More() {
		key, err := decoder.Token()
		name, ok := key.(string)
		var raw json.RawMessage
		if err != nil || !ok || decoder.Decode(&raw) != nil || !isName(name) {
			return asJSON
		}
		value := string(raw)
		if raw[0] == '"' && json.Unmarshal(raw, &value) != nil {
			return asJSON
		}
		b.WriteString(inline(name, value))
		fields = append(fields, field{name: name, raw: escape(value)})
	}
	if len(fields) > maxFields-1 {
		return asJSON
	}
	if again, err := object(fields, known); err != nil || again != c.Arguments {
		return asJSON
	}
	return b.String()
}

// isName reports whether a name can be that of an argument's element.
func isName(name string) bool {
	if name == "" || strings.EqualFold(name, typeElement) || strings.EqualFold(name, argumentsElement) ||
		strings.EqualFold(name, actionElement) || strings.EqualFold(name, agentElement) {
		return false
	}
	for i := range len(name) {
		if !isNameByte(name[i], i == 0) {
			return false
		}
	}
	return true
}

func result(m llm.Message) string {
	return "<result>\n" + inline(typeElement, m.Name) + inline(valueElement, m.Content) + "</result>"
}

// remembered is the state, working memory and the thinking log.
func remembered(m *llm.Memory) string {
	var b strings.Builder
	b.WriteString("<memory>\n" + inline("state", state(m)))
	b.WriteString("<working_memory>\n")
	for _, entry := range m.Entries {
		b.WriteString("<entry>\n" + inline("tags", strings.Join(entry.Tags, ", ")) + inline(valueElement, entry.Value) + "</entry>\n")
	}
	b.WriteString("</working_memory>\n<thinking_log>\n")
	for _, thought := range m.Thoughts {
		name := thought.Name
		if !isName(name) {
			name = "entry"
		}
		b.WriteString(inline(name, thought.Content))
	}
	b.WriteString("</thinking_log>\n</memory>")
	return b.String()
}

func state(m *llm.Memory) string {
	if m.State == stateExecuting {
		return stateExecuting
	}
	return stateThinking
}
