package httpapi

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/livetext"
	"github.com/moorebus/moorebus/internal/refusal"
)

// The server-sent events of the live feed.
const (
	eventChunk         = "chunk"
	eventToolCallDelta = "tool_call_delta"
)

// chunkEvent returns the name of the event for a chunk: one for text and reasoning, another
// for a part of a tool call. It is empty for anything else.
func chunkEvent(data []byte) string {
	if !json.Valid(data) {
		return ""
	}
	var c struct {
		Kind string `json:"kind"`
	}
	_ = json.Unmarshal(data, &c) // a value that is not an object has no kind
	switch c.Kind {
	case livetext.KindText, livetext.KindReasoning:
		return eventChunk
	case livetext.KindToolCall:
		return eventToolCallDelta
	}
	return ""
}

// stream writes server-sent events. Each write has a deadline, so a client that does not read
// is dropped. An error means that the client is gone.
type stream struct {
	s       *Server
	w       http.ResponseWriter
	control *http.ResponseController
	// buf is what is sent next. May be nil.
	buf   *bytes.Buffer
	began bool
}

// streamBuffers are shared: a stream that waits for events has no buffer.
var streamBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (st *stream) out() *bytes.Buffer {
	if st.buf == nil {
		st.buf = streamBuffers.Get().(*bytes.Buffer)
	}
	return st.buf
}

func (s *Server) newStream(w http.ResponseWriter) *stream {
	return &stream{s: s, w: w, control: http.NewResponseController(w)}
}

func streamHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
}

// stop stops counting the client.
func (st *stream) stop() {
	if st.began {
		st.s.counts.clients.Add(-1)
	}
}

// comment sends a comment, which keeps the connection open.
func (st *stream) comment() error {
	st.out().WriteString(": moorebus\n\n")
	return st.flush()
}

// chunk sends the part of a chunk that the client does not have yet.
func (st *stream) chunk(heard *livetext.Listener, data []byte) error {
	news, ok := heard.News(data)
	if !ok {
		return nil
	}
	name := chunkEvent(news)
	if name == "" {
		return nil
	}
	return st.event(name, "", oneLine(news)) // chunks are not trusted
}

// event sends one event. An empty id does not change the client's. data is one line.
func (st *stream) event(typ, id string, data []byte) error {
	if err := st.add(typ, id, data); err != nil {
		return err
	}
	return st.flush()
}

// add adds an event to what is sent next. Large data, which all clients share, is sent
// without a copy.
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

// together is the size up to which events are sent in one write, in bytes.
const together = 32 << 10

// flushSome sends what was added, unless more is coming.
func (st *stream) flushSome(more bool) error {
	if st.buf == nil || more && st.buf.Len() < together {
		return nil
	}
	return st.flush()
}

// flush sends what was added at once.
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

// state sends the state before the events from a number on. data may be nil.
func (st *stream) state(data []byte, from uint64) error {
	if data == nil {
		return nil
	}
	return st.event("state", strconv.FormatUint(max(from, 1)-1, 10), data)
}

// oneLine returns a body on one line. Bodies that Moorebus wrote are not copied. In other JSON
// the end of a line is white space.
func oneLine(body []byte) []byte {
	if !bytes.ContainsAny(body, "\r\n") {
		return slices.Clip(body) // an append must copy
	}
	line := slices.Clone(body)
	for i, c := range line {
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	return line
}

// streamRetry is when a client that was refused a stream may try again.
const streamRetry = 5 * time.Second

// openStreams counts open event streams, in total and by client.
type openStreams struct {
	most, mostOfClient int

	mu       sync.Mutex
	all      int
	byClient map[string]int
}

// open counts a stream until done is called. It refuses a stream beyond the limits. Clients
// are told apart by remote address, so all clients behind a proxy are one.
func (o *openStreams) open(r *http.Request) (done func(), err error) {
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		client = r.RemoteAddr // the server is not net/http's
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.all >= o.most:
		return nil, tooManyStreams("this gateway has %d open event streams, its limit; try again later, or use another gateway", o.most)
	case o.byClient[client] >= o.mostOfClient:
		return nil, tooManyStreams("your address has %d open event streams, the limit for one address; close some, or follow all runs with GET /v1/events", o.mostOfClient)
	}
	o.all++
	o.byClient[client]++
	return func() { o.close(client) }, nil
}

func (o *openStreams) close(client string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all--
	if o.byClient[client]--; o.byClient[client] == 0 {
		delete(o.byClient, client)
	}
}

func tooManyStreams(format string, most int) error {
	e := refusal.New(refusal.TooMany, refusal.CodeTooManyStreams, format, most)
	e.RetryAfter = streamRetry
	return e
}
