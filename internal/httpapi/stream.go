package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/livetext"
)

// The server-sent events of the live feed.
const (
	eventChunk         = "chunk"
	eventToolCallDelta = "tool_call_delta"
)

// chunkEvent names the event that a chunk goes out as: text has no kind, a piece of
// a tool call has one. Empty for what is neither.
func chunkEvent(data []byte) string {
	if !json.Valid(data) {
		return ""
	}
	var c struct {
		Kind string `json:"kind"`
	}
	_ = json.Unmarshal(data, &c) // what is no object has no kind
	switch c.Kind {
	case "":
		return eventChunk
	case "tool_call":
		return eventToolCallDelta
	}
	return ""
}

// stream writes server-sent events. Each write has its own deadline, so that a
// client that does not read is dropped. An error means that the client is gone.
type stream struct {
	s       *Server
	w       http.ResponseWriter
	control *http.ResponseController
	// buf is what is sent next; nil: nothing.
	buf   *bytes.Buffer
	began bool
}

// streamBuffers are buffers of streams: one that waits for events has none.
var streamBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// out returns the buffer of what is sent next.
func (st *stream) out() *bytes.Buffer {
	if st.buf == nil {
		st.buf = streamBuffers.Get().(*bytes.Buffer)
	}
	return st.buf
}

func (s *Server) newStream(w http.ResponseWriter) *stream {
	return &stream{s: s, w: w, control: http.NewResponseController(w)}
}

// streamHeader begins the answer.
func streamHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
}

// end counts the client no more.
func (st *stream) end() {
	if st.began {
		st.s.counts.clients.Add(-1)
	}
}

// comment sends a comment, which keeps the connection open.
func (st *stream) comment() error {
	st.out().WriteString(": moorebus\n\n")
	return st.flush()
}

// chunk sends what a part of a model's text or of a call says that the client has
// not heard.
func (st *stream) chunk(heard *livetext.Listener, data []byte) error {
	news, ok := heard.News(data)
	if !ok {
		return nil
	}
	name := chunkEvent(news)
	if name == "" {
		return nil
	}
	return st.event(name, "", oneLine(news)) // anybody may have said it
}

// event sends one event; an empty id leaves the client's as it is. Data is one
// line.
func (st *stream) event(typ, id string, data []byte) error {
	if err := st.add(typ, id, data); err != nil {
		return err
	}
	return st.flush()
}

// add writes an event to what is sent next. Data that is large is sent as it is,
// which all clients share, and not copied.
func (st *stream) add(typ, id string, data []byte) error {
	buf := st.out()
	buf.WriteString("event: ")
	buf.WriteString(typ)
	if id != "" {
		buf.WriteString("\nid: ")
		buf.WriteString(id)
	}
	buf.WriteString("\ndata: ")
	if len(data) < together {
		buf.Write(data)
	} else {
		err := st.send()
		if err == nil {
			err = st.write(data)
		}
		if err != nil {
			return err
		}
	}
	st.out().WriteString("\n\n")
	return nil
}

// together is how much of what comes at the same moment is sent at once, in bytes.
const together = 32 << 10

// flushSome sends what was added, unless more is there to go with it.
func (st *stream) flushSome(more bool) error {
	if st.buf == nil || more && st.buf.Len() < together {
		return nil
	}
	return st.flush()
}

// flush sends what was added, and has nothing wait on the way.
func (st *stream) flush() error {
	if err := st.send(); err != nil {
		return err
	}
	return st.sent(st.control.Flush())
}

// send writes what was added.
func (st *stream) send() error {
	err := st.write(st.buf.Bytes())
	st.buf.Reset()
	streamBuffers.Put(st.buf)
	st.buf = nil
	return err
}

func (st *stream) write(data []byte) error {
	if !st.began {
		st.began = true
		st.s.counts.clients.Add(1)
		streamHeader(st.w)
	}
	_ = st.control.SetWriteDeadline(time.Now().Add(st.s.cfg.WriteTimeout))
	_, err := st.w.Write(data)
	return st.sent(err)
}

// sent counts a client that could not be written to.
func (st *stream) sent(err error) error {
	if err != nil {
		st.s.counts.dropped.Add(1)
	}
	return err
}

// state sends the state that the events from a number on begin with; nil is none.
func (st *stream) state(data []byte, from uint64) error {
	if data == nil {
		return nil
	}
	return st.event("state", strconv.FormatUint(max(from, 1)-1, 10), data)
}

// oneLine returns a body as it can stand on one line. Bodies that Moorebus wrote
// are as they are, and not copied; in JSON that somebody else put into the log a
// line's end is only white space.
func oneLine(body []byte) []byte {
	if !bytes.ContainsAny(body, "\r\n") {
		return slices.Clip(body) // nobody appends to it
	}
	line := slices.Clone(body)
	for i, c := range line {
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	return line
}
