// Package livetext assembles the text that a model is writing, and its reasoning, from their
// chunks on the live feed.
package livetext

import (
	"cmp"
	"encoding/json"
	"hash"
	"hash/fnv"
	"io"
	"slices"
	"sync"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

// The kinds of chunks.
const (
	KindText      = "text"
	KindReasoning = "reasoning"
	KindToolCall  = "tool_call"
)

// Chunk is a part of a model's text or reasoning on the feed. Offset counts the bytes of the
// text before it, or of the reasoning; a chunk with offset 0 starts it again.
type Chunk struct {
	MessageID string `json:"message_id"`
	Offset    int    `json:"offset"`
	Text      string `json:"text"`
	// Kind is one of the kinds. On the feed it is empty for text, as builds have it that know
	// no other kind.
	Kind string `json:"kind,omitempty"`
	// CatchUp marks text that was sent before, for listeners that missed it: see
	// [journal.Feed].AskCatchUp. Who has it drops it.
	CatchUp bool `json:"catch_up,omitempty"`
	// Again counts how often the text began again so far.
	Again int `json:"again,omitempty"`
}

// Listener puts a run's chunks together for one reader. Whatever the reader
// missed, because it came late or was slow, is asked for again; so what Hear
// returns is each message's text from its beginning, without gap, repetition or
// disorder, as far as it was said. It is safe for concurrent use.
type Listener struct {
	feed journal.Feed
	run  events.Run

	mu sync.Mutex
	// heard is what was heard of the messages, of each text and reasoning on its own. Several can be in
	// flight: a handler around a state says something, too.
	heard []*heard
	// asked says that the missing text was asked for, and did not come yet;
	// useless counts the chunks since then that were of no use.
	asked   bool
	useless int
	// over is the message whose event is known: it has the entire text.
	over string
}

// heard is how much was heard of a message's text, or of its reasoning.
type heard struct {
	message, kind string
	again         int
	// next is how many bytes of the message were heard, and sum their hash.
	next int
	sum  hash.Hash64
	// lost says that what was heard is not the beginning of what is being said.
	lost bool
}

// maxHeard is how many texts a listener knows. It forgets those that began first.
const maxHeard = 16

// NewListener returns a listener that has heard nothing. Give it the chunks of
// [journal.Feed].WatchChunks, and begin with Ask.
func NewListener(feed journal.Feed, run events.Run) *Listener { return &Listener{feed: feed, run: run} }

// Listen hands fn a run's chunks from now on, each as [Listener.News] has it, and
// what was said so far of a text that is in flight. fn is called by one goroutine
// at a time and must not block; stop ends it.
func Listen(feed journal.Feed, run events.Run, fn func(news []byte)) (stop func(), err error) {
	l := NewListener(feed, run)
	stop, err = feed.WatchChunks(run, func(data []byte) {
		if news, ok := l.News(data); ok {
			fn(news)
		}
	})
	if err == nil {
		l.Ask()
	}
	return stop, err
}

// Ask asks for what was said so far. It does not wait.
func (l *Listener) Ask() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ask()
}

// ask asks again after some chunks at the latest: the question or the answer may
// be lost.
func (l *Listener) ask() {
	const patience = 16
	if l.asked && l.useless < patience {
		return
	}
	l.asked, l.useless = true, 0
	_ = l.feed.AskCatchUp(l.run) // where the bus is away there are no chunks either
}

// Over says that a message's event is in the log: further chunks of it are late.
func (l *Listener) Over(message string) {
	if message == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = message
}

// Rest is [Listener.Over] for a reader that is to hear all of a text: it returns
// what was said of the message and not heard yet, as [Listener.News] would, given
// the entire text as the event has it. Chunks and events come on their own ways, so
// the last chunks may come after the event. False: nothing of it was heard, or all,
// or something else.
func (l *Listener) Rest(message, text string) ([]byte, bool) {
	if message == "" {
		return nil, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = message
	h := l.find(message, KindText)
	if h == nil || h.lost || h.next == 0 || h.next >= len(text) {
		return nil, false
	}
	whole := fnv.New64a()
	_, _ = io.WriteString(whole, text[:h.next])
	if whole.Sum64() != h.sum.Sum64() {
		return nil, false
	}
	news, err := json.Marshal(Chunk{MessageID: message, Offset: h.next, Text: text[h.next:], Kind: KindText})
	h.next = len(text)
	return news, err == nil
}

// Hear takes a chunk of text or reasoning as it stands on the feed and returns what it says
// that was not heard before; false if that is nothing. Its offset is 0 where the text
// begins, also where it begins again.
func (l *Listener) Hear(data []byte) (Chunk, bool) {
	var c Chunk
	if json.Unmarshal(data, &c) != nil || c.MessageID == "" || c.Offset < 0 || c.Text == "" {
		return Chunk{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.Kind = cmp.Or(c.Kind, KindText)
	if c.Kind != KindText && c.Kind != KindReasoning || c.MessageID == l.over {
		return Chunk{}, false
	}
	h := l.find(c.MessageID, c.Kind)
	if h == nil {
		h = &heard{message: c.MessageID, kind: c.Kind, lost: true}
		l.heard = append(l.heard[max(0, len(l.heard)-maxHeard+1):], h)
	}
	news, missed := h.news(c)
	switch {
	case missed:
		l.useless++
		l.ask()
		return Chunk{}, false
	case news.Text == "":
		return Chunk{}, false
	}
	l.asked, l.useless = false, 0
	return news, true
}

// find returns what was heard of a message's text or reasoning, nil if that is nothing.
func (l *Listener) find(message, kind string) *heard {
	if i := slices.IndexFunc(l.heard, func(h *heard) bool { return h.message == message && h.kind == kind }); i >= 0 {
		return l.heard[i]
	}
	return nil
}

// news returns what a chunk says that was not heard before. missed says that something
// before it was not heard.
func (h *heard) news(c Chunk) (news Chunk, missed bool) {
	other := c.Again != h.again || h.lost
	switch {
	case c.Offset == 0 && (other || !c.CatchUp):
		*h = heard{message: c.MessageID, kind: c.Kind, again: c.Again, sum: fnv.New64a()}
	case other, c.Offset > h.next:
		return Chunk{}, true
	case c.CatchUp:
		if c.Offset+len(c.Text) <= h.next {
			return Chunk{}, false
		}
		c.Text = c.Text[h.next-c.Offset:]
		c.Offset = h.next
	case c.Offset < h.next:
		// The text began again and its beginning was missed, so that nothing fits any more.
		h.lost = true
		return Chunk{}, true
	}
	h.next += len(c.Text)
	_, _ = io.WriteString(h.sum, c.Text)
	return Chunk{MessageID: c.MessageID, Offset: c.Offset, Text: c.Text, Kind: c.Kind}, false
}

// News is [Listener.Hear] for whoever passes chunks on: what it returns is a chunk with its
// kind, and with the part of its text that was not heard before. A chunk of another kind,
// such as a piece of a tool call, is returned as it is, unless its message is over.
func (l *Listener) News(data []byte) ([]byte, bool) {
	var c Chunk
	if json.Unmarshal(data, &c) != nil {
		return nil, false
	}
	switch c.Kind {
	case "", KindText, KindReasoning:
	default:
		return data, !l.late(c.MessageID)
	}
	c, ok := l.Hear(data)
	if !ok {
		return nil, false
	}
	news, err := json.Marshal(c)
	return news, err == nil
}

// late reports whether a message is over.
func (l *Listener) late(message string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return message != "" && message == l.over
}

// MessageOf returns the id and the text of the message that a stored event holds,
// for [Listener.Over] and [Listener.Rest]; empty if it has none.
func MessageOf(body []byte) (id, text string) {
	var e struct {
		Data struct {
			MessageID string `json:"message_id"`
			Content   string `json:"content"`
		} `json:"data"`
	}
	_ = json.Unmarshal(body, &e) // what cannot be read holds no message
	return e.Data.MessageID, e.Data.Content
}
