package responses

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/replyitem"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// phaseFinal is the phase of a message that is the answer.
const phaseFinal = "final_answer"

// passage is a message of a reply: its text and its phase, which may be empty.
type passage struct{ phase, text string }

// wording is the text of a reply that has the messages. With calls that is all of them. An
// answer is what its provider calls the final one, if there is any: the rest was said on the
// way to it.
func wording(all []passage, calls bool) string {
	isFinal := func(p passage) bool { return p.phase == phaseFinal && p.text != "" }
	if final := slices.ContainsFunc(all, isFinal); final && !calls {
		all = slices.DeleteFunc(slices.Clone(all), func(p passage) bool { return !isFinal(p) })
	}
	var b strings.Builder
	for _, p := range all {
		if p.phase != "" && p.text != "" && b.Len() > 0 {
			b.WriteString("\n\n")
		}
		b.WriteString(p.text)
	}
	return b.String()
}

// reply returns the items of a reply that the model or another one gave: its messages and its
// calls, with reasoning and the provider's own items where they stood.
func (x *exchange) reply(m *llm.Message) []item {
	var said []item
	if m.Content != "" {
		said = append(said, item{Type: typeMessage, Role: string(m.Role), Content: m.Content})
	}
	for _, c := range m.Calls {
		said = append(said, item{Type: typeCall, CallID: c.ID, Name: x.names.Wire(c.Name), Arguments: c.Arguments})
	}
	if !m.Asked.Matches(events.Asked{Provider: x.req.Provider, Model: x.params.Model}) {
		return said
	}
	past := readReasoning(m.Reasoning)
	past, kept := withMessages(past, m)
	if kept || stands(past, m.Content) {
		said = said[1:]
	}
	return between(past, said, kept)
}

// withMessages completes the messages among the items that a reply had. They stand for its
// text if they still say what it says: kept. Else they are omitted.
func withMessages(past []thought, m *llm.Message) (all []thought, kept bool) {
	var said []passage
	for i := range past {
		if t := &past[i]; t.message {
			if t.said == nil { // the text alone
				t.item.Content, t.said = m.Content, &m.Content
			}
			said = append(said, passage{t.item.Phase, *t.said})
		}
	}
	if m.Content != "" && wording(said, len(m.Calls) > 0) == m.Content {
		return past, true
	}
	return slices.DeleteFunc(past, func(t thought) bool { return t.message }), false
}

// stands reports whether a text stands for a reply of the provider's items alone.
func stands(past []thought, text string) bool {
	if text == "" {
		return false
	}
	var items []json.RawMessage
	for _, t := range past {
		items = append(items, t.item.raw)
	}
	return replyitem.Stand(items) == text
}

// between puts the items of a reply where they stood among its text and its calls. kept says
// that the text is among the items. The API refuses reasoning that nothing follows.
func between(past []thought, said []item, kept bool) []item {
	var all []item
	placed, spoken := 0, 0
	for _, t := range past {
		for placed < t.before-spoken && placed < len(said) {
			all = append(all, said[placed])
			placed++
		}
		all = append(all, t.item)
		if kept && t.message && *t.said != "" {
			spoken = 1 // the text counts among what stands before an item
		}
	}
	all = append(all, said[placed:]...)
	end := len(all)
	for end > 0 && all[end-1].Type == typeReasoning {
		end--
	}
	if end == 0 {
		return nil
	}
	last := all[end-1]
	return append(append(all[:end-1:end-1], all[end:]...), last)
}
