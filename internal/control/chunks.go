package control

import (
	"context"
	"encoding/json"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const (
	// maxWriting bounds the messages that are being written, and maxWritten their text in
	// bytes. The oldest one goes first.
	maxWriting = 4096
	maxWritten = 64 << 20
	// repeatPiece is how much text is in one message for late listeners, in bytes.
	repeatPiece = 64 << 10
	// settleTime is how long other gateways have to say that they have chunks of a message
	// too.
	settleTime = 250 * time.Millisecond
)

// chunks keeps what client models are writing until their replies come, in memory: it
// publishes the text, repeats it for late listeners, and is the content of a reply without
// one. The text is trusted only if this process has kept all of it. It is safe for concurrent
// use.
type chunks struct {
	feed journal.Feed

	mu sync.Mutex
	// whole is the time since which nothing was lost: this process began then, or gave up a message.
	whole   time.Time
	writing map[writingKey]*writing
	order   []writingKey // the oldest first
	size    int
	closed  bool
}

type writingKey struct {
	run     events.Run
	message string
}

// writing is the text of one message for the request with that key.
type writing struct {
	key  string
	text []byte
	// foreign says that another gateway has a part of it.
	foreign bool
	stop    func()
}

func newChunks(feed journal.Feed, now time.Time) *chunks {
	return &chunks{feed: feed, whole: now, writing: map[writingKey]*writing{}}
}

// has reports whether it keeps chunks of a message for the request with that key.
func (c *chunks) has(run events.Run, key, message string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writing[writingKey{run, message}]
	return w != nil && w.key == key
}

// part is what one request added to a message, in bytes of its text.
type part struct {
	at       writingKey
	from, to int
}

// add keeps and publishes the chunks among the inputs, all or none. undo takes them back for
// the case that the same request is made again, as far as nothing was done to them since.
func (c *chunks) add(run events.Run, key string, inputs []Input) (undo func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.fits(run, key, inputs); err != nil {
		return nil, err
	}
	added := map[*writing]part{}
	for _, in := range inputs {
		chunk, ok := in.(LLMChunk)
		if !ok || chunk.Chunk == "" {
			continue
		}
		at := writingKey{run, chunk.MessageID}
		w := c.open(at, key)
		from := len(w.text)
		c.publish(run, livetext.Chunk{MessageID: chunk.MessageID, Offset: from, Text: chunk.Chunk})
		w.text = append(w.text, chunk.Chunk...)
		c.size += len(chunk.Chunk)
		if earlier, ok := added[w]; ok {
			from = earlier.from
		}
		added[w] = part{at, from, len(w.text)}
	}
	for c.size > maxWritten || len(c.order) > maxWriting {
		c.whole = time.Now()
		c.remove(c.order[0])
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for w, part := range added {
			if c.writing[part.at] == w && len(w.text) == part.to {
				c.size -= part.to - part.from
				w.text = w.text[:part.from]
			}
		}
	}, nil
}

// fits refuses chunks that would make a message too long. The lock is held.
func (c *chunks) fits(run events.Run, key string, inputs []Input) error {
	sizes := map[string]int{}
	for i, in := range inputs {
		chunk, ok := in.(LLMChunk)
		if !ok {
			continue
		}
		size, seen := sizes[chunk.MessageID]
		if w := c.writing[writingKey{run, chunk.MessageID}]; !seen && w != nil && w.key == key {
			size = len(w.text)
		}
		if size += len(chunk.Chunk); size > journal.MaxBody {
			return refusal.New(refusal.TooLarge, refusal.CodeTooLarge, "input %d: the chunks of the message are longer than %d KiB", i, journal.MaxBody>>10)
		}
		sizes[chunk.MessageID] = size
	}
	return nil
}

// open returns what is written of a message. The lock is held.
func (c *chunks) open(at writingKey, key string) *writing {
	w := c.writing[at]
	if w != nil && w.key == key {
		return w
	}
	if w != nil {
		c.remove(at) // it answered an earlier request
	}
	w = &writing{key: key, stop: func() {}}
	c.writing[at] = w
	c.order = append(c.order, at)
	if c.closed {
		return w
	}
	if stop, err := c.feed.WatchChunks(at.run, func(data []byte) { c.heard(at, w, data) }); err == nil {
		w.stop = stop
		_ = c.feed.AskCatchUp(at.run) // another gateway may have a part of it
	}
	return w
}

// heard notes that another gateway has chunks of the same message: nobody knows their order.
func (c *chunks) heard(at writingKey, w *writing, data []byte) {
	var chunk livetext.Chunk
	if json.Unmarshal(data, &chunk) != nil || chunk.MessageID != at.message || chunk.Text == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	end := chunk.Offset + len(chunk.Text)
	if chunk.Offset < 0 || end > len(w.text) || string(w.text[chunk.Offset:end]) != chunk.Text {
		w.foreign = true
	}
}

// text returns what the chunks of a message said. It waits until other gateways could say that
// they have some of them. The refusal says why they are not known.
func (c *chunks) text(ctx context.Context, run events.Run, key, message string, since time.Time) (string, error) {
	if !retry.Wait(ctx, settleTime) {
		return "", ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	refuse := func(why string) error {
		return refusal.New(refusal.Unprocessable, refusal.CodeNoContent, "the reply has no content and no calls, and %s; post it with its content", why)
	}
	w := c.writing[writingKey{run, message}]
	switch {
	case w == nil || w.key != key || len(w.text) == 0:
		return "", refuse("this gateway has no chunks of the message for the pending request")
	case w.foreign:
		return "", refuse("chunks of the message went to several gateways")
	case !c.whole.Before(since):
		return "", refuse("this gateway began after the request, so it may lack chunks")
	}
	return string(w.text), nil
}

// drop forgets what was written for a run.
func (c *chunks) drop(run events.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := range c.writing {
		if at.run == run {
			c.remove(at)
		}
	}
}

// remove forgets a message. The lock is held.
func (c *chunks) remove(at writingKey) {
	w := c.writing[at]
	c.size -= len(w.text)
	delete(c.writing, at)
	for i, other := range c.order {
		if other == at {
			c.order = append(c.order[:i:i], c.order[i+1:]...)
			break
		}
	}
	go w.stop() // it waits for a call of heard, which waits for the lock
}

// answer repeats what is written for a run, for a listener that came late.
func (c *chunks) answer(run events.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, w := range c.writing {
		if at.run != run {
			continue
		}
		for offset := 0; offset < len(w.text); {
			end := min(offset+repeatPiece, len(w.text))
			for end < len(w.text) && !utf8.RuneStart(w.text[end]) {
				end--
			}
			c.publish(run, livetext.Chunk{MessageID: at.message, Offset: offset, Text: string(w.text[offset:end]), CatchUp: true})
			offset = end
		}
	}
}

func (c *chunks) publish(run events.Run, chunk livetext.Chunk) {
	data, err := json.Marshal(chunk)
	if err == nil {
		_ = c.feed.PublishChunk(run, data) // nothing depends on it
	}
}

// close forgets everything and stops listening.
func (c *chunks) close() {
	c.mu.Lock()
	c.closed = true
	var stops []func()
	for _, w := range c.writing {
		stops = append(stops, w.stop)
	}
	clear(c.writing)
	c.order, c.size = nil, 0
	c.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}
