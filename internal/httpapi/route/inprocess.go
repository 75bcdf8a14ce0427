package route

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// InProcess is an http.RoundTripper that calls handlers in this process. An answer is read while
// its handler writes it, and the handler's context ends with the request's. What a handler refuses
// is the error of the request, as the handler returned it. No limits of size or time hold.
type InProcess map[string]Endpoint

// NewInProcess returns the handlers of rows.
func NewInProcess(rows []Route) InProcess {
	p := InProcess{}
	for _, row := range rows {
		p[row.Pattern] = row.Handle
	}
	return p
}

// RoundTrip calls the handler of a request that an [Op] or a [Stream] made.
func (p InProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	handle := p[r.Pattern]
	if handle == nil {
		return nil, fmt.Errorf("nothing in this process answers %s", r.Pattern)
	}
	ctx, stop := context.WithCancel(r.Context())
	reader, writer := io.Pipe()
	a := &ownAnswer{resp: &http.Response{Request: r}, header: http.Header{}, began: make(chan struct{}), ended: make(chan struct{}), pipe: writer}
	a.resp.Body = &ownBody{reader, func() { stop(); <-a.ended }}
	go func() {
		defer close(a.ended)
		defer stop()
		err := a.handle(handle, r.WithContext(ctx))
		if err == nil {
			a.WriteHeader(http.StatusOK)
		}
		a.end(err)
	}()
	<-a.began
	if a.err != nil {
		<-a.ended
		if a.panicked != nil {
			panic(a.panicked) // where the caller can clean up
		}
		return nil, a.err
	}
	return a.resp, nil
}

// ownAnswer is the answer of a handler in this process.
type ownAnswer struct {
	resp         *http.Response
	header       http.Header
	once         sync.Once
	began, ended chan struct{}
	pipe         *io.PipeWriter
	// err is what failed before the answer began.
	err error
	// panicked is the value of the handler's panic.
	panicked any
}

// handle calls a handler. One that breaks its answer off returns io.ErrUnexpectedEOF.
func (a *ownAnswer) handle(handle Endpoint, r *http.Request) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			err = io.ErrUnexpectedEOF
		default:
			a.panicked = p
			err = fmt.Errorf("the handler of %s panicked: %v", r.Pattern, p)
		}
	}()
	return handle(a, r)
}

// end ends the answer.
func (a *ownAnswer) end(err error) {
	a.once.Do(func() { a.err = err; close(a.began) })
	_ = a.pipe.CloseWithError(err) // it never fails
}

// Header is that of [http.ResponseWriter].
func (a *ownAnswer) Header() http.Header { return a.header }

// WriteHeader begins the answer.
func (a *ownAnswer) WriteHeader(status int) {
	a.once.Do(func() {
		a.resp.StatusCode, a.resp.Status = status, http.StatusText(status)
		a.resp.Header = a.header.Clone() // the handler may continue changing its own
		close(a.began)
	})
}

// Write waits until the data was read.
func (a *ownAnswer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.pipe.Write(data)
}

// Flush begins the answer: nothing is buffered.
func (a *ownAnswer) Flush() { a.WriteHeader(http.StatusOK) }

// ownBody ends its handler when it is closed.
type ownBody struct {
	*io.PipeReader
	stop func()
}

// Close waits for the end of the handler.
func (b *ownBody) Close() error {
	err := b.PipeReader.Close()
	b.stop()
	return err
}
