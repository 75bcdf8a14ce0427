package anthropic

import (
	"encoding/json"

	"github.com/moorebus/moorebus/internal/replyitem"
	"github.com/moorebus/moorebus/pkg/llm"
)

// reply writes a reply, with its blocks where they stood.
func (w *writer) reply(m llm.Message) []block {
	calls := make([]block, 0, len(m.Calls))
	w.open = map[string][]string{}
	for _, call := range m.Calls {
		id := w.id(call.ID)
		w.open[call.ID] = append(w.open[call.ID], id)
		calls = append(calls, block{Type: kindCall, ID: id, Input: input(call.Arguments), Name: w.names.Wire(call.Name)})
	}
	var parts []past
	if m.Asked.Matches(w.asked) {
		parts = readReasoning(m.Reasoning, w.asked.Model)
	}
	if stands(parts, m.Content) {
		m.Content = ""
	}
	end := [2]int{len(m.Content), len(calls)}
	blocks, places := w.back(parts, end)
	last := len(blocks) // the API refuses a message that ends in thinking
	for last > 0 && places[last-1] == end && !ofServer(blocks[last-1]) {
		last--
	}
	var out []block
	var at [2]int
	sources := sourcesOf(parts, m.Content)
	upTo := func(to [2]int) {
		out = append(out, passages(m.Content, at[0], to[0], sources)...)
		out = append(out, calls[at[1]:to[1]]...)
		at = to
	}
	for i, raw := range blocks[:last] {
		if raw != nil {
			upTo(places[i])
			out = append(out, block{raw: raw})
			w.returned = w.returned || !ofServer(raw)
		}
	}
	w.unthought = len(calls) > 0 && (len(out) == 0 || out[0].raw == nil || ofServer(out[0].raw))
	upTo(end)
	return out
}

// ofServer reports whether a block is of the provider's own tools, and not thinking.
func ofServer(raw json.RawMessage) bool { return replyitem.Type(raw) != "" }

// stands reports whether a text stands for a reply of the provider's blocks alone.
func stands(parts []past, text string) bool {
	var blocks []json.RawMessage
	for _, p := range parts {
		blocks = append(blocks, p.blocks...)
	}
	return text != "" && replyitem.Stand(blocks) == text
}

// back returns the blocks of a reply that go back, nil for those that do not, and what of
// the reply stands before each. end is the entire reply.
func (w *writer) back(parts []past, end [2]int) (blocks []json.RawMessage, places [][2]int) {
	for _, p := range parts {
		if len(p.blocks) == 0 {
			continue
		}
		if blocks == nil {
			places = p.Places
		} else {
			places = nil // of replies that were joined
		}
		// Thinking may be bound to other messages than these.
		thinks := w.returns && (w.before == nil || p.SHA256 == w.before.String())
		blocks = append(blocks, usable(p.blocks, thinks, end[1] > 0)...)
	}
	for len(places) > 0 && len(places) < len(blocks) && blocks[len(places)] == nil {
		places = append(places, end) // what was reasoned before the rest of a reply that was truncated
	}
	last := [2]int{}
	for _, at := range places {
		if at[0] < last[0] || at[1] < last[1] || at[0] > end[0] || at[1] > end[1] {
			places = nil // of another form of the reply
			break
		}
		last = at
	}
	if len(places) != len(blocks) {
		places = make([][2]int, len(blocks))
	}
	return blocks, places
}

// usable returns the blocks with nil for those that cannot go back: thinking unless thinks
// says so, and a use of a tool of the provider's that has no result. In a reply with calls the
// result may still come.
func usable(all []json.RawMessage, thinks, calls bool) []json.RawMessage {
	results := map[string]bool{}
	ids := make([]struct {
		ID  string `json:"id"`
		For string `json:"tool_use_id"`
	}, len(all))
	for i, raw := range all {
		_ = json.Unmarshal(raw, &ids[i]) // nil has none
		results[ids[i].For] = true
	}
	out := make([]json.RawMessage, len(all))
	for i, raw := range all {
		kind := replyitem.Type(raw)
		use := kind == "server_tool_use" || kind == "mcp_tool_use"
		if kind == "" && thinks || kind != "" && (!use || calls || results[ids[i].ID]) {
			out[i] = raw
		}
	}
	return out
}

// sourcesOf returns the passages of a text that name sources.
func sourcesOf(parts []past, text string) []cited {
	for _, p := range parts {
		if p.Length == len(text) && inOrder(p.Cited, len(text)) {
			return p.Cited
		}
	}
	return nil
}

func inOrder(all []cited, length int) bool {
	at := 0
	for _, c := range all {
		if c.From < at || c.To <= c.From || c.To > length {
			return false
		}
		at = c.To
	}
	return true
}

// passages writes a part of a text. A passage that names sources is its own block. The
// API refuses a block of white space alone, so such a text joins the passage after it.
func passages(content string, from, to int, sources []cited) (out []block) {
	for _, c := range sources {
		if c.From < from || c.To > to {
			continue
		}
		if before := text(content[from:c.From]); before != nil {
			out, from = append(out, before...), c.From
		}
		out = append(out, block{Type: kindText, Text: content[from:c.To], Citations: c.Citations})
		from = c.To
	}
	return append(out, text(content[from:to])...)
}
