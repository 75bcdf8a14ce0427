package anthropic

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

const roleUser, roleAssistant = "user", "assistant"

// writer writes a conversation.
type writer struct {
	names *llmhttp.ToolNames
	asked events.Asked
	caps  providers.Capabilities
	// returns says that thinking goes back, and returned that there was any. before is
	// what stands before the next message, or nil if that does not matter.
	returns  bool
	returned bool
	before   *prefix
	messages []message
	// used are the ids on the wire, and open those of the last reply's calls that
	// have no result yet, by their own id.
	used map[string]bool
	open map[string][]string
	// unthought says that the last reply has calls and no thinking before them.
	unthought bool
}

// converse writes the conversation. returns says whether thinking goes back.
func (x *exchange) converse(returns bool) *writer {
	w := &writer{
		names: x.names, asked: events.Asked{Provider: x.req.Provider, Model: x.model}, caps: x.caps,
		returns: returns, used: map[string]bool{},
	}
	if x.caps.Preserved {
		w.before = newPrefix(x.params.System, x.params.Tools)
	}
	for _, m := range x.req.Messages {
		w.add(m)
	}
	return w
}

func (w *writer) add(m llm.Message) {
	switch m.Role {
	case llm.RoleUser:
		w.append(roleUser, w.content(m)...)
	case llm.RoleTool:
		w.append(roleUser, w.result(m))
	case llm.RoleAssistant:
		w.append(roleAssistant, w.reply(m)...)
	}
}

// append adds blocks to the last message if it has the role, else as a message.
func (w *writer) append(role string, blocks ...block) {
	n := len(w.messages)
	switch {
	case len(blocks) == 0:
		return
	case n > 0 && w.messages[n-1].Role == role:
		w.messages[n-1].Content = append(w.messages[n-1].Content, blocks...)
		w.before.add(blocks)
		return
	case n == 0 && role == roleAssistant:
		w.append(roleUser, text(leftOut)...)
	}
	w.messages = append(w.messages, message{Role: role, Content: blocks})
	w.before.add(role)
	w.before.add(blocks)
}

// leftOut stands first where the conversation would begin with a reply, which
// the API refuses.
const leftOut = "(Earlier messages are not shown.)"

func (w *writer) result(m llm.Message) block {
	id := m.CallID
	if open := w.open[id]; len(open) > 0 {
		id, w.open[id] = open[0], open[1:]
	}
	return block{Type: "tool_result", ToolUseID: id, IsError: m.Failed, Content: w.content(m)}
}

// content writes the content of a message of the user or a tool. What the model does not
// take is named in words.
func (w *writer) content(m llm.Message) []block {
	if len(m.Parts) == 0 {
		return text(m.Content)
	}
	var out []block
	for _, p := range m.Parts {
		b := block{Type: kindText, Text: p.Text}
		switch {
		case p.Type == events.PartText && blank(p.Text):
			continue
		case p.Type == events.PartText:
		case llmhttp.Takes(w.caps, m.Role, p):
			p = inline(p)
			b.Text, b.Type, b.Source = "", "image", image(p)
			if p.Type == events.PartFile {
				b.Type, b.Title, b.Source = "document", p.Name, document(p)
			}
		}
		if b.Text == "" && b.Source == nil {
			b = block{Type: kindText, Text: llmhttp.LeftOut(p)}
		}
		out = append(out, b)
	}
	return out
}

// inline returns a part with a data URL as one with data.
func inline(p events.Part) events.Part {
	rest, ok := strings.CutPrefix(p.URL, "data:")
	media, data, encoded := strings.Cut(rest, ";base64,")
	if !ok || !encoded {
		return p
	}
	if raw, err := base64.StdEncoding.DecodeString(data); err == nil {
		p.URL, p.Data, p.MediaType = "", raw, cmp.Or(p.MediaType, media)
	}
	return p
}

// image returns nil for an image in a format that the API does not take.
func image(p events.Part) *source {
	switch {
	case p.URL != "":
		return &source{Type: "url", URL: p.URL}
	case slices.Contains([]string{"image/jpeg", "image/png", "image/gif", "image/webp"}, p.MediaType):
		return &source{Type: "base64", MediaType: p.MediaType, Data: base64.StdEncoding.EncodeToString(p.Data)}
	}
	return nil
}

// document returns nil for a file that is neither PDF nor text.
func document(p events.Part) *source {
	written := strings.HasPrefix(p.MediaType, "text/") || p.MediaType == "application/json"
	switch {
	case p.MediaType == "application/pdf" && p.URL != "":
		return &source{Type: "url", URL: p.URL}
	case p.MediaType == "application/pdf":
		return &source{Type: "base64", MediaType: p.MediaType, Data: base64.StdEncoding.EncodeToString(p.Data)}
	case written && p.URL == "" && !blank(string(p.Data)):
		return &source{Type: "text", MediaType: "text/plain", Data: strings.ToValidUTF8(string(p.Data), "\uFFFD")}
	}
	return nil
}

// id returns a call's id as the API takes it: letters, digits, _ and -, and not
// twice in one conversation.
func (w *writer) id(id string) string {
	good := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, cmp.Or(id, "call"))
	unique := good
	for k := 2; w.used[unique]; k++ {
		unique = fmt.Sprintf("%s_%d", good, k)
	}
	w.used[unique] = true
	return unique
}

// input is a call's arguments: the model's own JSON if it is an object.
func input(arguments string) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &object) == nil && object != nil {
		return json.RawMessage(arguments)
	}
	if blank(arguments) {
		return json.RawMessage(`{}`)
	}
	wrapped, err := json.Marshal(map[string]string{"arguments": arguments})
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return wrapped
}

func text(content string) []block {
	if blank(content) {
		return nil
	}
	return []block{{Type: kindText, Text: content}}
}

// blank reports whether a text is one that the API refuses as empty.
func blank(text string) bool { return strings.TrimSpace(text) == "" }
