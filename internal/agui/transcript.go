package agui

import (
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// transcript is the conversation as a client has it that heard every event: it applies events
// as the protocol's client does.
type transcript struct {
	messages []Message
}

func (t *transcript) find(id string) int {
	return slices.IndexFunc(t.messages, func(m Message) bool { return m.ID == id })
}

// open returns the message, which it adds if it is not there.
func (t *transcript) open(id, role string) *Message {
	i := t.find(id)
	if i < 0 {
		i = len(t.messages)
		t.messages = append(t.messages, Message{ID: id, Role: role})
	}
	return &t.messages[i]
}

func (t *transcript) remove(id string) {
	t.messages = slices.DeleteFunc(t.messages, func(m Message) bool { return m.ID == id })
}

// write adds text to a message, which it adds if it is not there.
func (t *transcript) write(id, role, text string) {
	m := t.open(id, role)
	before, _ := m.Content.(string)
	m.Content = before + text
}

// call adds a call to an assistant's message.
func (t *transcript) call(parent string, call ToolCall) {
	m := t.open(parent, roleAssistant)
	m.ToolCalls = append(m.ToolCalls, call)
}

// result adds the result of a call after the message that made the call, and after the results
// that are there.
func (t *transcript) result(id, callID, content string) {
	at := slices.IndexFunc(t.messages, func(m Message) bool {
		return slices.ContainsFunc(m.ToolCalls, func(c ToolCall) bool { return c.ID == callID })
	}) + 1
	if at == 0 {
		at = len(t.messages)
	}
	for at < len(t.messages) && t.messages[at].Role == roleTool {
		at++
	}
	t.messages = slices.Insert(t.messages, at, Message{ID: id, Role: roleTool, ToolCallID: callID, Content: content})
}

// user adds a message of the user.
func (t *transcript) user(id, text string, parts []events.Part) {
	m := t.open(id, roleUser)
	m.Content = text
	if len(parts) > 0 {
		m.Content = partsOf(parts)
	}
}

// partsOf writes parts of a message as the protocol has them.
func partsOf(parts []events.Part) []map[string]any {
	all := make([]map[string]any, len(parts))
	for i, p := range parts {
		if p.Type == events.PartText {
			all[i] = map[string]any{"type": "text", "text": p.Text}
			continue
		}
		source := map[string]any{"mimeType": p.MediaType}
		switch {
		case p.Ref != nil:
			source["type"], source["value"], source["provider"] = "file", p.Ref.Key, "moorebus"
		case p.URL != "":
			source["type"], source["value"] = "url", p.URL
		default:
			source["type"], source["value"] = "data", p.Data
		}
		typ := "document"
		if p.Type == events.PartImage {
			typ = "image"
		}
		all[i] = map[string]any{"type": typ, "source": source}
	}
	return all
}

// snapshot returns the messages for a client that has some already. Those that nobody else
// knows keep their places among the others.
func (t *transcript) snapshot(client []Message) []Message {
	has := map[string]bool{}
	for _, m := range client {
		has[m.ID] = true
	}
	all := make([]Message, 0, len(t.messages)+len(client))
	next := 0
	missed := func() {
		for ; next < len(t.messages) && !has[t.messages[next].ID]; next++ {
			all = append(all, t.messages[next])
		}
	}
	missed()
	for _, m := range client {
		if at := t.find(m.ID); at >= next {
			all = append(all, t.messages[next:at+1]...)
			next = at + 1
			missed()
		} else if at < 0 {
			all = append(all, m)
		}
	}
	return append(all, t.messages[next:]...)
}
