package httpapi

import (
	"bytes"
	"sync"

	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// frame is a record in the form that clients get, made once for all of them.
type frame struct {
	record journal.Record
	// event is nil if the body cannot be decoded.
	event *events.Event
	// line is the body on one line.
	line []byte

	said          sync.Once
	message, text string

	hashed sync.Once
	sum    string
}

// hash returns the hash of the body. Streams of all runs do not need it.
func (f *frame) hash() string {
	f.hashed.Do(func() { f.sum = events.Hash(f.record.Body) })
	return f.sum
}

// messageText returns the id and the text of the message that the event holds, as
// [livetext.MessageOf] does.
func (f *frame) messageText() (message, text string) {
	f.said.Do(func() { f.message, f.text = livetext.MessageOf(f.record.Body) })
	return f.message, f.text
}

func newFrame(codec *events.Codec, rec journal.Record) *frame {
	f := &frame{record: rec, line: sse.OneLine(rec.Body)}
	if e, err := codec.Decode(rec.Body); err == nil {
		f.event = e
	}
	return f
}

// typ is the name of the server-sent event.
func (f *frame) typ() string {
	if f.event == nil {
		return "poison"
	}
	return string(f.event.Type())
}

// The limits of the cache of frames, in number and in bytes of bodies. It serves hundreds of
// clients that get the newest frames within moments.
const (
	keptFrames = 2048
	keptBytes  = 8 << 20
)

// frames caches the newest frames. It is safe for concurrent use.
type frames struct {
	codec *events.Codec

	mu    sync.Mutex
	kept  map[position]*madeFrame
	order []position // the oldest first
	size  int        // of the bodies, in bytes
}

// position is the place of a record in the log.
type position struct {
	shard int
	seq   uint64
}

// madeFrame is a frame that its first user makes.
type madeFrame struct {
	once  sync.Once
	frame *frame
	size  int
}

func (fs *frames) of(shard int, rec journal.Record) *frame {
	m := fs.entry(position{shard, rec.Seq}, len(rec.Body))
	m.once.Do(func() { m.frame = newFrame(fs.codec, rec) })
	if kept := m.frame.record; kept.Subject != rec.Subject || !bytes.Equal(kept.Body, rec.Body) {
		// A server that lost its last records in a power failure reuses their numbers.
		return newFrame(fs.codec, rec)
	}
	return m.frame
}

func (fs *frames) entry(at position, size int) *madeFrame {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if m := fs.kept[at]; m != nil {
		return m
	}
	m := &madeFrame{size: size}
	fs.kept[at] = m
	fs.order = append(fs.order, at)
	for fs.size += size; len(fs.order) > keptFrames || fs.size > keptBytes; fs.order = fs.order[1:] {
		fs.size -= fs.kept[fs.order[0]].size
		delete(fs.kept, fs.order[0])
	}
	return m
}

// tail follows a run's records for a stream: it numbers them and knows when the run has ended.
// It checks each event against the chain, the table and its subject, as the fold does, but
// keeps no memory.
type tail struct {
	table *reducer.Table
	run   events.Run

	n        uint64
	head     string
	state    events.State
	poisoned bool
	// forked says that the last event was a Forked.
	forked bool
}

// newTail is a tail before the run's first event.
func (s *Server) newTail(run events.Run) tail {
	table := s.control.Table
	return tail{table: table, run: run, state: table.Initial()}
}

// fits reports whether an event may be where it is. The state in which a fork begins is not
// checked: only its parent's log has it.
func (t *tail) fits(subject string, e *events.Event) bool {
	s, err := events.ParseSubject(subject)
	return err == nil && reducer.CheckEdge(t.table, s, e) == nil && (e.Type() != events.TypeForked || t.n == 1)
}

// advance applies the run's next record.
func (t *tail) advance(f *frame) {
	t.n++
	prev := t.head
	t.head = f.hash()
	e := f.event
	if e == nil {
		t.poisoned = true
		return
	}
	typ := e.Type()
	if t.forked && t.n == 2 && e.From == t.table.Initial() {
		// The fork was not legal: readers of its parent found it to be poison.
		t.state, t.poisoned = e.From, true
	}
	legal := t.fits(f.record.Subject, e) && e.N == t.n && e.Prev == prev && e.From == t.state
	if legal && t.poisoned {
		legal = typ == events.TypeFatalError || typ == events.TypeCancelled
	}
	if legal {
		t.state, t.forked = e.To, typ == events.TypeForked
	} else {
		t.poisoned = true
	}
}

func (t *tail) ended() bool { return t.table.Terminal(t.state) }
