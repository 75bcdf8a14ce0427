package openai

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"

	"github.com/moorebus/moorebus/pkg/llm"
)

// errTooLarge is a reply beyond Options.MaxBytes.
var errTooLarge = errors.New("the server's reply is larger than the limit")

// transportError is a request that got no reply, or only a part of one.
type transportError struct{ err error }

func (e *transportError) Error() string { return e.err.Error() }
func (e *transportError) Unwrap() error { return e.err }

// exchange is one HTTP request and what the library does not tell about its
// reply. It travels in the context, as the library has no other way to hand
// something to its HTTPDoer.
type exchange struct {
	body   []byte
	names  *llm.ToolNames
	stream bool
	status int
	header http.Header
	// events is the body of a streamed reply.
	events *eventBody
	// whole is the body of a reply that came in one piece although a stream was
	// asked for.
	whole []byte
}

// errWhole stands for a reply that came in one piece: it is in the exchange,
// since the library reads nothing but a stream then.
var errWhole = errors.New("the server answered in one piece")

type exchangeKey struct{}

func (x *exchange) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// doer sends the exchange's body in place of the library's, keeps status and
// headers, and bounds the reply.
type doer struct {
	client *http.Client
	header http.Header
	limit  int64
}

// Do does the request; see [openai.HTTPDoer].
func (d *doer) Do(req *http.Request) (*http.Response, error) {
	x, ok := req.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, errors.New("a request without an exchange")
	}
	req.Body = io.NopCloser(bytes.NewReader(x.body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
	req.ContentLength = int64(len(x.body))
	req.Header.Set("User-Agent", "moorebus")
	for k, v := range d.header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, &transportError{err}
	}
	x.status, x.header = resp.StatusCode, resp.Header
	if x.stream && resp.StatusCode == http.StatusOK {
		if mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mediaType == "application/json" {
			return nil, d.readAside(x, resp)
		}
		x.events = newEventBody(resp.Body, d.limit)
		resp.Body = x.events
		return resp, nil
	}
	return d.readWhole(resp)
}

// readAside puts a reply in one piece into the exchange.
func (d *doer) readAside(x *exchange, resp *http.Response) error {
	resp, err := d.readWhole(resp)
	if err != nil {
		return err
	}
	if x.whole, err = io.ReadAll(resp.Body); err != nil {
		return err
	}
	return errWhole
}

// readWhole reads the body here, so that a connection that breaks is told from
// a reply that is not what it should be.
func (d *doer) readWhole(resp *http.Response) (*http.Response, error) {
	data, err := io.ReadAll(io.LimitReader(resp.Body, d.limit+1))
	closeErr := resp.Body.Close()
	failed := resp.StatusCode >= http.StatusBadRequest
	switch {
	case int64(len(data)) > d.limit && !failed:
		return nil, errTooLarge
	case err != nil && !failed: // a failure's status says more than its cut body
		return nil, &transportError{err}
	case closeErr != nil && !failed:
		return nil, &transportError{closeErr}
	}
	resp.Body = io.NopCloser(bytes.NewReader(data))
	return resp, nil
}

// eventBody gives the library the lines of an event stream that it handles well:
// without comments and fields other than data (it collects those as if they
// were an error's text), and with the last line ended (it drops it otherwise).
type eventBody struct {
	src  *bufio.Reader
	body io.Closer
	left int64
	// heard is called for each line that comes; may be nil.
	heard func()
	line  []byte
	err   error
}

func newEventBody(body io.ReadCloser, limit int64) *eventBody {
	return &eventBody{src: bufio.NewReader(io.LimitReader(body, limit+1)), body: body, left: limit}
}

// Read gives the next bytes.
func (b *eventBody) Read(p []byte) (int, error) {
	for len(b.line) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.next()
	}
	n := copy(p, b.line)
	b.line = b.line[n:]
	return n, nil
}

// Close closes the reply's body.
func (b *eventBody) Close() error { return b.body.Close() }

func (b *eventBody) next() {
	line, err := b.src.ReadBytes('\n')
	b.left -= int64(len(line))
	switch {
	case b.left < 0:
		b.err = errTooLarge
		return
	case err == io.EOF:
		line, b.err = append(line, '\n'), io.EOF
	case err != nil:
		b.err = &transportError{err}
		return
	}
	if b.heard != nil {
		b.heard()
	}
	for _, prefix := range []string{":", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(line, []byte(prefix)) {
			return
		}
	}
	b.line = line
}

// drain reads what is left after the reply, so that the connection can be used
// again. Whoever calls it bounds the time.
func (b *eventBody) drain() {
	_, _ = io.Copy(io.Discard, b.src)
}
