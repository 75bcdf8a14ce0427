package planner

import (
	"encoding/json"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
)

const (
	// catchUpEvery is how often listeners of a run are told at most what was said
	// so far, however many of them ask.
	catchUpEvery = 100 * time.Millisecond
	// catchUpPiece is how much of it stands in one message, in bytes.
	catchUpPiece = 64 << 10
	// mostSaid is how much text is kept to be said again, in bytes: no reply with
	// more comes into the log.
	mostSaid = journal.MaxBody
)

// streams are the calls in flight by run, for those who ask what was said so far, or
// whether there is one.
type streams struct {
	mu    sync.Mutex
	byRun map[events.Run]*streamer
}

func (s *streams) begin(t *streamer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRun == nil {
		s.byRun = map[events.Run]*streamer{}
	}
	s.byRun[t.run] = t
}

func (s *streams) end(t *streamer) {
	s.mu.Lock()
	if s.byRun[t.run] == t {
		delete(s.byRun, t.run)
	}
	s.mu.Unlock()
	t.end()
}

// asked answers a listener of a run, if its call is in flight here.
func (s *streams) asked(run events.Run) {
	s.mu.Lock()
	t := s.byRun[run]
	s.mu.Unlock()
	if t != nil {
		t.catchUp()
	}
}

// streamer publishes a reply in the making, and notes how it came if that is
// wanted. It is safe for concurrent use.
type streamer struct {
	feed journal.Feed
	// quiet says that nothing of the reply is published; deaf that the provider need
	// not stream it at all.
	quiet, deaf bool
	run         events.Run
	messageID   string
	now         func() time.Time
	began       time.Time
	records     bool

	mu sync.Mutex
	// said is the text so far, of which there is too much to be kept if it has
	// more than mostSaid bytes in all.
	said   []byte
	total  int
	again  int
	timing events.Chunks
	// told is when listeners were last told of it, later the next time if that is
	// set already.
	told  time.Time
	later *time.Timer
	ended bool
}

// streamer is the one of a call.
func (p *Planner) streamer(run events.Run, messageID string, records bool) *streamer {
	return &streamer{
		feed: p.cfg.Feed, run: run, messageID: messageID, now: p.cfg.Store.Now, records: records,
		quiet: p.cfg.NoStream, deaf: p.cfg.NoStream && !records,
	}
}

// silent is the streamer of a call that nobody may listen to. What is streamed comes
// in pieces all the same, so that nothing on the way takes a long reply for a dead
// connection.
func (p *Planner) silent(run events.Run) *streamer {
	return &streamer{feed: p.cfg.Feed, run: run, now: p.cfg.Store.Now, quiet: true, deaf: p.cfg.NoStream}
}

// chunk takes a part of the reply.
func (s *streamer) chunk(c llm.Chunk) {
	if c.Kind == llm.ChunkToolCall {
		s.delta(c)
		return
	}
	if c.Kind != llm.ChunkText || c.Text == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.say(strings.ToValidUTF8(c.Text, "\uFFFD"))
	}
}

// say publishes text that follows what was said.
func (s *streamer) say(text string) {
	if !s.quiet {
		s.publish(livetext.Chunk{MessageID: s.messageID, Offset: s.total, Text: text, Again: s.again})
	}
	if s.total += len(text); s.total <= mostSaid {
		s.said = append(s.said, text...)
	} else {
		s.said = nil
	}
	if s.records {
		s.note(len(text))
	}
}

func (s *streamer) publish(c any) {
	data, err := json.Marshal(c)
	if err != nil {
		return
	}
	// Nothing needs chunks to be correct, so a bus that is away loses them.
	_ = s.feed.PublishChunk(s.run, data)
}

// complete takes the whole text. Where a stream broke and the reply came otherwise,
// it is said again from the beginning.
func (s *streamer) complete(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text = strings.ToValidUTF8(text, "\uFFFD")
	if s.total == 0 || text == "" || s.total > mostSaid || string(s.said) == text {
		return
	}
	s.said, s.total, s.timing, s.again = nil, 0, nil, s.again+1
	for piece := range pieces(text) {
		s.say(piece)
	}
}

// catchUp says once more what was said so far, now or soon.
func (s *streamer) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := catchUpEvery - s.now().Sub(s.told)
	switch {
	case s.ended || s.later != nil:
	case wait <= 0 || s.told.IsZero():
		s.tell()
	default:
		s.later = time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.later = nil; !s.ended {
				s.tell()
			}
		})
	}
}

// tell answers with the text so far. Where there is none to be told, an empty chunk
// says that the call is in flight; listeners pass over it.
func (s *streamer) tell() {
	s.told = s.now()
	if s.quiet || len(s.said) == 0 {
		s.publish(livetext.Chunk{MessageID: s.messageID, CatchUp: true, Again: s.again})
		return
	}
	offset := 0
	for piece := range pieces(string(s.said)) {
		s.publish(livetext.Chunk{MessageID: s.messageID, Offset: offset, Text: piece, CatchUp: true, Again: s.again})
		offset += len(piece)
	}
}

// end has no more of the reply be published: it is about to be in the log.
func (s *streamer) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.later != nil {
		s.later.Stop()
		s.later = nil
	}
}

// published is the text that listeners were told, empty where that is none, or too
// much to be kept.
func (s *streamer) published() string {
	if s.quiet {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.said)
}

// pieces yields a text in parts that fit into messages, none of which ends within
// a character.
func pieces(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for text != "" {
			cut := min(len(text), catchUpPiece)
			for cut < len(text) && !utf8.RuneStart(text[cut]) {
				cut--
			}
			if !yield(text[:cut]) {
				return
			}
			text = text[cut:]
		}
	}
}

// mostTimed is how many parts of a reply are told apart in the log.
const mostTimed = 256

// note notes when a part came. Where there are too many parts, each two become
// one, at the later one's time.
func (s *streamer) note(bytes int) {
	ms := max(0, s.now().Sub(s.began).Milliseconds())
	if n := len(s.timing); n > 0 {
		last := &s.timing[n-1]
		if ms = max(ms, last[0]); ms == last[0] {
			last[1] += int64(bytes)
			return
		}
	}
	s.timing = append(s.timing, [2]int64{ms, int64(bytes)})
	if len(s.timing) <= mostTimed {
		return
	}
	half := s.timing[:0]
	for i := 0; i < len(s.timing); i += 2 {
		part := s.timing[i]
		if i+1 < len(s.timing) {
			part = [2]int64{s.timing[i+1][0], part[1] + s.timing[i+1][1]}
		}
		half = append(half, part)
	}
	s.timing = half
}

// chunks returns how the reply came; nil if that was not to be noted.
func (s *streamer) chunks() events.Chunks {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timing
}

// ToolCallChunk is a piece of a call that the model is making, on the chunk subject
// beside the text: it has a kind, which text has not. Index is the call's place in
// the reply, from 0; Name may be empty after its first piece.
type ToolCallChunk struct {
	MessageID string `json:"message_id"`
	Kind      string `json:"kind"`
	Index     int    `json:"index"`
	Name      string `json:"name"`
	Text      string `json:"text"`
}

// ChunkToolCall is the kind of a [ToolCallChunk].
const ChunkToolCall = "tool_call"

// delta publishes a piece of a call.
func (s *streamer) delta(c llm.Chunk) {
	if s.quiet {
		return
	}
	s.publish(ToolCallChunk{
		MessageID: s.messageID, Kind: ChunkToolCall, Index: c.Index,
		Name: strings.ToValidUTF8(c.Name, "\uFFFD"), Text: c.Text,
	})
}
