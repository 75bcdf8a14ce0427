// Package replyitem reads the items of a model's reply that are neither text, nor calls, nor
// reasoning: what the provider's own tools did, compactions, and messages with a phase. The
// log keeps them as the provider sent them. This package says in words what they are.
package replyitem

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Message is the type of an item that is a message of the model.
const Message = "message"

// item has what is shown of any item, in the words of the Responses API and the Messages API.
type item struct {
	Type   string          `json:"type"`
	Name   string          `json:"name"`
	Server string          `json:"server_label"`
	Status string          `json:"status"`
	Phase  string          `json:"phase"`
	Action details         `json:"action"`
	Input  details         `json:"input"`
	Texts  json.RawMessage `json:"content"`
	Error  json.RawMessage `json:"error"`
	details
}

// details say what a tool was asked for.
type details struct {
	Query   string   `json:"query"`
	Queries []string `json:"queries"`
	URL     string   `json:"url"`
	Pattern string   `json:"pattern"`
	Code    string   `json:"code"`
	Command string   `json:"command"`
}

// UnmarshalJSON reads an object; anything else says nothing.
func (d *details) UnmarshalJSON(raw []byte) error {
	type plain details
	_ = json.Unmarshal(raw, (*plain)(d)) // it reads on after a value of another form
	return nil
}

func (d details) words() string {
	for _, s := range []string{d.Query, strings.Join(d.Queries, "; "), d.URL, d.Pattern, d.Code, d.Command} {
		if s != "" {
			return s
		}
	}
	return ""
}

// UnmarshalJSON reads each key that has the expected form.
func (i *item) UnmarshalJSON(raw []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return err
	}
	for key, into := range map[string]any{
		"type": &i.Type, "name": &i.Name, "server_label": &i.Server, "status": &i.Status, "phase": &i.Phase,
		"action": &i.Action, "input": &i.Input, "content": &i.Texts, "error": &i.Error,
	} {
		if value, ok := keys[key]; ok {
			_ = json.Unmarshal(value, into) // a value of another form is not shown
		}
	}
	return i.details.UnmarshalJSON(raw)
}

// read reads an item; false if the value is none.
func read(data json.RawMessage) (i item, ok bool) {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' || json.Unmarshal(data, &i) != nil {
		return i, false
	}
	switch {
	case i.Type == "", i.Type == "thinking", i.Type == "redacted_thinking", i.Type == "text", strings.HasPrefix(i.Type, "reasoning"):
		return i, false
	}
	return i, true
}

// Type returns the item's type, empty if the value is no item.
func Type(data json.RawMessage) string {
	i, ok := read(data)
	if !ok {
		return ""
	}
	return i.Type
}

// maxShown bounds what is shown of an item, in characters.
const maxShown = 300

// Shown says in one line what an item is, such as `web_search_call: weather in Bern
// (completed)`. A message is its text if it has a phase other than the final answer's. It is
// empty for what is no item.
func Shown(data json.RawMessage) string {
	i, ok := read(data)
	switch {
	case !ok, i.Type == Message && (i.Phase == "" || i.Phase == "final_answer"):
		return ""
	case i.Type == Message:
		return cut(i.Phase + ": " + texts(i.Texts))
	}
	line := i.Type
	for _, name := range []string{i.Server, i.Name} {
		if name != "" {
			line += " " + name
		}
	}
	for _, words := range []string{i.Action.words(), i.Input.words(), i.details.words(), results(i.Texts)} {
		if words != "" {
			line += ": " + words
			break
		}
	}
	switch {
	case len(i.Error) > 0 && string(i.Error) != "null":
		line += " (failed)"
	case i.Status != "":
		line += " (" + i.Status + ")"
	}
	return cut(line)
}

// Stand is the text that stands for a reply which consists of items alone, or empty if they
// are nothing that a reader could take for an answer.
func Stand(all []json.RawMessage) string {
	var lines []string
	for _, data := range all {
		if i, ok := read(data); ok && i.Type != Message && i.Type != "compaction" {
			lines = append(lines, "["+Shown(data)+"]")
		}
	}
	return strings.Join(lines, "\n")
}

// texts joins the texts of a message's content.
func texts(content json.RawMessage) string {
	var plain string
	if json.Unmarshal(content, &plain) == nil {
		return plain
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(content, &parts) // a content of another form has no text
	var all []string
	for _, p := range parts {
		all = append(all, p.Text)
	}
	return strings.Join(all, "")
}

// results says how much a result holds, or what went wrong.
func results(content json.RawMessage) string {
	var list []json.RawMessage
	var failed struct {
		Code string `json:"error_code"`
	}
	switch {
	case len(content) == 0:
		return ""
	case json.Unmarshal(content, &list) == nil && list != nil:
		return fmt.Sprintf("%d results", len(list))
	case json.Unmarshal(content, &failed) == nil && failed.Code != "":
		return failed.Code
	}
	return texts(content)
}

func cut(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > maxShown {
		return string(runes[:maxShown-1]) + "…"
	}
	return text
}
