package llmhttp

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// maxIssued is how many keys a client keeps out of its errors: more than expire during a call.
const maxIssued = 16

// issued are the last keys that a function gave.
type issued struct {
	mu   sync.Mutex
	keys secrets
}

// key returns the key of a request, which is not the refused one if there is another. A
// failure is an error of [llm.KindNetwork], not of [llm.KindAuth]: a token server that is
// down may be back at the next attempt, while an error of authentication ends a run.
func (c *Client) key(ctx context.Context, refused string) (string, error) {
	if c.opts.Keys == nil {
		return c.opts.APIKey, nil
	}
	key, err := c.opts.Keys(ctx, refused)
	if err != nil {
		return "", c.network(err, 0)
	}
	key = strings.TrimSpace(key)
	c.issued.mu.Lock()
	defer c.issued.mu.Unlock()
	if len(key) >= minSecret && !slices.Contains(c.issued.keys, key) {
		c.issued.keys = append(c.issued.keys, key)
		c.issued.keys = c.issued.keys[max(0, len(c.issued.keys)-maxIssued):]
	}
	return key, nil
}

// hidden are the texts that no error may hold by now.
func (c *Client) hidden() secrets {
	c.issued.mu.Lock()
	defer c.issued.mu.Unlock()
	return slices.Concat(c.issued.keys, c.secrets)
}

// do sends the request. One that is refused for an expired key is sent once more with
// another.
func (c *Client) do(ctx context.Context, body []byte, accept string) (*http.Response, error) {
	key, err := c.key(ctx, "")
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, body, accept, key)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || c.opts.Keys == nil {
		return resp, err
	}
	_ = resp.Body.Close() // the answer to the next request counts
	if key, err = c.key(ctx, key); err != nil {
		return nil, err
	}
	return c.send(ctx, body, accept, key)
}
