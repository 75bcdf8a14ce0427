package reducer

import (
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
)

// empty reports whether a reply held nothing.
func empty(p *events.RefusedReply) bool {
	return len(p.Results) == 1 && p.Results[0].Code == codes.EmptyReply
}

// unread reports whether a reply of the text protocol could not be decoded, or whether only
// its beginning is there.
func unread(p *events.RefusedReply) bool {
	return len(p.Results) == 1 && (p.Results[0].Code == codes.MalformedReply || p.Results[0].Code == codes.TooLarge)
}

// speaksText reports whether the run's model speaks the text protocol.
func (mem *Memory) speaksText() bool { return mem.Control.Agent.LLM.Text }

// beginText puts a run whose agent was pinned into the text protocol's first
// state, or out of the protocol.
func (mem *Memory) beginText() {
	mem.Control.TextState = ""
	if mem.speaksText() {
		mem.Control.TextState = events.TextThinking
	}
}

// passText is what any reply does to the state of the text protocol: after an
// action, a refused one too, the model thinks again. A thought then says more.
func (mem *Memory) passText() {
	mem.Control.SinceUser.Invalid = 0
	mem.beginText()
}

// enterText sets the state that a thought ends in. It may be an unknown one.
func (mem *Memory) enterText(next string) {
	if mem.speaksText() && next != "" {
		mem.Control.TextState = next
	}
}

// foldInvalidReply is foldRefusedReply, and counts how many came in a row: empty ones, and
// under the text protocol all. What could not be read there is no message of the
// conversation: only the model sees it again.
func (mem *Memory) foldInvalidReply(e *events.Event, p *events.RefusedReply) {
	before := mem.Control.SinceUser
	if !mem.speaksText() || !unread(p) {
		mem.foldRefusedReply(e, p)
	} else {
		mem.pass(p.Usage)
		if p.Content != "" {
			mem.addTurn(Turn{Kind: turnReply, Content: p.Content, Raw: true})
		}
		mem.addTurn(Turn{Kind: turnNote, Content: p.Results[0].Observation})
	}
	if empty(p) {
		mem.Control.SinceUser.Empty = before.Empty + 1
	}
	if mem.speaksText() {
		mem.Control.SinceUser.Invalid = before.Invalid + 1
	}
}

// LastRefusal returns the text for the model about its last reply that could not be used;
// empty if there is none.
func LastRefusal(mem *Memory) string {
	turns := mem.Control.Turns
	for i := len(turns) - 1; i >= 0; i-- {
		switch t := turns[i]; {
		case t.Kind == turnNote:
			return t.Content
		case t.Kind == turnReply && len(t.Calls) > 0:
			if record := mem.ToolCalls[t.Calls[0]]; record != nil && record.Result != nil {
				return record.Result.Text()
			}
		}
	}
	return ""
}

// LastRefusals returns how many of the model's last answers, without a break, were refused
// with a text that begins with prefix, and the rest of the last one's text.
func LastRefusals(mem *Memory, prefix string) (count int, last string) {
	for _, t := range slices.Backward(mem.Control.Turns) {
		if t.Kind == turnReply && len(t.Calls) == 0 {
			continue // the answer itself
		}
		why, is := strings.CutPrefix(t.Content, prefix)
		if t.Kind != turnNote || !is {
			break
		}
		if count++; count == 1 {
			last = why
		}
	}
	return count, last
}

// Windowed is how many messages the context window counts at most. Under the text
// protocol every turn is one, since a call is text there as well.
func (mem *Memory) Windowed() int {
	if mem.speaksText() {
		return len(mem.Control.Turns)
	}
	return len(mem.Messages)
}

// appendTask shows the task to a model that speaks the text protocol, also where
// the window, which begins with the turn first, does not reach it.
func (mem *Memory) appendTask(view []ViewMessage, first int) []ViewMessage {
	if first == 0 || !mem.speaksText() {
		return view
	}
	return mem.appendTurn(view, mem.Control.Turns[0])
}
