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

// The codes of JSON-RPC for a line that is not a message.
const (
	codeParseError     = -32700
	codeInvalidRequest = -32600
)

// Lines returns a transport over lines. A line is a message, or a batch whose messages are
// answered one by one: the SDK would end the connection if the protocol's version has no
// batches. A line that is not a message is answered with an error, and the connection stays.
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

// refuse answers a message whose id cannot be read.
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

// lineReader reads one message per line.
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

// Close leaves the reader below open: a read of stdin cannot be interrupted.
func (r *lineReader) Close() error { return nil }

// errTooLong is a line that is longer than any message.
var errTooLong = errors.New("the line is too long")

// line returns the messages of the next line. It answers a line without any and returns
// nothing.
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

// bounded reads to the end of a line. A line that is too long is discarded.
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
			return line, nil // the last line has no line end
		default:
			return line, err
		}
	}
}

// messagesOf returns the messages of a line of JSON, one per line, or why it is neither a
// message nor a batch.
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
