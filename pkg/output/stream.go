package output

import (
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Stream puts the outputs of one run together, from its log and from the live feed.
// It hands each to a function, one at a time, and is safe for concurrent use: the
// log and the feed are read by two goroutines.
type Stream struct {
	table *reducer.Table
	fn    func(Output)

	mu sync.Mutex
	// n is the last event that was told.
	n uint64
	// current are the messages that were heard of since the last reply, said those
	// whose reply is in the log.
	current, said map[string]bool
}

// NewStream returns a stream that hands its outputs to fn, whose time is that of
// whoever calls [Stream.Event] and [Stream.Chunk].
func NewStream(t *reducer.Table, fn func(Output)) *Stream {
	return &Stream{table: t, fn: fn, current: map[string]bool{}, said: map[string]bool{}}
}

// Event tells the outputs of the run's next event, which was just folded into mem.
// An event that was told before has none.
func (s *Stream) Event(mem *reducer.Memory, e *events.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.N <= s.n {
		return
	}
	s.n = e.N
	if e.From == events.Planning && s.table.Transition(e.From, e.Type()) {
		s.reply()
	}
	if id := messageOf(e.Data); id != "" {
		s.said[id] = true
	}
	for _, o := range Of(s.table, mem, e) {
		s.fn(o)
	}
}

// reply closes every message that was being said: what comes of it from now on is
// late.
func (s *Stream) reply() {
	for id := range s.current {
		s.said[id] = true
	}
	clear(s.current)
}

// messageOf is the message that an event has the whole of.
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

// Chunk tells a chunk of the live feed, unless its message is complete.
func (s *Stream) Chunk(data []byte) {
	o := OfChunk(data)
	var id string
	switch o := o.(type) {
	case LLMToken:
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
	s.current[id] = true
	s.fn(o)
}
