package reducer

import (
	"fmt"
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// InternalCall is a call of one of Moorebus' own tools, which edit the model's
// context and nothing else. Answer is what the model is told.
type InternalCall struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Arguments  string `json:"arguments"`
	Answer     string `json:"answer"`
	ProviderID string `json:"provider_id,omitempty"`
}

// foldContextReply takes a reply that edits its own context into what the model
// sees next; nil is an edit from outside.
func (mem *Memory) foldContextReply(e *events.Event, r *events.ContextReply) {
	if r == nil {
		return
	}
	if !r.Part {
		mem.pass(r.Usage)
	}
	if r.Content != "" {
		mem.addMessage(e, r.MessageID, "assistant", r.Content)
	}
	c := &mem.Control
	ids := make([]string, len(r.Calls))
	for i, call := range r.Calls {
		ids[i] = call.ID
		c.CallOrder = append(c.CallOrder, call.ID)
		c.Internal = append(c.Internal, InternalCall{
			ID: call.ID, Name: call.Name, Arguments: call.Arguments, Answer: answerFor(r.Results, call.ID), ProviderID: call.ProviderID,
		})
	}
	mem.addTurn(Turn{Kind: TurnReply, Content: r.Content, Calls: ids, Part: r.Part})
	mem.keepReasoning(r.Reasoning)
	if mem.SpeaksText() {
		mem.forgetUnseen()
	}
}

// forgetUnseen forgets the calls of Moorebus' own tools that have left the window.
func (mem *Memory) forgetUnseen() {
	first, _ := mem.windowStart()
	seen := map[string]bool{}
	for _, t := range mem.Control.Turns[first:] {
		for _, id := range t.Calls {
			seen[id] = true
		}
	}
	mem.forgetInternal(seen)
}

// forgetInternal forgets the calls of Moorebus' own tools, but those to be kept, and
// the turns that show nothing without them: they would take places in the window of
// the text protocol, which counts every turn.
func (mem *Memory) forgetInternal(keep map[string]bool) {
	c, gone := &mem.Control, map[string]bool{}
	var kept []InternalCall
	for _, call := range c.Internal {
		if keep[call.ID] {
			kept = append(kept, call)
		} else {
			gone[call.ID] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	c.Internal = kept
	// They are calls of the current loop, so what is older need not be looked at.
	first := len(c.Turns)
	for left := len(gone); first > 0 && left > 0; {
		first--
		for _, id := range c.Turns[first].Calls {
			if gone[id] {
				left--
			}
		}
	}
	// A slice of its own: the old turns may still be read elsewhere.
	c.Turns = slices.Concat(c.Turns[:first], slices.DeleteFunc(slices.Clone(c.Turns[first:]), mem.showsNothing))
	if c.Asked >= first {
		c.Asked = lastAsked(c.Turns)
	}
}

// showsNothing reports whether a turn is a reply that consists of calls that nobody
// knows any more.
func (mem *Memory) showsNothing(t Turn) bool {
	if t.Kind != TurnReply || t.Content != "" || len(t.Calls) == 0 {
		return false
	}
	return !slices.ContainsFunc(t.Calls, func(id string) bool { return mem.ToolCalls[id] != nil || mem.internal(id) != nil })
}

// internal returns the current loop's call of one of Moorebus' own tools, nil if
// it is none.
func (mem *Memory) internal(id string) *InternalCall {
	for i := range mem.Control.Internal {
		if mem.Control.Internal[i].ID == id {
			return &mem.Control.Internal[i]
		}
	}
	return nil
}

// joinParts puts a reply's turn and those of its earlier parts together, so that
// the model is sent one reply as one. It reports whether t has its place.
func (mem *Memory) joinParts(t *Turn) bool {
	turns := mem.Control.Turns
	if len(turns) == 0 || t.Kind != TurnReply || !turns[len(turns)-1].Part {
		return false
	}
	last := &turns[len(turns)-1]
	// A slice of its own: the turn may be read elsewhere.
	last.Calls = slices.Concat(last.Calls, t.Calls)
	last.Content, last.Part, last.Aside = t.Content, t.Part, t.Aside
	return true
}

// contextSteps is [Memory.steps] for an edit of the context.
func contextSteps(p events.Payload) int {
	if r := events.ReplyOf(p); r != nil && !r.Part {
		return 1
	}
	return 0
}

// contextOrigins is [Origins] for an edit of the context: one that is the model's
// own is the planner's alone.
func contextOrigins(mem *Memory, p events.Payload) []events.State {
	switch {
	case events.ReplyOf(p) == nil:
		return []events.State{mem.State, events.Control}
	case mem.State == events.Planning:
		return []events.State{events.Planning}
	}
	return nil
}

// checkContextReply holds a reply that edits its own context to its calls: each
// is of a tool that is Moorebus' own, and has its answer.
func (mem *Memory) checkContextReply(r *events.ContextReply) error {
	if r == nil {
		return nil
	}
	if len(r.Calls) == 0 || len(r.Calls) != len(r.Results) {
		return fmt.Errorf("has %d calls and %d answers, want one for each", len(r.Calls), len(r.Results))
	}
	for i, call := range r.Calls {
		switch {
		case !events.Reserved(call.Name):
			return fmt.Errorf("calls %q, which does not edit the context", call.Name)
		case r.Results[i].ID != call.ID:
			return fmt.Errorf("answers call %q in the place of %q", r.Results[i].ID, call.ID)
		}
	}
	return mem.checkNewCalls(r.Calls)
}
