package reducer

import (
	"slices"
	"strings"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/events"
)

// ViewMessage is one message for the model. Calls carry the provider's own
// ids, as does CallID.
type ViewMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	// Parts are the content of a user's message or a result that is more than text.
	Parts  []events.Part `json:"parts,omitempty"`
	Calls  []events.Call `json:"calls,omitempty"`
	CallID string        `json:"call_id,omitempty"`
	Name   string        `json:"name,omitempty"`
	// Failed marks the result of a call that went wrong; Reasoning is what the
	// model reasoned before a reply.
	Failed    bool             `json:"failed,omitempty"`
	Reasoning events.Reasoning `json:"reasoning,omitempty"`
	// ReasoningRef points to it where it is too large for the log.
	ReasoningRef *events.Ref `json:"reasoning_ref,omitempty"`
	// Asked is who was asked for the reply, nil in logs of older builds.
	Asked *events.Asked `json:"asked,omitempty"`
	// Raw is true for a reply of the text protocol that could not be read.
	Raw bool `json:"raw,omitempty"`
}

// summaryIntro stands before a summary in what the model sees.
const summaryIntro = "Summary of the tool calls so far: "

// View returns what the model is sent: the system prompt if there is one, then the
// conversation in order. Every call is followed by its result, and a call without a result
// is omitted. The context window counts messages and never parts a call from its result.
// The user's last message is always shown: if the window would begin after it, it replaces
// the window's oldest message, or is shown with the only one of a window of one. The cost
// grows with what is shown, not with the run.
//
// The messages are appended to view, whose capacity is used; it may be nil.
func View(view []ViewMessage, mem *Memory) []ViewMessage {
	c := &mem.Control
	first, pinned := mem.windowStart()
	view = slices.Grow(view, 2*(len(c.Turns)-first)+3)
	if mem.SystemPrompt != "" {
		view = append(view, ViewMessage{Role: "system", Content: mem.SystemPrompt})
	}
	view = mem.appendTask(view, first)
	// Calls from before the window stand before it, but never before the message
	// that they are made for.
	at := first
	if pinned != nil {
		view = mem.appendTurn(view, *pinned)
	} else if first == 0 {
		at = min(1, len(c.Turns))
	}
	for _, t := range c.Turns[first:at] {
		view = mem.appendTurn(view, t)
	}
	view = mem.appendLoaded(view, c.Turns[first:])
	for _, t := range c.Turns[at:] {
		view = mem.appendTurn(view, t)
	}
	return view
}

// windowStart is the first turn within the context window, which counts the
// user's and the assistant's messages. pinned is the user's last message where it
// lies before that. It takes as many steps as there are turns in the window.
func (mem *Memory) windowStart() (first int, pinned *Turn) {
	if r := mem.ReactContext; r != nil {
		return mem.windowOf(r.ContextWindowSize)
	}
	return 0, nil
}

// windowOf is windowStart for a window of that size; 0 shows everything.
func (mem *Memory) windowOf(size int) (first int, pinned *Turn) {
	turns := mem.Control.Turns
	if size == 0 {
		return 0, nil
	}
	// shorter is where the window begins with one message less.
	shorter, count := len(turns), 0
	for i := len(turns) - 1; i >= 0 && count < size; i-- {
		if !mem.counts(&turns[i]) {
			continue // calls alone belong to the message before them
		}
		if count++; count < size {
			shorter = i
		} else {
			first = i
		}
	}
	asked := mem.asked()
	switch {
	case count < size:
		return 0, nil
	case asked >= first || !mem.counts(&turns[asked]):
		return first, nil
	case asked == 0 && mem.speaksText():
		return first, nil // the task, which is shown in addition to the window
	case shorter == len(turns):
		return first, &turns[asked] // a window of one message keeps it
	}
	return shorter, &turns[asked]
}

// asked is the place of the user's last message among the turns, 0 if there is
// none.
func (mem *Memory) asked() int {
	c := &mem.Control
	if c.Asked < len(c.Turns) && c.Turns[c.Asked].Kind == turnUser {
		return c.Asked
	}
	return lastAsked(c.Turns) // an application's fold changed the turns
}

// lastAsked is the place of the user's last message, 0 if there is none.
func lastAsked(turns []Turn) int {
	for i := range slices.Backward(turns) {
		if turns[i].Kind == turnUser {
			return i
		}
	}
	return 0
}

// counts reports whether the window counts a turn: under the text protocol each
// one, since a call is text there as well.
func (mem *Memory) counts(t *Turn) bool { return mem.speaksText() || t.message() }

// message reports whether the turn is one of the conversation's messages, which
// are what the window counts and [Memory.Messages] holds.
func (t *Turn) message() bool {
	return t.Content != "" && !t.Aside && (t.Kind == turnUser || t.Kind == turnReply)
}

// appendLoaded shows the calls of the context that the window does not, each as
// its own reply. Under the text protocol Moorebus' own are none of them: the
// window counts each, and they leave with it.
func (mem *Memory) appendLoaded(view []ViewMessage, window []Turn) []ViewMessage {
	r, own := mem.ReactContext, mem.Control.Internal
	if mem.speaksText() {
		own = nil
	}
	if r == nil || len(r.ToolCallIDs)+len(own) == 0 {
		return view
	}
	shown := make(map[string]bool, len(r.ToolCallIDs))
	for _, t := range window {
		for _, id := range t.Calls {
			shown[id] = true
		}
	}
	load := func(id string) {
		if !shown[id] {
			view = mem.appendTurn(view, Turn{Kind: turnReply, Calls: []string{id}})
		}
	}
	for _, id := range r.ToolCallIDs {
		load(id)
	}
	for _, call := range own {
		load(call.ID)
	}
	return view
}

func (mem *Memory) appendTurn(view []ViewMessage, t Turn) []ViewMessage {
	switch t.Kind {
	case turnUser, turnNote, turnPaged:
		return append(view, ViewMessage{Role: "user", Content: t.Content, Parts: t.Parts})
	case turnSummary:
		return append(view, ViewMessage{Role: "user", Content: summaryIntro + t.Content})
	}
	reply := ViewMessage{Role: "assistant", Content: t.Content, Reasoning: t.Reasoning, ReasoningRef: t.ReasoningRef, Asked: t.Asked, Raw: t.Raw}
	at := len(view)
	view = append(view, reply)
	for i, id := range t.Calls {
		call, result, ok := mem.answered(id)
		if !ok {
			continue
		}
		if reply.Calls == nil {
			reply.Calls = make([]events.Call, 0, len(t.Calls)-i)
		}
		reply.Calls, view = append(reply.Calls, call), append(view, result)
	}
	if reply.Content == "" && len(reply.Calls) == 0 {
		return view[:at]
	}
	view[at] = reply
	if t.Interrupted {
		view = append(view, ViewMessage{Role: "user", Content: interruptedNote})
	}
	return view
}

// answered returns a call as the model made it, and the message with what it was
// answered; false where there is no answer, or it is not shown any more.
func (mem *Memory) answered(id string) (call events.Call, result ViewMessage, ok bool) {
	provider, text, failed := "", "", false
	var parts []events.Part
	if own := mem.internal(id); own != nil {
		call, provider = events.Call{Name: own.Name, Arguments: own.Arguments}, own.ProviderID
		text, failed = own.Answer, strings.HasPrefix(own.Answer, codes.ErrorPrefix)
	} else if record := mem.ToolCalls[id]; record != nil && record.Result != nil {
		call, provider = events.Call{Name: record.Name, Arguments: record.Parameters}, record.ProviderID
		text, failed = record.Result.Text(), record.Result.Failed != nil
		parts = attached(text, record.Attachments)
	} else {
		return call, result, false
	}
	if call.ID = id; provider != "" {
		call.ID = provider
	}
	return call, ViewMessage{Role: "tool", Content: text, Parts: parts, CallID: call.ID, Name: call.Name, Failed: failed}, true
}

// attached returns a result as parts, nil if nothing is attached that models take: its text,
// which says of each attachment what it is, and then the attachments.
func attached(text string, attachments []events.Attachment) []events.Part {
	var parts []events.Part
	for i := range attachments {
		part, shown := attachments[i].Part()
		if !shown {
			continue
		}
		if parts == nil && text != "" {
			parts = append(parts, events.Part{Type: events.PartText, Text: text})
		}
		parts = append(parts, part)
	}
	return parts
}
