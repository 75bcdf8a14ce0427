package responses

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// thought is an item that is sent back: reasoning, one of the provider's own, or a message.
// before is the number of items of the reply that stand before it: its calls, and its text,
// which counts as one. A message has what it says, nil for all of the reply's text.
type thought struct {
	item    item
	before  int
	message bool
	said    *string
}

// The parts of an item have its id as theirs, with the number of items before it if there
// are any: rs_1, rs_2@1. An item of the provider's own, and a message that has a phase or
// names sources, is one opaque part: an object.

func thoughtID(id string, before int) string {
	if before == 0 || id == "" {
		return id
	}
	return id + "@" + strconv.Itoa(before)
}

// readReasoning returns the items that the parts of a reply come from. Reasoning without
// encrypted content is none if it only has a summary: the server could not know it again.
// Parts without an id are of other APIs.
func readReasoning(parts events.Reasoning) []thought {
	var all []thought
	for len(parts) > 0 {
		if isItem(parts[0]) {
			if t, ok := readItem(parts[0]); ok {
				all = append(all, t)
			}
			parts = parts[1:]
			continue
		}
		n := 1
		for n < len(parts) && parts[n].ID == parts[0].ID && !isItem(parts[n]) {
			n++
		}
		if t, ok := readThought(parts[:n]); ok {
			all = append(all, t)
		}
		parts = parts[n:]
	}
	return all
}

// isItem reports whether a part is an entire item.
func isItem(p events.ReasoningPart) bool {
	return p.Kind == events.ReasoningOpaque && p.ID != "" && bytes.HasPrefix(p.Data, []byte("{"))
}

// unfinished are the statuses of items that did not come to an end. They cannot go back.
var unfinished = map[string]bool{"in_progress": true, "incomplete": true, "searching": true, "interpreting": true, "generating": true, "calling": true}

// readItem reads an item of the provider's own, or a message.
func readItem(p events.ReasoningPart) (t thought, ok bool) {
	var in struct {
		output
		Role   string `json:"role"`
		Status string `json:"status"`
	}
	if json.Unmarshal(p.Data, &in) != nil || in.Type == "" {
		return t, false
	}
	_, at, _ := strings.Cut(p.ID, "@")
	t.before, _ = strconv.Atoi(at) // 0 where it stands first
	t.item = item{Type: string(in.Type), raw: p.Data}
	if in.Type != typeMessage {
		return t, !unfinished[in.Status]
	}
	t.message, t.item.Phase = true, string(in.Phase)
	if in.Content == nil {
		t.item.raw, t.item.Role = nil, string(llm.RoleAssistant)
		return t, true
	}
	text := in.Content.text()
	t.said = &text
	return t, true
}

// readThought makes an item of the parts of reasoning.
func readThought(parts events.Reasoning) (thought, bool) {
	id, at, _ := strings.Cut(parts[0].ID, "@")
	t := thought{item: item{Type: typeReasoning, ID: id}}
	t.before, _ = strconv.Atoi(at) // 0 where it stands first
	summary := []part{}            // the API wants a list
	var content []part
	for _, p := range parts {
		switch p.Kind {
		case events.ReasoningSummary:
			summary = append(summary, part{Type: summaryText, Text: p.Text})
		case events.ReasoningText:
			content = append(content, part{Type: reasoningText, Text: p.Text})
		case events.ReasoningOpaque:
			var encrypted string
			if json.Unmarshal(p.Data, &encrypted) == nil && encrypted != "" {
				t.item.Encrypted = p.Data
			}
		}
	}
	t.item.Summary = summary
	if content != nil {
		t.item.Content = content
	}
	return t, id != "" && (t.item.Encrypted != nil || content != nil)
}

// asks are the items by which a model asks the client to do something that no call of a
// function says. Moorebus answers none of them.
var asks = map[string]string{
	"computer_call": "computer_call_output", "local_shell_call": "local_shell_call_output", "shell_call": "shell_call_output",
	"apply_patch_call": "apply_patch_call_output", "custom_tool_call": "custom_tool_call_output", "mcp_approval_request": "mcp_approval_response",
}

// unanswered returns the type of an item that the provider wants an answer to, or nothing.
// What the provider answered itself is no such item.
func (a *assembly) unanswered() string {
	for i, p := range a.order {
		answer, asks := asks[p.kind]
		for _, q := range a.order[i:] {
			asks = asks && q.kind != answer
		}
		if asks {
			return p.kind
		}
	}
	return ""
}

// keepsMessages reports whether the messages of a reply are kept as items: if one has a phase
// or names sources.
func (a *assembly) keepsMessages() bool {
	for _, p := range a.order {
		if p.kind == typeMessage && (p.phase != "" || p.cites()) {
			return true
		}
	}
	return false
}

// messageItem is a message as the log keeps it. text is the reply's; a message that says all
// of it and names no sources is kept without it.
func (p *piece) messageItem(text string) json.RawMessage {
	switch said := p.text.String(); {
	case said == text && !p.cites():
		return llmhttp.JSON(map[string]any{"type": typeMessage, "phase": p.phase})
	case p.raw != nil:
		return p.raw
	default:
		return llmhttp.JSON(map[string]any{
			"type": typeMessage, "role": "assistant", "phase": p.phase,
			"content": []any{map[string]any{"type": "output_text", "text": said, "annotations": []any{}}},
		})
	}
}
