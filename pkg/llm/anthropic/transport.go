package anthropic

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// errTooLarge is a reply beyond Options.MaxBytes.
var errTooLarge = errors.New("the server's reply is larger than the limit")

// transportError is a request that got no reply, or only a part of one.
type transportError struct{ err error }

func (e *transportError) Error() string { return e.err.Error() }
func (e *transportError) Unwrap() error { return e.err }

// doer does one request. It keeps status and headers of the reply, and bounds it.
type doer struct {
	client *http.Client
	limit  int64
	// stream says that a good reply is read as it comes; heard is called whenever
	// something of it did.
	stream bool
	heard  func()

	status int
	header http.Header
	// body is that of a streamed reply.
	body *streamBody
}

// Do does the request.
func (d *doer) Do(req *http.Request) (*http.Response, error) {
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, &transportError{err}
	}
	d.status, d.header = resp.StatusCode, resp.Header
	if d.stream && resp.StatusCode == http.StatusOK {
		d.body = &streamBody{src: resp.Body, left: d.limit, heard: d.heard}
		resp.Body = d.body
		return resp, nil
	}
	return d.readWhole(resp)
}

// readWhole reads the body here, so that a connection that breaks is told from
// a reply that is not what it should be.
func (d *doer) readWhole(resp *http.Response) (*http.Response, error) {
	data, err := io.ReadAll(io.LimitReader(resp.Body, d.limit+1))
	err = errors.Join(err, resp.Body.Close())
	switch failed := resp.StatusCode >= http.StatusBadRequest; {
	case failed: // its status says more than its cut body
	case int64(len(data)) > d.limit:
		return nil, errTooLarge
	case err != nil:
		return nil, &transportError{err}
	}
	resp.Body = io.NopCloser(bytes.NewReader(data))
	return resp, nil
}

// streamBody bounds a streamed reply and tells when something comes.
type streamBody struct {
	src   io.ReadCloser
	left  int64
	heard func()
}

// Read reads what has come.
func (b *streamBody) Read(p []byte) (int, error) {
	n, err := b.src.Read(p)
	if n > 0 {
		b.heard()
	}
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	if err != nil && err != io.EOF {
		err = &transportError{err}
	}
	return n, err
}

// Close closes the reply's body.
func (b *streamBody) Close() error { return b.src.Close() }

// drain reads what is left after the reply, so that the connection can be used
// again. Whoever calls it bounds the time.
func (b *streamBody) drain() { _, _ = io.Copy(io.Discard, io.LimitReader(b.src, 1<<16)) }
