package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// eventStream is a client of server-sent events, as a browser is one: it knows the
// id of the last event that it saw.
type eventStream struct {
	http *http.Client
	url  string
	last string

	body  io.ReadCloser
	lines *bufio.Reader
}

// streamClient is for many streams at once, each on its own connection.
// receive is the size of a connection's receive buffer in bytes; 0: the system's.
func streamClient(receive int) *http.Client {
	dialer := net.Dialer{Timeout: readyTime}
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if tcp, ok := conn.(*net.TCPConn); ok && receive > 0 {
				err = errors.Join(err, tcp.SetReadBuffer(receive))
			}
			return conn, err
		},
	}}
}

// connect asks for the stream, behind the last event that was seen, and returns when
// it has begun. Without content there is nothing more to come: io.EOF.
func (s *eventStream) connect(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "text/event-stream")
	if s.last != "" {
		request.Header.Set("Last-Event-ID", s.last)
	}
	answer, err := s.http.Do(request)
	if err != nil {
		return err
	}
	switch answer.StatusCode {
	case http.StatusOK:
		s.body, s.lines = answer.Body, bufio.NewReader(answer.Body)
		return nil
	case http.StatusNoContent:
		err = io.EOF
	default:
		err = fmt.Errorf("%s: HTTP %d", s.url, answer.StatusCode)
	}
	return errors.Join(err, answer.Body.Close())
}

// next returns the id of the next event that has one. A stream that ends, however
// it does, is io.EOF: the client may connect again.
func (s *eventStream) next() (id string, err error) {
	for {
		line, err := s.lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull): // the rest of a line of data
			continue
		case err != nil:
			return "", io.EOF
		case bytes.HasPrefix(line, []byte("id: ")):
			id = string(bytes.TrimSpace(line[4:]))
		case len(line) == 1 && id != "":
			s.last = id
			return id, nil
		}
	}
}

func (s *eventStream) close() {
	if s.body != nil {
		_ = s.body.Close()
	}
}

// sequence is the number at the end of an event's id: its place in its run, or in
// its shard.
func sequence(id string) (uint64, error) {
	return strconv.ParseUint(id[strings.LastIndexByte(id, ':')+1:], 10, 64)
}

// see reads events until so many were seen after the number `after`, each one behind
// the one before without a gap, and says how often the stream was cut and resumed.
// A cut brings at least one event, else it is an error.
func (s *eventStream) see(ctx context.Context, after, want uint64) (resumed int, err error) {
	for at := after; at < after+want; {
		before := at
		if s.body == nil {
			if err := s.connect(ctx); err != nil {
				return resumed, fmt.Errorf("after event %d: %w", at, err)
			}
		}
		for at < after+want {
			id, err := s.next()
			if errors.Is(err, io.EOF) {
				break
			}
			n, err := sequence(id)
			if err != nil {
				return resumed, err
			}
			if n != at+1 {
				return resumed, fmt.Errorf("event %d came after %d", n, at)
			}
			at = n
		}
		if at == after+want {
			break
		}
		s.close()
		s.body = nil
		resumed++
		if at == before && resumed > 3 {
			return resumed, fmt.Errorf("the stream ends again and again after event %d of %d: %w", at, after+want, ctx.Err())
		}
	}
	return resumed, nil
}

// streamClients is how many clients the gateway says it has.
func (f *fleet) streamClients(ctx context.Context) (int, error) {
	const metric = "moorebus_gateway_stream_clients "
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.gateway+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := f.http.Do(request)
	if err != nil {
		return 0, err
	}
	text, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, metric); ok {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, fmt.Errorf("/metrics has no %s", metric)
}

// awaitClients waits until the gateway has so many clients.
func (f *fleet) awaitClients(ctx context.Context, want int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		n, err := f.streamClients(ctx)
		switch {
		case err != nil || n == want:
			return err
		case time.Now().After(end):
			return fmt.Errorf("the gateway has %d clients and not %d after %s", n, want, limit)
		case !idle(ctx, 100*time.Millisecond):
			return ctx.Err()
		}
	}
}
