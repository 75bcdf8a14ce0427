package mcptool

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// sifted is a body that is a stream of server-sent events. It has those whose
// messages the inlet takes; of the others only what a stream is resumed by is left.
type sifted struct {
	body  io.ReadCloser
	lines *bufio.Reader
	inlet *inlet
	max   int
	// end ends the session.
	end func(error)
	// last reports whether the response is what the stream is for. What follows it
	// is read by nobody, and counts for nothing.
	last func(*jsonrpc.Response) bool
	over bool // it was handed on

	out []byte // what was not read yet
	err error
}

func newSifted(body io.ReadCloser, in *inlet, maxEvent int, end func(error), last func(*jsonrpc.Response) bool) *sifted {
	return &sifted{body: body, lines: bufio.NewReaderSize(body, 16<<10), inlet: in, max: maxEvent, end: end, last: last}
}

// lastOf is the last of a sifted body: the response to the call that was sent, on a
// stream that is resumed any response, on that of what the server sends by itself
// none.
func lastOf(req *http.Request) func(*jsonrpc.Response) bool {
	if req.Method == http.MethodGet {
		resumed := req.Header.Get("Last-Event-ID") != ""
		return func(*jsonrpc.Response) bool { return resumed }
	}
	call, _ := messageOf(req).(*jsonrpc.Request)
	return func(r *jsonrpc.Response) bool { return call != nil && r.ID == call.ID }
}

// Close closes the body.
func (s *sifted) Close() error { return s.body.Close() }

// Read reads of the events that are left. A server that floods ends the session.
func (s *sifted) Read(p []byte) (int, error) {
	for len(s.out) == 0 && s.err == nil {
		s.out, s.err = s.next()
	}
	if len(s.out) == 0 {
		return 0, s.err
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// next reads one event and returns what is left of it.
func (s *sifted) next() ([]byte, error) {
	if s.over {
		_, err := io.Copy(io.Discard, s.lines)
		return nil, cmp.Or(err, io.EOF)
	}
	var e event
	for {
		line, err := s.line(s.max - len(e.raw))
		if errors.Is(err, errTooLong) {
			s.end(tooLong(s.max))
			return nil, tooLong(s.max)
		}
		blank := len(bytes.TrimRight(line, "\r\n")) == 0
		e.add(line)
		if err == nil && !blank {
			continue
		}
		left, flood := s.left(&e)
		if flood != nil {
			s.end(flood)
			return nil, flood
		}
		return left, err
	}
}

// errTooLong says that a line does not fit.
var errTooLong = errors.New("too long")

// line reads a line with its end, of at most so many bytes.
func (s *sifted) line(most int) ([]byte, error) {
	var whole []byte
	for {
		part, err := s.lines.ReadSlice('\n')
		if len(whole)+len(part) > most {
			return nil, errTooLong
		}
		whole = append(whole, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return whole, err
		}
	}
}

// event is one server-sent event.
type event struct {
	raw    []byte
	data   []byte
	resume []byte // its lines id and retry
}

// add adds a line; comments are left out.
func (e *event) add(line []byte) {
	field, value, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "":
		if len(value) > 0 || bytes.HasPrefix(line, []byte(":")) {
			return
		}
	case "data":
		if e.data != nil {
			e.data = append(e.data, '\n')
		}
		e.data = append(e.data, value...)
	case "id", "retry":
		e.resume = append(e.resume, line...)
	}
	e.raw = append(e.raw, line...)
}

// left is what is to be passed on of the event. What is no message is for the SDK
// to judge.
func (s *sifted) left(e *event) ([]byte, error) {
	msg, err := jsonrpc.DecodeMessage(e.data)
	if err != nil {
		return e.raw, nil
	}
	if r, ok := msg.(*jsonrpc.Response); ok {
		s.over = s.last(r)
	}
	switch take, err := s.inlet.takes(msg); {
	case err != nil:
		return nil, &endedError{reason: err.Error()}
	case take:
		return e.raw, nil
	case len(e.resume) == 0:
		return nil, nil
	}
	return append(e.resume, '\n'), nil
}
