package planner

import (
	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// maxInterrupted bounds what is kept of an interrupted reply, in bytes.
const maxInterrupted = 256 << 10

// asked is where the conversation stood when the model was asked.
type asked struct {
	// last is the id of the last message, step the run's step.
	last string
	step int
}

func askedNow(mem *reducer.Memory) asked {
	a := asked{step: mem.Step}
	if n := len(mem.Messages); n > 0 {
		a.last = mem.Messages[n-1].ID
	}
	return a
}

// interrupted is the event that keeps what was said of a reply which the run, as it is
// now, does not want any more; nil where nothing was said, or where another planner's
// reply is why it is not wanted.
func (a asked) interrupted(now *reducer.Memory, key string, s *streamer) events.Payload {
	said := s.published()
	if said == "" {
		return nil
	}
	p := &events.LLMAttemptFailed{
		Kind: events.KindInterrupted, Key: key, MessageID: s.messageID, Content: contextedit.Clip(maxInterrupted, said),
		Message: "the context was edited before the reply was complete",
	}
	switch next := a.next(now); {
	case next != nil && next.Role == string(llm.RoleUser):
		p.Before, p.Message = next.ID, "a message came before the reply was complete"
	case next != nil || now.Step != a.step:
		return nil
	}
	return p
}

// next is the first message that came after the last one, nil if none did. What is kept
// of other replies came before that.
func (a asked) next(now *reducer.Memory) *reducer.Message {
	var next *reducer.Message
	for i := len(now.Messages) - 1; i >= 0 && now.Messages[i].ID != a.last; i-- {
		if m := &now.Messages[i]; !m.Interrupted {
			next = m
		}
	}
	return next
}
