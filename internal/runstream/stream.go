package runstream

import (
	"hash"
	"hash/fnv"
	"io"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Stream merges the outputs of one run from its log and from the live feed. It passes them
// to a function, one at a time. It is safe for concurrent use: the log and the feed are read
// by two goroutines.
type Stream struct {
	table *reducer.Table
	fn    func(Output)

	mu sync.Mutex
	// n is the last event that was told.
	n uint64
	// current are the messages that were heard of since the last reply, said those
	// whose reply is in the log.
	current map[string]*spoken
	said    map[string]bool
}

// spoken is how much of a message's text was passed on: the bytes from its beginning, and
// their hash. A token that does not continue there voids it.
type spoken struct {
	next int
	sum  hash.Hash64
}

// hear adds the next part.
func (s *spoken) hear(t LLMToken) {
	switch {
	case t.Offset == 0:
		s.next, s.sum = 0, fnv.New64a()
	case s.sum == nil || t.Offset != s.next:
		s.sum = nil
		return
	}
	s.next += len(t.Text)
	_, _ = io.WriteString(s.sum, t.Text)
}

// rest returns where the missing part of the entire text begins. It is false if nothing is
// missing, nothing was passed on, or other text was.
func (s *spoken) rest(text string) (offset int, ok bool) {
	if s == nil || s.sum == nil || s.next == 0 || s.next >= len(text) {
		return 0, false
	}
	whole := fnv.New64a()
	_, _ = io.WriteString(whole, text[:s.next])
	return s.next, whole.Sum64() == s.sum.Sum64()
}

// NewStream returns a stream that passes its outputs to fn. Calls of [Stream.Event] and
// [Stream.Chunk] return after fn has.
func NewStream(t *reducer.Table, fn func(Output)) *Stream {
	return &Stream{table: t, fn: fn, current: map[string]*spoken{}, said: map[string]bool{}}
}

// Event passes on the outputs of the run's next event, which was just folded into mem. An
// event that came before has none. A reply's last chunks may arrive after its event, so the
// missing end of a text that was begun comes before the event's outputs.
func (s *Stream) Event(mem *reducer.Memory, e *events.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.N <= s.n {
		return
	}
	s.n = e.N
	id := messageOf(e.Data)
	if text, _ := events.ChunksOf(e.Data); id != "" {
		if offset, ok := s.current[id].rest(text); ok {
			s.fn(LLMToken{MessageID: id, Offset: offset, Text: text[offset:]})
		}
	}
	if e.From == events.Planning && s.table.Transition(e.From, e.Type()) {
		s.reply(e.ID)
	}
	if id != "" {
		s.said[id] = true
	}
	for _, o := range Of(s.table, mem, e) {
		s.fn(o)
	}
}

// reply closes every message that was begun before a reply's event: its chunks come too late from now on.
// A message of what follows the reply may be heard before the event, which comes on another way. The ids of
// both are ordered by time. Those of a client are not, and only replies have them.
func (s *Stream) reply(event string) {
	for id := range s.current {
		if events.CheckID(id) != nil || id < event {
			s.said[id] = true
			delete(s.current, id)
		}
	}
}

// messageOf is the id of the message that the event has whole.
func messageOf(p events.Payload) string {
	if r := events.ReplyOf(p); r != nil {
		return r.MessageID
	}
	switch p := p.(type) {
	case *events.LLMFinalAnswer:
		return p.MessageID
	case *events.LLMMessageComplete:
		return p.MessageID
	case *events.LLMToolCall:
		return p.MessageID
	case *events.LLMParallelToolCalls:
		return p.MessageID
	case *events.HumanApprovalRequired:
		return p.MessageID
	}
	return ""
}

// Chunk passes on a chunk of the live feed, unless its message is complete.
func (s *Stream) Chunk(data []byte) {
	o := OfChunk(data)
	var id string
	switch o := o.(type) {
	case LLMToken:
		id = o.MessageID
	case ReasoningToken:
		id = o.MessageID
	case ToolCallDelta:
		id = o.MessageID
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said[id] {
		return
	}
	if s.current[id] == nil {
		s.current[id] = &spoken{}
	}
	if token, ok := o.(LLMToken); ok {
		s.current[id].hear(token)
	}
	s.fn(o)
}
