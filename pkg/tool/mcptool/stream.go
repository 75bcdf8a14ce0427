package mcptool

import (
	"bufio"
	"bytes"
	"errors"
	"io"

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

	out []byte // what was not read yet
	err error
}

func newSifted(body io.ReadCloser, in *inlet, maxEvent int, end func(error)) *sifted {
	return &sifted{body: body, lines: bufio.NewReaderSize(body, 16<<10), inlet: in, max: maxEvent, end: end}
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
		left, flood := e.left(s.inlet)
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
func (e *event) left(in *inlet) ([]byte, error) {
	msg, err := jsonrpc.DecodeMessage(e.data)
	if err != nil {
		return e.raw, nil
	}
	switch take, err := in.takes(msg); {
	case err != nil:
		return nil, &endedError{reason: err.Error()}
	case take:
		return e.raw, nil
	case len(e.resume) == 0:
		return nil, nil
	}
	return append(e.resume, '\n'), nil
}
