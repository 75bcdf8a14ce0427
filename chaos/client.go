package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// client talks to the gateway, which may be away or asleep at any time.
type client struct {
	base string
	http *http.Client
}

func newClient(base string) *client {
	return &client{base: base, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// answerTime is how long an answer is waited for before the request is repeated.
// A request whose answer is lost so may be carried out twice.
const answerTime = 3 * time.Second

// refusal is an answer that is not 2xx and says that to repeat is no use.
type refusal struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Decision is the first one, where this was another.
	Decision *decision `json:"decision"`
	// Result is the client's first one, where this was another.
	Result *clientResult `json:"result"`
}

func (r *refusal) Error() string { return fmt.Sprintf("HTTP %d %s: %s", r.Status, r.Code, r.Message) }

// passing reports whether the reason of a refusal goes away by itself. A 4xx never
// does: what a client gets only because something is restarting has to be a 503.
func (r *refusal) passing() bool { return r.Status >= 500 }

// do makes a request until it is answered for good. The error is a *refusal, or
// the context's.
func (c *client) do(ctx context.Context, method, path string, body, out any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	for {
		last := c.once(ctx, method, path, data, out)
		if r, refused := last.(*refusal); last == nil || refused && !r.passing() {
			return last
		}
		if !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("%s %s: %w, the last try: %v", method, path, ctx.Err(), last)
		}
	}
}

func (c *client) once(ctx context.Context, method, path string, data []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		r := &refusal{Status: response.StatusCode}
		if err := json.Unmarshal(answer, r); err != nil {
			r.Message = string(answer)
		}
		return r
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}
