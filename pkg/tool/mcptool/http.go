package mcptool

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/pkg/tool"
)

const (
	// streamTimeout is how long a server may take to say whether it has a stream
	// for what it sends by itself.
	streamTimeout = 3 * time.Second
	// farewell is how long the end of a session may take that is told to its server.
	farewell = time.Second
	// linesPerSecond paces event streams; an event has three lines or four. What is
	// read is queued without a bound, so it must not come faster than it is handled.
	linesPerSecond = 20_000
)

// endpoint is the way to a server behind a URL.
type endpoint struct {
	headers map[string]string
	max     int64
	base    *http.Transport
}

func newEndpoint(o Options) *endpoint {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DisableCompression = true // a small body must not become a large one
	return &endpoint{headers: o.Headers, max: int64(o.MaxMessage), base: base}
}

// transport returns a transport for one session.
func (e *endpoint) transport(url string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: url, MaxEventSize: int(e.max), HTTPClient: &http.Client{
		Transport:     e,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// close lets go of idle connections.
func (e *endpoint) close() { e.base.CloseIdleConnections() }

// RoundTrip adds the headers, bounds the answer, and makes errors of the statuses
// that say nothing about the session.
func (e *endpoint) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	for name, value := range e.headers {
		req.Header.Set(name, value)
	}
	switch req.Method {
	case http.MethodGet:
		return e.stream(req)
	case http.MethodDelete:
		ctx, cancel := context.WithTimeout(req.Context(), farewell)
		defer cancel()
		res, err := e.base.RoundTrip(req.WithContext(ctx))
		if err == nil {
			_ = res.Body.Close() // nobody reads it
			res.Body = http.NoBody
		}
		return res, err
	}
	res, err := e.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if status := statusOf(res); req.Method == http.MethodPost && status.passes() {
		_ = res.Body.Close() // what it says is of no use
		return nil, status
	}
	return e.bounded(req.Context(), res), nil
}

// stream asks for the stream of what the server sends by itself. A server that
// does not answer has none.
func (e *endpoint) stream(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	patience := time.AfterFunc(streamTimeout, cancel)
	res, err := e.base.RoundTrip(req.WithContext(ctx))
	if !patience.Stop() && req.Context().Err() == nil {
		if err == nil {
			_ = res.Body.Close() // it came too late
		}
		return &http.Response{
			StatusCode: http.StatusMethodNotAllowed, Status: "405 Method Not Allowed", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{}, Body: http.NoBody, Request: req,
		}, nil
	}
	if err != nil {
		cancel()
		return nil, err
	}
	res = e.bounded(ctx, res)
	res.Body = &cancelling{res.Body, cancel}
	return res, nil
}

// cancelling is a body whose end ends its request.
type cancelling struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close closes the body.
func (c *cancelling) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}

// bounded bounds a body: in time if it is a stream of events, each of which the
// transport bounds, else in size.
func (e *endpoint) bounded(ctx context.Context, res *http.Response) *http.Response {
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == "text/event-stream" {
		res.Body = &paced{ReadCloser: res.Body, ctx: ctx}
	} else {
		res.Body = &limited{ReadCloser: res.Body, left: e.max, max: e.max}
	}
	return res
}

// limited is a body that may not be longer than max.
type limited struct {
	io.ReadCloser
	left, max int64
}

// Read fails where there is more.
func (l *limited) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, &endedError{reason: fmt.Sprintf("it sent a message of more than %d bytes", l.max)}
	}
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.ReadCloser.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, &endedError{reason: fmt.Sprintf("it sent a message of more than %d bytes", l.max)}
	}
	return n, err
}

// paced is a body of which no more lines are read in a second than are handled.
type paced struct {
	io.ReadCloser
	ctx   context.Context
	since time.Time
	lines int
}

// Read waits where lines come too fast.
func (p *paced) Read(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.since) >= time.Second {
		p.since, p.lines = now, 0
	}
	if p.lines > linesPerSecond {
		wait := time.NewTimer(time.Until(p.since.Add(time.Second)))
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-p.ctx.Done():
			return 0, p.ctx.Err()
		}
	}
	n, err := p.ReadCloser.Read(b[:min(len(b), 16<<10)])
	for _, c := range b[:n] {
		if c == '\n' {
			p.lines++
		}
	}
	return n, err
}

// statusError is an answer that says something about the request and nothing about
// the session.
type statusError struct {
	code       int
	status     string
	retryAfter time.Duration
}

func statusOf(res *http.Response) *statusError {
	return &statusError{
		code: res.StatusCode, status: res.Status, retryAfter: tool.ParseRetryAfter(res.Header.Get("Retry-After"), time.Now()),
	}
}

// Error returns code and text of the status, and what to do about it.
func (s *statusError) Error() string {
	switch s.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return s.status + ": look at its headers in the file of MCP servers"
	}
	return s.status
}

// passes reports whether the session goes on behind it: the server is busy, or
// broken, or does not take our word for who we are.
func (s *statusError) passes() bool { return s.passing() || s.refused() || s.code >= 500 }

// passing reports whether the same request may well succeed later.
func (s *statusError) passing() bool {
	return s.code == http.StatusTooManyRequests || s.code >= 502 && s.code <= 504
}

// refused reports whether the request surely was not looked at.
func (s *statusError) refused() bool {
	return s.code == http.StatusUnauthorized || s.code == http.StatusForbidden || s.code == http.StatusTooManyRequests
}
