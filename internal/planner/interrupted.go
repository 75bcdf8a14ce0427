package planner

import (
	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// maxInterrupted bounds what is kept of an interrupted reply, in bytes.
const maxInterrupted = 256 << 10

// asked is the state of the conversation when the model was called.
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

// interrupted returns the event that keeps the published text of a reply which the run no
// longer wants. It is nil if nothing was published, or if another planner's reply is the
// reason.
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

// next returns the first message after the last one, nil if there is none. Texts of other
// interrupted replies do not count.
func (a asked) next(now *reducer.Memory) *reducer.Message {
	var next *reducer.Message
	for i := len(now.Messages) - 1; i >= 0 && now.Messages[i].ID != a.last; i-- {
		if m := &now.Messages[i]; !m.Interrupted {
			next = m
		}
	}
	return next
}
