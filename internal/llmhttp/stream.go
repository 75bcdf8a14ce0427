package llmhttp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
)

// Stated is the body of an error that a provider states in the middle of a stream.
type Stated []byte

// Error returns the body.
func (s Stated) Error() string { return string(s) }

// Event is one event of a stream. Data is valid JSON or [DONE], unless the server
// wrote something else.
type Event struct {
	Name string
	Data []byte
}

// Progress is how far a streamed reply has come.
type Progress int

// The progress of a reply.
const (
	// Begun is a reply that lacks something.
	Begun Progress = iota
	// MayEnd is a reply that is complete if the stream ends here.
	MayEnd
	// Complete is a reply that lacks nothing. What comes soon after it, such as the
	// usage, is still read.
	Complete
	// Ended is a reply after which nothing is of interest.
	Ended
)

// drainTime is how long the connection of an ended stream may take to end.
const drainTime = 50 * time.Millisecond

// Stream sends a request for a streamed reply and gives every event to add, until
// add says that the reply ended. A server that answers in one piece all the same
// gives a Reply, which is nil otherwise. Add returns [Stated] for an error of the
// provider, which counts even after the reply; after any other error the stream is broken.
func (c *Client) Stream(ctx context.Context, body []byte, add func(Event) (Progress, error)) (*Reply, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := c.do(ctx, body, "text/event-stream")
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return c.whole(resp)
	}
	src := bufio.NewReader(resp.Body)
	first, err := begins(src, c.opts.MaxBytes)
	if onePiece(first) {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{src, resp.Body}
		return c.whole(resp)
	}
	defer func() { _ = resp.Body.Close() }()
	// Until the stream has begun only the call's own time bounds it.
	silence := stopped(func() { cancel(fmt.Errorf("nothing came for %v", c.opts.Silence)) })
	grace := stopped(func() { cancel(nil) })
	defer silence.Stop()
	defer grace.Stop()
	in := newEvents(src, c.opts.MaxBytes, func() { silence.Reset(c.opts.Silence) })
	if err == nil {
		err = play(in, add, func() { grace.Reset(c.grace) })
	}
	if err != nil {
		if errors.Is(err, context.Canceled) {
			err = context.Cause(ctx)
		}
		return nil, c.broken(err, in, resp)
	}
	// Read to the end, so that the connection can be used again.
	grace.Reset(drainTime)
	_, _ = io.Copy(io.Discard, in.src)
	return nil, nil
}

// play gives the events to add, and calls complete once the reply lacks nothing. A failure after
// that is no error, except one that the provider reports.
func play(in *eventReader, add func(Event) (Progress, error), complete func()) error {
	progress := Begun
	for progress != Ended {
		e, err := in.next()
		if err == io.EOF && progress == MayEnd {
			return nil
		}
		now := Begun
		if err == nil {
			now, err = add(e)
		}
		if progress < Complete && now == Complete {
			complete()
		}
		if progress < Complete || now == Ended {
			progress = now
		}
		var stated Stated
		switch {
		case errors.As(err, &stated), err != nil && progress < Complete:
			return err
		case err != nil:
			return nil
		}
	}
	return nil
}

var byteOrderMark = []byte("\ufeff")

// begins reads the space before a body and returns the first byte after it.
func begins(src *bufio.Reader, limit int64) (byte, error) {
	if mark, _ := src.Peek(1); string(mark) == string(byteOrderMark[:1]) {
		if mark, _ = src.Peek(len(byteOrderMark)); bytes.Equal(mark, byteOrderMark) {
			_, _ = src.Discard(len(byteOrderMark))
		}
	}
	for ; limit >= 0; limit-- {
		b, err := src.ReadByte()
		if err != nil {
			return 0, err
		}
		if !bytes.ContainsRune([]byte(" \t\r\n"), rune(b)) {
			return b, src.UnreadByte()
		}
	}
	return 0, errTooLarge
}

// onePiece reports whether a body that begins with the byte is JSON or a page, whatever its
// content type is.
func onePiece(first byte) bool { return first == '{' || first == '[' || first == '<' }

// streams reports whether a body is a stream of events.
func streams(body []byte) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	for _, field := range []string{"data:", "event:", ":"} {
		if bytes.HasPrefix(body, []byte(field)) {
			return true
		}
	}
	return false
}

// stopped returns a stopped timer that calls f when it is reset and runs out.
func stopped(f func()) *time.Timer {
	timer := time.AfterFunc(time.Hour, f)
	timer.Stop()
	return timer
}

// broken distinguishes a broken stream from one in which the provider reported an error, and
// from one that is too large.
func (c *Client) broken(err error, in *eventReader, resp *http.Response) error {
	var stated Stated
	switch {
	case errors.As(err, &stated):
		return c.failed(stated, resp)
	case errors.Is(err, errTooLarge):
		return c.tooLarge(resp.StatusCode)
	case err != io.EOF:
		return c.brokenBy(err, resp.StatusCode)
	case StatesError(in.outside):
		return c.failed(in.outside, resp)
	case in.count == 0 && len(in.outside) > 0:
		return (&Reply{response: resp, client: c}).Unfit(fmt.Errorf("it holds no events and begins with %.40q", in.outside))
	}
	return c.brokenBy(errors.New("it ended before the reply was complete"), resp.StatusCode)
}

// failed is an error that the provider states in a stream. One that it only describes broke
// the stream.
func (c *Client) failed(stated []byte, resp *http.Response) error {
	p := read(stated, resp.StatusCode)
	e := c.problem(p, resp)
	if e.Kind == llm.KindOther && p.kind == "" && p.code == "" {
		e.Kind = llm.KindBroken
	}
	return e
}

func (c *Client) brokenBy(err error, status int) *llm.Error {
	return &llm.Error{
		Kind: llm.KindBroken, Status: status, Err: c.hidden().harmless(err),
		Message: c.hidden().clean(fmt.Sprintf("the stream broke: %v", err)),
	}
}

var errTooLarge = errors.New("the server's reply is larger than the limit")

// eventReader reads server-sent events as the APIs send them. It is more lenient than
// the standard: an event needs no empty line at its end if its data is complete.
type eventReader struct {
	src  *bufio.Reader
	left int64
	// heard is called for each line.
	heard func()
	name  string
	data  []byte
	// outside is the text that belongs to no field. Some servers write an error
	// as plain JSON.
	outside []byte
	// count is how many events came.
	count int
	// cr says that the last line ended with a carriage return.
	cr bool
}

func newEvents(body io.Reader, limit int64, heard func()) *eventReader {
	return &eventReader{src: bufio.NewReader(io.LimitReader(body, limit+1)), left: limit, heard: heard}
}

// next returns the next event with data, and io.EOF at the end.
func (in *eventReader) next() (Event, error) {
	for {
		line, err := in.line()
		if in.left < 0 {
			return Event{}, errTooLarge
		}
		if err != nil && err != io.EOF {
			return Event{}, err
		}
		in.heard()
		if in.read(bytes.TrimSpace(line)) || err == io.EOF && len(in.data) > 0 {
			e := Event{in.name, in.data}
			in.data = nil
			in.count++
			return e, nil
		}
		if err != nil {
			return Event{}, err
		}
	}
}

// line returns the next line without its end, which is CR, LF or both.
func (in *eventReader) line() (line []byte, err error) {
	for in.left >= 0 {
		b, err := in.src.ReadByte()
		if err != nil {
			return line, err
		}
		in.left--
		after := in.cr
		in.cr = b == '\r'
		switch {
		case b == '\n' && after: // the line ended before
		case b == '\n' || b == '\r':
			return line, nil
		default:
			line = append(line, b)
		}
	}
	return line, nil
}

// read takes one line and reports whether it completes an event.
func (in *eventReader) read(line []byte) bool {
	if len(line) == 0 {
		if len(in.data) > 0 {
			return true
		}
		in.name = ""
		return false
	}
	field, value, found := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case found && string(field) == "data":
		if len(in.data) > 0 {
			in.data = append(in.data, '\n')
		}
		in.data = append(in.data, value...)
		return string(in.data) == "[DONE]" || json.Valid(in.data)
	case found && string(field) == "event":
		in.name = string(value)
	case found && (len(field) == 0 || string(field) == "id" || string(field) == "retry"):
	default:
		in.outside = append(in.outside, line...)
	}
	return false
}
