package mcpserve

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The codes of JSON-RPC for a line that is no message.
const (
	codeParseError     = -32700
	codeInvalidRequest = -32600
)

// Lines is a transport over a client's lines, one message each, or a batch of them,
// whose messages are answered one by one: where the protocol's version has batches
// no more, the SDK would end the connection. A line that is none is answered with an
// error and skipped: the connection outlives it.
func Lines(in io.Reader, out io.Writer) mcp.Transport {
	answers := &lineWriter{out: out}
	return &mcp.IOTransport{Reader: &lineReader{in: bufio.NewReaderSize(in, 64<<10), answers: answers}, Writer: answers}
}

// lineWriter writes one line at a time. Closing it leaves the writer below open.
type lineWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lineWriter) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.Write(data)
}

func (w *lineWriter) Close() error { return nil }

// refuse answers what has no id that could be read.
func (w *lineWriter) refuse(code int, reason string) error {
	data, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": reason},
	})
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// lineReader reads messages, a line each.
type lineReader struct {
	in      *bufio.Reader
	answers *lineWriter
	rest    []byte
}

func (r *lineReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		line, err := r.line()
		if err != nil {
			return 0, err
		}
		r.rest = line
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close leaves the reader below open: a read of stdin cannot be ended.
func (r *lineReader) Close() error { return nil }

// errTooLong is a line that is longer than any message.
var errTooLong = errors.New("the line is too long")

// line returns the messages of the next line, nothing if there is none, which is
// answered then.
func (r *lineReader) line() ([]byte, error) {
	line, err := r.bounded()
	text := bytes.TrimSpace(line)
	switch {
	case errors.Is(err, errTooLong):
		return nil, r.answers.refuse(codeParseError, errTooLong.Error())
	case len(text) == 0:
		return nil, err
	case !json.Valid(text):
		return nil, r.answers.refuse(codeParseError, "the line is not JSON")
	}
	messages, err := messagesOf(text)
	if err != nil {
		return nil, r.answers.refuse(codeInvalidRequest, err.Error())
	}
	return messages, nil
}

// bounded reads up to the end of a line. Of one that is too long nothing is kept.
func (r *lineReader) bounded() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.in.ReadSlice('\n')
		if long = long || len(line)+len(part) >= mcp.DefaultMaxLineLength; !long {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case long && (err == nil || errors.Is(err, io.EOF)):
			return nil, errTooLong
		case len(bytes.TrimSpace(line)) > 0 && errors.Is(err, io.EOF):
			return line, nil // the last line has no end
		default:
			return line, err
		}
	}
}

// messagesOf returns the messages of a line of JSON, one a line, or why it is no
// message, and no batch of messages.
func messagesOf(text []byte) ([]byte, error) {
	messages := []json.RawMessage{text}
	if text[0] == '[' {
		if err := json.Unmarshal(text, &messages); err != nil {
			return nil, err
		}
		if len(messages) == 0 {
			return nil, errors.New("the batch is empty")
		}
	}
	var lines []byte
	for _, m := range messages {
		if _, err := jsonrpc.DecodeMessage(m); err != nil {
			return nil, err
		}
		lines = append(append(lines, m...), '\n')
	}
	return lines, nil
}
