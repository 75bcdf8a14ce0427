// Command chat has a conversation over the gateway's HTTP, as any program in any
// language could.
//
//	printf 'How many moons has Mars?\nAnd Jupiter?\n' | go run ./examples/chat
//
// It starts everything in this process, on a temporary data directory. The model is
// scripted, so it needs no key.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// definition is the agent: in chat mode a run waits for the next message after
// each answer.
const definition = `{
  "name": "astronomer", "mode": "chat",
  "llm": {"provider": "scripted", "script": [
    {"text": "Mars has two moons, Phobos and Deimos."},
    {"text": "Of Jupiter, 97 moons were known in 2025."}
  ]}
}`

// run sends each line of in as a message and writes the answers to out.
func run(ctx context.Context, in io.Reader, out io.Writer) error {
	url, stop, err := serve(ctx)
	if err != nil {
		return err
	}
	defer stop()
	c := client{url: url}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer, err := c.say(ctx, lines.Text())
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "you: %s\nastronomer: %s\n", lines.Text(), answer); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	ended, err := c.post(ctx, "/v1/runs/"+c.run+"/close", `{"reason": "nothing more to ask"}`)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "the run is %s\n", ended["state"])
	return err
}

// client is one conversation. after is the last event that it has seen.
type client struct {
	url, run string
	after    int
}

// say sends a message and waits for the answer.
func (c *client) say(ctx context.Context, text string) (string, error) {
	message, err := json.Marshal(text)
	if err != nil {
		return "", err
	}
	if c.run == "" {
		started, err := c.post(ctx, "/v1/runs", fmt.Sprintf(`{"agent": %s, "task": %s}`, definition, message))
		if err != nil {
			return "", err
		}
		c.run, _ = started["run_id"].(string)
		return c.answer(ctx)
	}
	if _, err := c.post(ctx, "/v1/runs/"+c.run+"/inputs", fmt.Sprintf(`[{"type": "user-message", "content": %s}]`, message)); err != nil {
		return "", err
	}
	return c.answer(ctx)
}

func (c *client) post(ctx context.Context, path, body string) (map[string]any, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("%s: %v", path, answer["message"])
	}
	return answer, nil
}

// answer follows the run's events to the next answer. A client that loses the connection
// continues after the last event that it saw, and misses none.
func (c *client) answer(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/v1/runs/%s/events?from=%d", c.url, c.run, c.after+1), nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var event struct {
			N    int
			Type string
			Data struct{ Content, Message string }
		}
		if err := json.Unmarshal(data, &event); err != nil || event.N == 0 {
			continue // a chunk of the answer in the making
		}
		c.after = event.N
		switch event.Type {
		case "LlmMessageComplete":
			return event.Data.Content, nil
		case "FatalError":
			return "", fmt.Errorf("the run ended: %s", event.Data.Message)
		}
	}
	return "", fmt.Errorf("the stream ended after event %d", c.after)
}
