package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// event is a run's event as the feed has it.
type event struct {
	ID     string          `json:"id"`
	Type   string          `json:"type"`
	Run    string          `json:"subject"`
	N      uint64          `json:"n"`
	From   string          `json:"from"`
	To     string          `json:"to"`
	Prev   string          `json:"prev"`
	Source string          `json:"source"`
	Data   json.RawMessage `json:"data"`
}

// terminal reports whether no event follows.
func (e *event) terminal() bool { return e.To == "done" || e.To == "error" || e.To == "cancelled" }

// chunk is a part of a reply in the making.
type chunk struct {
	MessageID string `json:"message_id"`
	Offset    int    `json:"offset"`
	Text      string `json:"text"`
}

// feed follows one run over any number of connections and checks that nothing
// is missing and nothing comes twice.
type feed struct {
	api    *api
	run    string
	last   uint64
	prev   string
	chunks map[string][]chunk
}

// follow calls each with every event of the run from its first to its last,
// which it returns. It connects again wherever a connection breaks, until the
// context ends.
func (a *api) follow(ctx context.Context, run string, each func(*event) error) (*event, error) {
	f := &feed{api: a, run: run, chunks: map[string][]chunk{}}
	for {
		end, err := f.connection(ctx, each)
		if end != nil || err != nil {
			return end, err
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return nil, fmt.Errorf("run %s stands after event %d: %w", run, f.last, err)
		}
	}
}

// connection reads one connection to its end. A connection that cannot be made
// or breaks is no error.
func (f *feed) connection(ctx context.Context, each func(*event) error) (end *event, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.api.base+"/v1/runs/"+f.run+"/events", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "text/event-stream")
	if f.last > 0 {
		request.Header.Set("Last-Event-ID", strconv.FormatUint(f.last, 10))
	}
	response, err := f.api.http.Do(request)
	if err != nil {
		return nil, nil
	}
	defer func() { _ = response.Body.Close() }()
	switch {
	case response.StatusCode >= 500:
		return nil, nil
	case response.StatusCode != http.StatusOK:
		body, _ := io.ReadAll(response.Body)
		return nil, fmt.Errorf("events of %s after %d: HTTP %d: %s", f.run, f.last, response.StatusCode, body)
	}
	err = readSSE(response.Body, func(name, id, data string) error {
		if name == "chunk" {
			return f.addChunk(id, data)
		}
		if name == "tool_call_delta" {
			return nil
		}
		e, err := f.add(name, id, data)
		if err != nil {
			return err
		}
		if e.terminal() {
			end = e
		}
		if each == nil {
			return nil
		}
		return each(e)
	})
	if err == nil && end != nil && ctx.Err() != nil {
		err = fmt.Errorf("run %s: the stream did not end after the terminal event", f.run)
	}
	return end, err
}

// add checks an event against the one before it.
func (f *feed) add(name, id, data string) (*event, error) {
	e := new(event)
	if err := json.Unmarshal([]byte(data), e); err != nil {
		return nil, fmt.Errorf("run %s: %w: %.200q", f.run, err, data)
	}
	switch {
	case e.Run != f.run || e.Type != name || id != strconv.FormatUint(e.N, 10):
		return nil, fmt.Errorf("run %s: event %s with id %q is %s %d of run %s", f.run, name, id, e.Type, e.N, e.Run)
	case e.N != f.last+1:
		return nil, fmt.Errorf("run %s: event %d follows event %d", f.run, e.N, f.last)
	case e.Prev != f.prev:
		return nil, fmt.Errorf("run %s: event %d names %q as the hash of the one before, which is %q", f.run, e.N, e.Prev, f.prev)
	}
	sum := sha256.Sum256([]byte(data))
	f.last, f.prev = e.N, hex.EncodeToString(sum[:])
	return e, f.checkChunks(e)
}

func (f *feed) addChunk(id, data string) error {
	var c chunk
	if err := json.Unmarshal([]byte(data), &c); err != nil || id != "" {
		return fmt.Errorf("run %s: chunk %.200q with id %q: %w", f.run, data, id, err)
	}
	f.api.chunks.Add(1)
	f.chunks[c.MessageID] = append(f.chunks[c.MessageID], c)
	return nil
}

// checkChunks compares a reply with the chunks that announced it.
func (f *feed) checkChunks(e *event) error {
	var reply struct {
		MessageID string `json:"message_id"`
		Content   string `json:"content"`
	}
	if err := json.Unmarshal(e.Data, &reply); err != nil || e.Type != "LlmMessageComplete" {
		return err
	}
	for _, c := range f.chunks[reply.MessageID] {
		if end := c.Offset + len(c.Text); end > len(reply.Content) || reply.Content[c.Offset:end] != c.Text {
			return fmt.Errorf("run %s: chunk %+v is no part of the reply %q", f.run, c, reply.Content)
		}
	}
	return nil
}

// readSSE calls fn with each server-sent event until the stream ends, however it
// does, and returns the first error of fn.
func readSSE(r io.Reader, fn func(name, id, data string) error) error {
	lines := bufio.NewReader(r)
	var name, id string
	var data []string
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil
		}
		field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			name = value
		case "id":
			id = value
		case "data":
			data = append(data, value)
		}
		if strings.TrimRight(line, "\r\n") != "" || len(data) == 0 {
			continue
		}
		if err := fn(name, id, strings.Join(data, "\n")); err != nil {
			return err
		}
		name, id, data = "", "", nil
	}
}
