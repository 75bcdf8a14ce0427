package mcptool

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/oauth"
	"github.com/moorebus/moorebus/internal/retry"
	"github.com/moorebus/moorebus/internal/tracecontext"
	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	// streamTimeout is how long a server may take to say whether it has a stream for its own
	// messages.
	streamTimeout = 3 * time.Second
	// farewell limits the time of the request that ends a session.
	farewell = time.Second
)

// endpoint is a server behind a URL.
type endpoint struct {
	headers map[string]string
	max     int64
	base    *http.Transport
	auth    *oauth.Authorizer // nil: without OAuth
}

func newEndpoint(o Options) *endpoint {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DisableCompression = true // so that a small body cannot become a large one
	e := &endpoint{headers: o.Headers, max: int64(o.MaxMessage), base: base}
	if o.OAuth != nil {
		e.auth = oauth.New(oauth.Config(*o.OAuth), base)
	}
	return e
}

// exchange is the traffic of one session with an endpoint.
type exchange struct {
	*endpoint
	inlet *inlet
	// life ends with the session, and with it all requests in flight.
	life context.Context
	// end ends the session.
	end func(error)
	// discover bounds the answer to server/discover.
	discover time.Duration
	// unready is why the server could not say which versions it knows, if it is not ready. The
	// session then fails with it: another handshake would show an older server than there is.
	unready atomic.Pointer[error]
}

// transport returns the transport of the session.
func (x *exchange) transport(url string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: url, MaxEventSize: int(x.max), HTTPClient: &http.Client{
		Transport:     x,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// close closes idle connections.
func (e *endpoint) close() { e.base.CloseIdleConnections() }

// errOver says that a request was not sent, since its session has ended.
var errOver = errors.New("the session has ended")

// RoundTrip adds the headers, bounds the answer, and turns statuses that say nothing about
// the session into errors.
func (x *exchange) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodDelete {
		if x.auth != nil {
			x.auth.SetKnown(req) // the session ends: nobody waits for another one
		}
		return x.leave(x.headed(req, req.Context()))
	}
	if x.life.Err() != nil {
		if req.Method == http.MethodGet {
			return streamless(req), nil
		}
		return nil, errOver
	}
	if why := x.unready.Load(); why != nil {
		return nil, *why
	}
	if msg, ok := messageOf(req).(*jsonrpc.Request); ok && msg.Method == methodDiscover {
		return x.askVersions(req)
	}
	req, err := rewritten(req)
	if err != nil {
		return nil, err
	}
	return x.send(req)
}

// askVersions sends server/discover. A server that does not answer it, or with nothing, counts
// as one that does not know it, so that the SDK continues with the older handshake.
func (x *exchange) askVersions(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), x.discover)
	res, err := x.send(req.WithContext(ctx))
	switch {
	case err != nil && starting(err):
		cancel()
		x.unready.Store(&err)
		return nil, err
	case err != nil:
		cancel()
		return empty(req, http.StatusNotFound), nil
	case res.ContentLength == 0 && res.StatusCode/100 == 2:
		cancel()
		_ = res.Body.Close() // it is empty
		return empty(req, http.StatusNotFound), nil
	}
	res.Body = &cancelling{res.Body, cancel}
	return res, nil
}

// send sends a request of the session.
func (x *exchange) send(req *http.Request) (*http.Response, error) {
	if x.auth == nil {
		return x.sendOnce(req)
	}
	if err := x.auth.Set(req); err != nil {
		return nil, tokenless(err)
	}
	res, err := x.sendOnce(req)
	if err != nil {
		return res, err
	}
	again, err := x.auth.Refused(req, res)
	if err != nil {
		_ = res.Body.Close() // nobody reads it
		return nil, tokenless(err)
	}
	if !again {
		return res, nil
	}
	if req.GetBody != nil {
		if req.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
	if err := x.auth.Set(req); err != nil {
		return nil, tokenless(err)
	}
	res, err = x.sendOnce(req)
	if err == nil && res.StatusCode == http.StatusUnauthorized && req.Method == http.MethodPost {
		_ = res.Body.Close() // the status is enough
		return nil, statusOf(res)
	}
	return res, err
}

// tokenless is the failure of a call for which there is no token.
func tokenless(err error) error {
	f := tool.Failf(tool.CodeUnreachable, "%s", err)
	f.NotSent = true
	return f
}

// sendOnce sends a request with the token that it has.
func (x *exchange) sendOnce(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	detach := context.AfterFunc(x.life, cancel)
	done := func() { detach(); cancel() }
	send := x.post
	if req.Method == http.MethodGet {
		send = x.stream
	} else {
		noteSent(req.Context())
	}
	res, err := send(x.headed(req, ctx), cancel)
	if err != nil {
		done()
		return nil, err
	}
	res.Body = &cancelling{x.bounded(req, res), done}
	return res, nil
}

// headed returns the request with the headers.
func (e *endpoint) headed(req *http.Request, ctx context.Context) *http.Request {
	req = req.Clone(ctx)
	for name, value := range e.headers {
		req.Header.Set(name, value)
	}
	tracecontext.SetHeader(ctx, req.Header.Set)
	return req
}

// leave ends the session on the server.
func (x *exchange) leave(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), farewell)
	defer cancel()
	res, err := x.base.RoundTrip(req.WithContext(ctx))
	if err == nil {
		_ = res.Body.Close() // nobody reads it
		res.Body = http.NoBody
	}
	return res, err
}

// post sends a message. A call may take the time that it has. The server must accept any
// other message within [writeTimeout].
func (x *exchange) post(req *http.Request, cancel context.CancelFunc) (*http.Response, error) {
	msg := messageOf(req)
	if call, ok := msg.(*jsonrpc.Request); !ok || !call.IsCall() {
		defer time.AfterFunc(writeTimeout, cancel).Stop()
	}
	res, err := x.base.RoundTrip(req)
	x.inlet.answered(msg)
	if err != nil {
		return nil, err
	}
	if status := statusOf(res); status.passes() && (x.auth == nil || status.code != http.StatusUnauthorized) {
		_ = res.Body.Close() // the status is enough
		return nil, status
	}
	return res, nil
}

// messageOf returns the message that a request sends, or nil if it cannot be read.
func messageOf(req *http.Request) jsonrpc.Message {
	if req.GetBody == nil {
		return nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil
	}
	msg, err := jsonrpc.DecodeMessage(data)
	if err != nil {
		return nil
	}
	return msg
}

// stream asks for the stream of the server's own messages. A server that does not answer
// has none. A session that has ended has none either: the SDK would take an error for a
// temporary one, and delay the session's end by several retries.
func (x *exchange) stream(req *http.Request, cancel context.CancelFunc) (*http.Response, error) {
	patience := time.AfterFunc(streamTimeout, cancel)
	res, err := x.base.RoundTrip(req)
	late := !patience.Stop()
	if !late && x.life.Err() == nil {
		return res, err
	}
	if err == nil {
		_ = res.Body.Close() // it came too late
	}
	return streamless(req), nil
}

// streamless returns the answer of a server without such a stream.
func streamless(req *http.Request) *http.Response { return empty(req, http.StatusMethodNotAllowed) }

// empty returns an answer with nothing but a status.
func empty(req *http.Request, status int) *http.Response {
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}
}

// cancelling is a body whose Close cancels its request.
type cancelling struct {
	io.ReadCloser
	cancel func()
}

func (c *cancelling) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}

// bounded returns the body of an answer: filtered if it is a stream of events, else bounded
// in size. The SDK reads the entire body of a failure, whatever its type.
func (x *exchange) bounded(req *http.Request, res *http.Response) io.ReadCloser {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind == "text/event-stream" && res.StatusCode/100 == 2 {
		return newSifted(res.Body, x.inlet, int(x.max), x.end, lastOf(req))
	}
	return &limited{ReadCloser: res.Body, left: x.max, max: x.max}
}

// limited is a body that may not be longer than max.
type limited struct {
	io.ReadCloser
	left, max int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, tooLong(int(l.max))
	}
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.ReadCloser.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, tooLong(int(l.max))
	}
	return n, err
}

// statusError is an answer that concerns the request and not the session.
type statusError struct {
	code       int
	status     string
	retryAfter time.Duration
}

func statusOf(res *http.Response) *statusError {
	return &statusError{
		code: res.StatusCode, status: res.Status, retryAfter: retry.FromHeader(res.Header, time.Now()),
	}
}

// Error returns the status and what to do about it.
func (s *statusError) Error() string {
	switch s.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return s.status + ": check its headers or oauth in the file of MCP servers"
	}
	return s.status
}

// passes reports whether the session continues: the server is busy or broken, or refuses our
// credentials.
func (s *statusError) passes() bool { return s.passing() || s.refused() || s.code >= 500 }

// passing reports whether the same request may succeed later.
func (s *statusError) passing() bool {
	return s.code == http.StatusTooManyRequests || s.code >= 502 && s.code <= 504
}

// refused reports whether the server certainly did not process the request.
func (s *statusError) refused() bool {
	return s.code == http.StatusUnauthorized || s.code == http.StatusForbidden || s.code == http.StatusTooManyRequests
}

// sifted filters a stream of server-sent events. It passes events whose messages the inlet
// admits. Of other events it passes only the fields by which a stream is resumed.
type sifted struct {
	body  io.ReadCloser
	lines *bufio.Reader
	inlet *inlet
	max   int
	// end ends the session.
	end func(error)
	// last reports whether a response is the one that the stream is for. Nothing reads
	// what follows it.
	last func(*jsonrpc.Response) bool
	over bool // the last response was passed on

	out []byte // filtered and not yet read
	err error
}

func newSifted(body io.ReadCloser, in *inlet, maxEvent int, end func(error), last func(*jsonrpc.Response) bool) *sifted {
	return &sifted{body: body, lines: bufio.NewReaderSize(body, 16<<10), inlet: in, max: maxEvent, end: end, last: last}
}

// lastOf returns the function last of a sifted body: true of the response to the call that
// was sent, of any response on a resumed stream, and of none on the stream of the server's
// own messages.
func lastOf(req *http.Request) func(*jsonrpc.Response) bool {
	if req.Method == http.MethodGet {
		resumed := req.Header.Get("Last-Event-ID") != ""
		return func(*jsonrpc.Response) bool { return resumed }
	}
	call, _ := messageOf(req).(*jsonrpc.Request)
	return func(r *jsonrpc.Response) bool { return call != nil && r.ID == call.ID }
}

func (s *sifted) Close() error { return s.body.Close() }

// Read reads the remaining events. A server that floods ends the session.
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

// next reads one event and returns the part to pass on.
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

// errTooLong says that a line is longer than allowed.
var errTooLong = errors.New("too long")

// line reads a line of at most most bytes, with its end.
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
	resume []byte // the lines id and retry
}

// add adds a line. Comments are dropped.
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

// left returns the part of the event to pass on. The SDK handles what is not a message.
func (s *sifted) left(e *event) ([]byte, error) {
	msg, err := jsonrpc.DecodeMessage(e.data)
	if err != nil {
		return e.raw, nil
	}
	if r, ok := msg.(*jsonrpc.Response); ok {
		s.over = s.last(r)
	}
	switch take, err := s.inlet.admits(msg); {
	case err != nil:
		return nil, &endedError{reason: err.Error()}
	case take:
		return e.raw, nil
	case len(e.resume) == 0:
		return nil, nil
	}
	return append(e.resume, '\n'), nil
}
