package sse

import (
	"bytes"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/moorebus/moorebus/internal/meter"
)

// Stream writes server-sent events. Each write has a deadline, so a client that does not read
// is dropped. An error means that the client is gone.
type Stream struct {
	s       *Streams
	w       http.ResponseWriter
	control *http.ResponseController
	// buf is what is sent next. May be nil.
	buf   *bytes.Buffer
	began bool
}

// buffers are shared: a stream that waits for events has no buffer.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (st *Stream) out() *bytes.Buffer {
	if st.buf == nil {
		st.buf = buffers.Get().(*bytes.Buffer)
	}
	return st.buf
}

// Stream returns a stream to w. Its first write sends the header. The caller calls Stop at the
// end.
func (s *Streams) Stream(w http.ResponseWriter) *Stream {
	return &Stream{s: s, w: w, control: http.NewResponseController(w)}
}

// WriteHeader answers with the header of a stream.
func WriteHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
}

// Began reports whether anything was sent.
func (st *Stream) Began() bool { return st.began }

// Stop stops counting the client.
func (st *Stream) Stop() {
	if st.began {
		st.s.Clients.Add(-1)
	}
}

// Comment sends a comment, which keeps the connection open.
func (st *Stream) Comment() error {
	st.out().WriteString(": moorebus\n\n")
	return st.flush()
}

// Event sends one event. See [Stream.Add].
func (st *Stream) Event(typ, id string, data []byte) error {
	if err := st.Add(typ, id, data); err != nil {
		return err
	}
	return st.flush()
}

// Add adds an event to what is sent next. An empty type is that of an event without a name. An
// empty id does not change the client's. data is one line. Large data, which all clients share,
// is sent without a copy.
func (st *Stream) Add(typ, id string, data []byte) error {
	buf := st.out()
	if typ != "" {
		buf.WriteString("event: ")
		buf.WriteString(typ)
		buf.WriteByte('\n')
	}
	if id != "" {
		buf.WriteString("id: ")
		buf.WriteString(id)
		buf.WriteByte('\n')
	}
	buf.WriteString("data: ")
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

// FlushSome sends what was added, unless more is coming.
func (st *Stream) FlushSome(more bool) error {
	if st.buf == nil || more && st.buf.Len() < together {
		return nil
	}
	return st.flush()
}

// flush sends what was added at once.
func (st *Stream) flush() error {
	if err := st.send(); err != nil {
		return err
	}
	return st.sent(st.control.Flush())
}

// send writes what was added.
func (st *Stream) send() error {
	err := st.write(st.buf.Bytes())
	st.buf.Reset()
	buffers.Put(st.buf)
	st.buf = nil
	return err
}

func (st *Stream) write(data []byte) error {
	if !st.began {
		st.began = true
		st.s.Clients.Add(1)
		WriteHeader(st.w)
	}
	_ = st.control.SetWriteDeadline(time.Now().Add(st.s.o.WriteTimeout))
	_, err := st.w.Write(data)
	return st.sent(err)
}

// sent counts a client that could not be written to.
func (st *Stream) sent(err error) error {
	if err != nil {
		meter.Add(st.s.o.Meter, meter.FeedLost, 1)
	}
	return err
}

// OneLine returns JSON on one line. What has no line breaks is not copied. In JSON the end of a
// line is white space.
func OneLine(body []byte) []byte {
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
