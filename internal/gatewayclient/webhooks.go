package gatewayclient

import (
	"context"
	"net/http"

	"github.com/moorebus/moorebus/internal/control/webhooks"
)

// PutWebhook is [webhooks.Hooks.PutWebhook].
func (c *Client) PutWebhook(ctx context.Context, ns, name string, change webhooks.Change) (webhooks.Info, error) {
	return post[webhooks.Info](ctx, c, request{method: http.MethodPut, namespace: ns, path: path("webhooks", name)}, change)
}

// Webhook is [webhooks.Hooks.Webhook].
func (c *Client) Webhook(ctx context.Context, ns, name string) (webhooks.Info, error) {
	return ask[webhooks.Info](ctx, c, request{namespace: ns, path: path("webhooks", name)})
}

// Webhooks is [webhooks.Hooks.Webhooks].
func (c *Client) Webhooks(ctx context.Context, ns string) ([]webhooks.Info, error) {
	list, err := ask[struct {
		Webhooks []webhooks.Info `json:"webhooks"`
	}](ctx, c, request{namespace: ns, path: path("webhooks")})
	return list.Webhooks, err
}

// DeleteWebhook is [webhooks.Hooks.DeleteWebhook].
func (c *Client) DeleteWebhook(ctx context.Context, ns, name string) error {
	return c.call(ctx, request{method: http.MethodDelete, namespace: ns, path: path("webhooks", name)}, nil)
}

// TestWebhook is [webhooks.Hooks.TestWebhook], from the gateway.
func (c *Client) TestWebhook(ctx context.Context, ns, name string) (webhooks.Tested, error) {
	return ask[webhooks.Tested](ctx, c, request{method: http.MethodPost, namespace: ns, path: path("webhooks", name, "test")})
}

// WebhookDead is [webhooks.Hooks.WebhookDead].
func (c *Client) WebhookDead(ctx context.Context, ns, name string) ([]webhooks.Undelivered, error) {
	list, err := ask[struct {
		Dead []webhooks.Undelivered `json:"dead"`
	}](ctx, c, request{namespace: ns, path: path("webhooks", name, "dead")})
	return list.Dead, err
}

// RetryWebhook is [webhooks.Hooks.RetryWebhook].
func (c *Client) RetryWebhook(ctx context.Context, ns, name string, ids []string) (int, error) {
	return c.letters(ctx, ns, name, "retry", ids)
}

// DropWebhook is [webhooks.Hooks.DropWebhook].
func (c *Client) DropWebhook(ctx context.Context, ns, name string, ids []string) (int, error) {
	return c.letters(ctx, ns, name, "drop", ids)
}

func (c *Client) letters(ctx context.Context, ns, name, do string, ids []string) (int, error) {
	done, err := post[struct {
		Count int `json:"count"`
	}](ctx, c, request{namespace: ns, path: path("webhooks", name, do)}, map[string]any{"ids": append([]string{}, ids...)})
	return done.Count, err
}
