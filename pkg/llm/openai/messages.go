package openai

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/providers"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// messages writes the conversation. Reasoning goes back as the table says, and only to the
// model that it is from. Images of tool results follow in a user message, since a tool's
// message may only hold text.
func (x *exchange) messages() []message {
	in := x.req.Messages
	turn := lastIndex(in, llm.RoleUser)
	out := make([]message, 0, len(in))
	var images []part
	for i, m := range in {
		if m.Role != llm.RoleTool && len(images) > 0 {
			out, images = append(out, ofTools(images)), nil
		}
		w := message{Role: string(m.Role), ToolCallID: m.CallID}
		parts := m.Parts
		if m.Role == llm.RoleTool {
			w.Name = x.names.Wire(m.Name)
			var others []part
			parts, others = x.parted(parts)
			images = append(images, others...)
		}
		w.Content = x.content(m, parts)
		for _, c := range m.Calls {
			w.ToolCalls = append(w.ToolCalls, call{ID: c.ID, Type: typeFunction, Function: function{x.names.Wire(c.Name), c.Arguments}})
		}
		if len(w.ToolCalls) > 0 && m.Content == "" {
			w.Content = nil
		}
		if m.Role == llm.RoleAssistant && x.goesBack(len(m.Calls) > 0, i > turn) {
			x.sendBack(&w, m)
		}
		out = append(out, w)
	}
	if len(images) > 0 {
		out = append(out, ofTools(images))
	}
	if x.caps.MistralMessages {
		out = forMistral(out)
	}
	return out
}

// forMistral writes the ids of calls and the order of messages as Mistral wants them.
func forMistral(in []message) (out []message) {
	for i, m := range in {
		if i > 0 && m.Role == string(llm.RoleUser) && in[i-1].Role == string(llm.RoleTool) {
			out = append(out, message{Role: string(llm.RoleAssistant), Content: "OK."})
		}
		for at := range m.ToolCalls {
			m.ToolCalls[at].ID = mistralID(m.ToolCalls[at].ID)
		}
		if m.Role == string(llm.RoleTool) {
			m.ToolCallID = mistralID(m.ToolCallID)
		}
		out = append(out, m)
	}
	return out
}

var mistralIDs = regexp.MustCompile(`^[a-zA-Z0-9]{9}$`)

// mistralID returns Mistral's own ids as they are, and a digest of any other.
func mistralID(id string) string {
	if mistralIDs.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return base32.StdEncoding.EncodeToString(sum[:])[:9]
}

func lastIndex(in []llm.Message, role llm.Role) int {
	for i := len(in) - 1; i >= 0; i-- {
		if in[i].Role == role {
			return i
		}
	}
	return -1
}

// ofTools is the message with the images of the tool results before it.
func ofTools(images []part) message {
	return message{Role: string(llm.RoleUser), Content: append([]part{{Type: "text", Text: "(From the tool results above:)"}}, images...)}
}

// parted parts the images and files of a tool result that the model takes in a user message
// from what its own message can hold.
func (x *exchange) parted(all []events.Part) (own []events.Part, others []part) {
	for _, p := range all {
		if w, ok := x.part(p); ok && p.Type != events.PartText && llmhttp.Takes(x.caps, llm.RoleUser, p) {
			others = append(others, w)
			continue
		}
		own = append(own, p)
	}
	return own, others
}

// content is a text, or a list of parts if the message holds an image or a file. A part that
// cannot be sent becomes words.
func (x *exchange) content(m llm.Message, parts []events.Part) any {
	if len(m.Parts) == 0 {
		return m.Content
	}
	var list []part
	var texts []string
	plain := true
	for _, p := range parts {
		w, ok := x.part(p)
		if !ok || !llmhttp.Takes(x.caps, llm.RoleUser, p) || m.Role == llm.RoleTool && p.Type != events.PartText {
			w = part{Type: "text", Text: llmhttp.LeftOut(p)}
		}
		plain = plain && w.Type == "text"
		texts = append(texts, w.Text)
		list = append(list, w)
	}
	if plain {
		return strings.Join(texts, "\n")
	}
	return list
}

// part returns the part as it is sent, and whether the API has a form for it.
func (x *exchange) part(p events.Part) (part, bool) {
	switch {
	case p.Type == events.PartText:
		return part{Type: "text", Text: p.Text}, true
	case p.Type == events.PartImage:
		return part{Type: "image_url", ImageURL: &imageURL{llmhttp.DataURL(p)}}, true
	case p.Type == events.PartFile && len(p.Data) > 0:
		return part{Type: "file", File: &file{p.Name, llmhttp.DataURL(p)}}, true
	}
	return part{}, false
}

// wantsText reports whether the text of a reply's reasoning goes back, and not only its opaque
// parts.
func (x *exchange) wantsText(reasoning events.Reasoning, calls bool) bool {
	switch x.caps.ReasoningField {
	case "extra_content":
		return false
	case "reasoning_details":
		if opaque(reasoning) {
			return false
		}
	}
	return len(reasoning) > 0 && x.goesBack(calls, true)
}

// goesBack reports whether an assistant message is sent with its reasoning. Recent means that
// no user has spoken since.
func (x *exchange) goesBack(calls, recent bool) bool {
	switch x.caps.ReasoningBack {
	case providers.BackAlways:
		return true
	case providers.BackCalls:
		return calls
	case providers.BackTurn:
		return calls && recent
	}
	return false
}

// sendBack adds the reasoning of m to the message.
func (x *exchange) sendBack(w *message, m llm.Message) {
	var own events.Reasoning
	if m.Asked.Matches(events.Asked{Provider: x.req.Provider, Model: x.model}) {
		own = m.Reasoning
	}
	text := ""
	for _, p := range own {
		if p.Kind != events.ReasoningOpaque {
			text += p.Text
		}
	}
	known := text != "" || x.caps.ReasoningRequired
	if text == "" {
		text = x.caps.ReasoningStandIn
	}
	switch field := x.caps.ReasoningField; {
	case field == "extra_content":
		x.sign(w, own)
	case field == "reasoning_details" && opaque(own):
		for _, p := range own {
			if p.Kind == events.ReasoningOpaque {
				w.ReasoningDetails = append(w.ReasoningDetails, p.Data)
			}
		}
	case !known:
	case field == "reasoning_content":
		w.ReasoningContent = &text
	case field == "reasoning", field == "reasoning_details":
		w.Reasoning = &text
	case field == "content":
		list := []part{{Type: "thinking", Thinking: []part{{Type: "text", Text: text}}}}
		if m.Content != "" {
			list = append(list, part{Type: "text", Text: m.Content})
		}
		w.Content = list
	case field == "think_tags":
		w.Content = "<think>" + text + "</think>" + m.Content
	}
}

func opaque(parts events.Reasoning) bool {
	return slices.ContainsFunc(parts, func(p events.ReasoningPart) bool { return p.Kind == events.ReasoningOpaque })
}

// sign adds the signatures of the message and of its calls. Where every reply with calls must
// be signed and this one is not, its first call gets the stand-in.
func (x *exchange) sign(w *message, own events.Reasoning) {
	signed := false
	for _, p := range own {
		if p.Kind != events.ReasoningOpaque {
			continue
		}
		if p.ID == "" {
			w.ExtraContent = p.Data
			continue
		}
		for i := range w.ToolCalls {
			if w.ToolCalls[i].ID == p.ID {
				w.ToolCalls[i].ExtraContent, signed = p.Data, true
			}
		}
	}
	if !signed && x.caps.CallSignature != "" && len(w.ToolCalls) > 0 {
		w.ToolCalls[0].ExtraContent, _ = json.Marshal(map[string]any{ // strings always encode
			"google": map[string]any{"thought_signature": x.caps.CallSignature},
		})
	}
}
