package planner

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/contextedit"
	"github.com/moorebus/moorebus/internal/effects"
	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/reducer"
)

const (
	// chunkEvery is the shortest time between two messages with parts of a reply. A part that
	// comes later after the last message is published at once. Other parts wait and are joined,
	// chunkBytes of them at most.
	chunkEvery = 30 * time.Millisecond
	chunkBytes = 1 << 10
	// catchUpEvery is the shortest time between two repetitions of a reply's text for late
	// listeners, however many of them ask.
	catchUpEvery = 100 * time.Millisecond
	// catchUpPiece is how much of the text is in one message, in bytes.
	catchUpPiece = 64 << 10
	// maxKept bounds the text that is kept for late listeners, in bytes. A longer reply
	// does not fit into the log.
	maxKept = journal.MaxBody
)

// streams are the calls in flight by run, and the handlers of the application's own that speak. Late
// listeners ask for their text, and other planners ask whether there is one.
type streams struct {
	mu    sync.Mutex
	byRun map[events.Run][]*streamer
}

func (s *streams) add(t *streamer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byRun == nil {
		s.byRun = map[events.Run][]*streamer{}
	}
	s.byRun[t.run] = append(s.byRun[t.run], t)
}

func (s *streams) remove(t *streamer) {
	s.mu.Lock()
	if left := slices.DeleteFunc(s.byRun[t.run], func(o *streamer) bool { return o == t }); len(left) > 0 {
		s.byRun[t.run] = left
	} else {
		delete(s.byRun, t.run)
	}
	s.mu.Unlock()
	t.finish()
}

// answer repeats the texts so far for a listener of a run, if they are in flight here.
func (s *streams) answer(run events.Run) {
	s.mu.Lock()
	all := slices.Clone(s.byRun[run])
	s.mu.Unlock()
	for _, t := range all {
		t.catchUp()
	}
}

// streamer publishes a reply while it is streamed, and records the timing if that is wanted.
// It is safe for concurrent use.
type streamer struct {
	feed journal.Feed
	// quiet says that nothing of the reply is published; unstreamed that the provider
	// need not stream it.
	quiet, unstreamed bool
	run               events.Run
	messageID         string
	now               func() time.Time
	began             time.Time
	records           bool

	mu sync.Mutex
	// said is the text so far, and reasoned the reasoning.
	said, reasoned saying
	again          int
	timing         events.Chunks
	// held is what waits to be published, and sent is when something last was.
	held held
	sent time.Time
	// told is when the text was last repeated, or will be next.
	told  time.Time
	later *time.Timer
	ended bool
}

// saying is a text so far, nil if it has more than maxKept bytes. total is its length.
type saying struct {
	text  []byte
	total int
}

func (s *saying) add(text string) {
	if s.total += len(text); s.total <= maxKept {
		s.text = append(s.text, text...)
	} else {
		s.text = nil
	}
}

// held are joined parts of a reply: of its text or its reasoning from offset on, or of one
// tool call. kind is empty for text. due is the timer of their message, nil if nothing waits.
type held struct {
	call   *ToolCallChunk
	kind   string
	offset int
	text   string
	due    *time.Timer
}

// streamer returns the streamer of a call.
func (p *Planner) streamer(run events.Run, messageID string, records bool) *streamer {
	return &streamer{
		feed: p.cfg.Feed, run: run, messageID: messageID, now: p.cfg.Store.Now, records: records,
		quiet: p.cfg.NoStream, unstreamed: p.cfg.NoStream && !records,
	}
}

// Speak begins a message of a handler of the application's own, which is published as a reply is. say is
// safe for concurrent use, and says nothing after end. Nobody is answered before the first say: a handler
// that is silent is no call in flight.
func (p *Planner) Speak(run events.Run) (say func(text string), end func()) {
	s := &streamer{feed: p.cfg.Feed, run: run, messageID: p.cfg.Store.NewID(), now: p.cfg.Store.Now}
	var begin sync.Once
	say = func(text string) {
		begin.Do(func() { p.streams.add(s) })
		s.chunk(llm.Chunk{Kind: llm.ChunkText, Text: text})
	}
	return say, func() {
		begin.Do(func() {})
		p.streams.remove(s)
	}
}

// begin notes when the call began, the first one of a reply that takes two.
func (s *streamer) begin() {
	if s.began.IsZero() {
		s.began = s.now()
	}
}

// silent returns the streamer of a call whose text is not published. The reply is streamed
// all the same, so that no proxy takes a long reply for a dead connection.
func (p *Planner) silent(run events.Run) *streamer {
	return &streamer{feed: p.cfg.Feed, run: run, now: p.cfg.Store.Now, quiet: true, unstreamed: p.cfg.NoStream}
}

// chunk takes a part of the reply.
func (s *streamer) chunk(c llm.Chunk) {
	if c.Kind == llm.ChunkToolCall {
		s.delta(c)
		return
	}
	if c.Text == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.ToValidUTF8(c.Text, "\uFFFD")
	switch {
	case s.ended:
	case c.Kind == llm.ChunkText:
		s.addText(text)
	case c.Kind == llm.ChunkReasoning:
		if !s.quiet {
			s.tell(held{kind: livetext.KindReasoning, offset: s.reasoned.total, text: text})
		}
		s.reasoned.add(text)
	}
}

// addText publishes text that follows.
func (s *streamer) addText(text string) {
	if !s.quiet {
		s.tell(held{offset: s.said.total, text: text})
	}
	s.said.add(text)
	if s.records {
		s.noteTiming(len(text))
	}
}

// tell publishes a part of the reply now or joined with those that follow soon.
func (s *streamer) tell(part held) {
	if s.held.due != nil && !s.held.joins(part) {
		s.release()
	}
	if s.held.due != nil {
		s.held.text += part.text
	} else {
		s.held = part
	}
	wait := chunkEvery - s.now().Sub(s.sent)
	switch {
	case wait <= 0 || s.sent.IsZero() || len(s.held.text) >= chunkBytes:
		s.send()
	case s.held.due == nil:
		s.held.due = time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.release()
		})
	}
}

// joins reports whether a part continues what is held.
func (h *held) joins(part held) bool {
	call := part.call
	if call == nil || h.call == nil {
		return call == h.call && part.kind == h.kind
	}
	return call.Index == h.call.Index && (call.Name == "" || call.Name == h.call.Name)
}

// release publishes what waits.
func (s *streamer) release() {
	if s.held.due != nil {
		s.send()
	}
}

// send publishes what is held.
func (s *streamer) send() {
	h := s.held
	s.held, s.sent = held{}, s.now()
	if h.due != nil {
		h.due.Stop()
	}
	if h.call == nil {
		s.publish(livetext.Chunk{MessageID: s.messageID, Kind: h.kind, Offset: h.offset, Text: h.text, Again: s.againOf(h.kind)})
		return
	}
	h.call.Text = h.text
	s.publish(h.call)
}

func (s *streamer) publish(c any) {
	data, err := json.Marshal(c)
	if err != nil {
		return
	}
	// Nothing depends on chunks, so they may be lost while the bus is away.
	_ = s.feed.PublishChunk(s.run, data)
}

// complete compares the entire text with what was published. If a stream broke and the reply
// came by another call, the text is published again from the beginning.
func (s *streamer) complete(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text = strings.ToValidUTF8(text, "\uFFFD")
	if s.said.total == 0 || text == "" || s.said.total > maxKept || string(s.said.text) == text {
		return
	}
	s.release()
	s.said, s.timing, s.again = saying{}, nil, s.again+1
	for piece := range pieces(text) {
		s.addText(piece)
	}
}

// catchUp repeats the text so far, now or soon.
func (s *streamer) catchUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := catchUpEvery - s.now().Sub(s.told)
	switch {
	case s.ended || s.later != nil:
	case wait <= 0 || s.told.IsZero():
		s.repeat()
	default:
		s.later = time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.later = nil; !s.ended {
				s.repeat()
			}
		})
	}
}

// repeat publishes the text so far. If there is none, an empty chunk says that the call is in
// flight; listeners ignore it.
func (s *streamer) repeat() {
	s.release()
	s.told = s.now()
	if s.quiet || len(s.said.text)+len(s.reasoned.text) == 0 {
		s.publish(livetext.Chunk{MessageID: s.messageID, CatchUp: true, Again: s.again})
		return
	}
	s.repeatPieces(livetext.KindReasoning, s.reasoned.text)
	s.repeatPieces("", s.said.text)
}

func (s *streamer) repeatPieces(kind string, said []byte) {
	offset := 0
	for piece := range pieces(string(said)) {
		s.publish(livetext.Chunk{MessageID: s.messageID, Kind: kind, Offset: offset, Text: piece, CatchUp: true, Again: s.againOf(kind)})
		offset += len(piece)
	}
}

// againOf is how often what a chunk is a part of began again: only text does.
func (s *streamer) againOf(kind string) int {
	if kind != "" {
		return 0
	}
	return s.again
}

// finish ends publishing: the reply is about to be in the log.
func (s *streamer) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release()
	s.ended = true
	if s.later != nil {
		s.later.Stop()
		s.later = nil
	}
}

// published returns the text that was published, empty if there is none or too much.
func (s *streamer) published() string {
	if s.quiet {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.said.text)
}

// pieces yields a text in parts that fit into messages. No part ends within a character.
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

// maxTimed bounds the timed parts of a reply in the log.
const maxTimed = 256

// noteTiming notes when a part came. If there are too many parts, it joins each two, at the
// time of the later one.
func (s *streamer) noteTiming(bytes int) {
	ms := max(0, s.now().Sub(s.began).Milliseconds())
	if n := len(s.timing); n > 0 {
		last := &s.timing[n-1]
		if ms = max(ms, last[0]); ms == last[0] {
			last[1] += int64(bytes)
			return
		}
	}
	s.timing = append(s.timing, [2]int64{ms, int64(bytes)})
	if len(s.timing) <= maxTimed {
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

// chunks returns the timing of the reply, nil if it is not recorded.
func (s *streamer) chunks() events.Chunks {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timing
}

// ToolCallChunk is a piece of a call that the model is making, on the subject of the chunks
// of text and reasoning. Index is the call's place in
// the reply, from 0; Name may be empty after its first piece.
type ToolCallChunk struct {
	MessageID string `json:"message_id"`
	Kind      string `json:"kind"`
	Index     int    `json:"index"`
	Name      string `json:"name"`
	Text      string `json:"text"`
}

// ChunkToolCall is the kind of a [ToolCallChunk].
const ChunkToolCall = livetext.KindToolCall

// delta publishes a piece of a call.
func (s *streamer) delta(c llm.Chunk) {
	if s.quiet {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.tell(held{call: &ToolCallChunk{
			MessageID: s.messageID, Kind: ChunkToolCall, Index: c.Index, Name: strings.ToValidUTF8(c.Name, "\uFFFD"),
		}, text: c.Text})
	}
}

// answerWait is how long another planner has to answer that it has a run's call in flight.
const answerWait = time.Second

// elsewhere reports whether another planner has a call of the run in flight. It asks as
// late listeners do: the planner that has the call answers on the run's chunks. Without an
// answer no planner has it. If the answer is lost, a call is made and billed twice, and
// one reply counts.
func (p *Planner) elsewhere(ctx context.Context, run events.Run, due []effects.Effect) bool {
	if !slices.ContainsFunc(due, func(e effects.Effect) bool {
		return (e.Kind == effects.KindPlan || e.Kind == effects.KindReflect) && !e.Client
	}) {
		return false
	}
	answered := make(chan struct{}, 1)
	stop, err := p.cfg.Feed.WatchChunks(run, func([]byte) {
		select {
		case answered <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return false // the log takes no outcome either
	}
	defer stop()
	if p.cfg.Feed.AskCatchUp(run) != nil {
		return false
	}
	select {
	case <-answered:
		return true
	case <-time.After(answerWait):
	case <-ctx.Done():
	}
	return false
}

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

// leaves returns the event of a reply that the run no longer wants: the text that was
// published, and what the reply cost if it came. It is nil if there is neither.
func (pl *planning) leaves(now *reducer.Memory, asked asked, s *streamer) events.Payload {
	p := asked.interrupted(now, pl.call.key, s)
	if pl.came == nil || pl.came.Reply == nil {
		if p == nil {
			return nil
		}
		return p
	}
	if p == nil {
		if now.State != events.Planning {
			return nil // nothing but text is legal there
		}
		p = &events.LLMAttemptFailed{
			Kind: codes.KindObsolete, Key: pl.call.key, MessageID: s.messageID, Message: "the run no longer wanted the reply when it came",
		}
	}
	p.Usage, p.Facts = pl.paid, factsOf(*pl.came.Reply, pl.call.asked, false)
	p.Facts.Reasoning = nil // no request has it back
	return p
}

// interrupted returns the event that keeps the published text of a reply which the run no
// longer wants. It is nil if nothing was published, or if another planner's reply is the
// reason.
func (a asked) interrupted(now *reducer.Memory, key string, s *streamer) *events.LLMAttemptFailed {
	said := s.published()
	if said == "" {
		return nil
	}
	p := &events.LLMAttemptFailed{
		Kind: codes.KindInterrupted, Key: key, MessageID: s.messageID, Content: contextedit.Clip(maxInterrupted, said),
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
