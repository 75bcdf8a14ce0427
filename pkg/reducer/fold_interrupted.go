package reducer

import (
	"slices"

	"github.com/moorebus/moorebus/pkg/events"
)

// InterruptedNote follows an interrupted reply in what the model sees.
const InterruptedNote = "[moorebus: your reply above was interrupted before it was complete; the user has read what stands there]"

// keepInterrupted takes what the user read of an interrupted reply into the
// conversation, before the message that interrupted it. The run may have gone on
// since then: nothing else changes, and no work becomes obsolete.
func (mem *Memory) keepInterrupted(e *events.Event, p *events.LLMAttemptFailed) {
	if mem.Knows(p.MessageID) {
		return
	}
	at, said := len(mem.Messages), e.Time
	if i := mem.messageAt(p.Before); i >= 0 {
		at, said = i, mem.Messages[i].Timestamp
	}
	turn := mem.turnBefore(len(mem.Messages) - at)
	// Slices of their own: the old ones may still be read elsewhere.
	mem.Messages = slices.Insert(slices.Clone(mem.Messages), at, Message{
		ID: p.MessageID, Role: "assistant", Content: p.Content, Timestamp: said, Interrupted: true,
	})
	mem.messageIDs[p.MessageID] = struct{}{}
	c := &mem.Control
	c.Turns = slices.Insert(slices.Clone(c.Turns), turn, Turn{Kind: TurnReply, Content: p.Content, Interrupted: true})
	if c.Asked >= turn {
		c.Asked++
	}
	if c.Opened >= at && c.Opened > 0 {
		c.Opened++
	}
}

// messageAt is the place of the last message of that id, -1 if there is none.
func (mem *Memory) messageAt(id string) int {
	for i := range slices.Backward(mem.Messages) {
		if mem.Messages[i].ID == id {
			return i
		}
	}
	return -1
}

// turnBefore is the place before the turns of the last messages, as many as given.
func (mem *Memory) turnBefore(messages int) int {
	turns := mem.Control.Turns
	for i := len(turns); i > 0 && messages > 0; i-- {
		// What could not be read is no message of the conversation.
		if t := &turns[i-1]; t.Kind != TurnUser && (t.Raw || !t.message()) {
			continue
		}
		if messages--; messages == 0 {
			return i - 1
		}
	}
	return len(turns)
}

// keepForNextTurn keeps an edit of the context that was made while the run waits
// for its user, until a message opens the next turn.
func (mem *Memory) keepForNextTurn(increment int, ids []string) {
	c := &mem.Control
	next := Edit{Step: mem.Step}
	if c.NextTurn != nil {
		next = *c.NextTurn
	}
	next.Widened = min(next.Widened+min(increment, mostWidened), mostWidened)
	next.CallIDs = slices.Clone(next.CallIDs)
	for _, id := range ids {
		if !slices.Contains(next.CallIDs, id) {
			next.CallIDs = append(next.CallIDs, id)
		}
	}
	c.NextTurn = &next
}

// mostWidened bounds the sum of increments, which is beyond any conversation.
const mostWidened = 1 << 30

// applyNextTurn makes the edits that were kept for the turn that has just begun.
func (mem *Memory) applyNextTurn() {
	next := mem.Control.NextTurn
	if next == nil {
		return
	}
	mem.Control.NextTurn = nil
	if next.Widened > 0 {
		mem.noteEdit(nil, Edit{Widened: mem.expandWindow(next.Widened)})
	}
	mem.noteEdit(nil, Edit{CallIDs: mem.addCallsToContext(next.CallIDs)})
}
