package gatewaylog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/recordline"
	"github.com/moorebus/moorebus/internal/refusal"
)

// message is a server-sent event. id is empty for one that a stream does not resume from.
type message struct {
	event, id string
	data      []byte
}

// How long a client waits before it connects again: twice as long after each failure in a row.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// opener returns the request of a stream that continues after a message; empty: from its beginning.
type opener func(ctx context.Context, last string) (*http.Request, error)

// eventsOf opens the stream of a run.
func (c *Client) eventsOf(in requests.EventsOf) opener {
	return func(ctx context.Context, last string) (*http.Request, error) {
		in.LastEventID = last
		return requests.RunEvents.Request(ctx, c.API, in)
	}
}

// stream calls fn for the messages of a stream until ctx ends. Where the connection breaks, it
// continues after the last message that had an id. The error is that of ctx or of fn, or a refusal
// that another attempt would not change.
func (c *Client) stream(ctx context.Context, open opener, fn func(message) error) error {
	wait, last := firstRetry, ""
	for {
		err := c.streamOnce(ctx, open, last, func(m message) error {
			if wait = firstRetry; m.id != "" {
				last = m.id
			}
			return fn(m)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var stop *stopped
		var refused *refusal.Error
		switch {
		case errors.As(err, &stop):
			return stop.err
		case errors.As(err, &refused) && refused.Kind != refusal.Unavailable && refused.Kind != refusal.TooMany && refused.Kind != refusal.Internal:
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		wait = min(2*wait, lastRetry)
	}
}

// stopped is an error that no other connection changes.
type stopped struct{ err error }

func (e *stopped) Error() string { return e.err.Error() }

// streamOnce reads one connection to its end.
func (c *Client) streamOnce(ctx context.Context, open opener, last string, fn func(message) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := open(ctx, last)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", requests.EventStream)
	resp, err := c.API.Send(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if resp.StatusCode == http.StatusNoContent {
		<-ctx.Done() // the run has ended, and everything was read
		return ctx.Err()
	}
	body := alive(resp.Body, silence, cancel)
	defer body.stop()
	scan := bufio.NewScanner(body)
	scan.Buffer(nil, 2*recordline.Max)
	var m message
	for scan.Scan() {
		field, value, _ := bytes.Cut(scan.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			m.event = string(value)
		case "id":
			m.id = string(value)
		case "data":
			m.data = bytes.Clone(value)
		case "":
			if len(scan.Bytes()) > 0 || m.data == nil {
				continue // a comment, or nothing
			}
			if err := fn(m); err != nil {
				return &stopped{err}
			}
			m = message{}
		}
	}
	return scan.Err()
}
