package webhooks

import (
	"context"
	"slices"

	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/httpapi/requests"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// The inputs and answers of requests about webhooks, and the names that the description gives them.
type (
	webhookChange Change
	webhookInfo   Info
	webhookTest   Tested
	webhookDead   WebhookLetters
	// NewWebhook is a webhook and its name.
	NewWebhook struct {
		requests.Named
		Change Change `body:""`
	}
	// WebhookList has the webhooks of a namespace.
	WebhookList struct {
		Webhooks []Info `json:"webhooks"`
	}
	// WebhookLetters has the notices of a webhook that were given up.
	WebhookLetters struct {
		Dead []Undelivered `json:"dead"`
	}
	// WebhookIDs names notices that were given up.
	WebhookIDs struct {
		IDs []string `json:"ids,omitempty" jsonschema:"The events, as the list of what was given up names them. Default: all of that list."`
	}
	// NamedLetters are those of a webhook.
	NamedLetters struct {
		requests.Named
		IDs WebhookIDs `body:""`
	}
	// WebhookCount is a number of notices.
	WebhookCount struct {
		Count int `json:"count" jsonschema:"How many notices that were."`
	}
)

var webhookCodes = []string{row.CodeWebhookNotFound, row.CodeBadWebhook}

// The requests about webhooks.
var (
	ListWebhooks = route.Define(route.Route{
		Pattern: "GET /v1/webhooks", Summary: "Lists the webhooks of the namespace with the state of their delivery.",
	}, func(ctx context.Context, h *Hooks, in requests.Scope) (WebhookList, error) {
		all, err := h.Webhooks(ctx, in.Namespace)
		return WebhookList{all}, err
	})
	PutWebhook = route.Define(route.Route{
		Pattern: "PUT /v1/webhooks/{name}", Summary: "Creates or changes a webhook. A new one, and one that was disabled, gets the events from now on.", Body: webhookChange{}, Answer: webhookInfo{},
		Codes: []string{row.CodeBadWebhook, refusal.CodeConflict}, Example: `{"url": "https://hooks.example/moorebus", "on": ["waiting", "failed"]}`,
	}, func(ctx context.Context, h *Hooks, in NewWebhook) (Info, error) {
		return h.PutWebhook(ctx, in.Namespace, in.Name, in.Change)
	})
	GetWebhook = requests.OfName(route.Route{
		Pattern: "GET /v1/webhooks/{name}", Summary: "Shows a webhook, and how its delivery stands.", Answer: webhookInfo{}, Codes: webhookCodes,
	}, (*Hooks).Webhook)
	DeleteWebhook = route.Define(route.Route{
		Pattern: "DELETE /v1/webhooks/{name}", Summary: "Removes a webhook with its undelivered notices.", Codes: slices.Concat(webhookCodes, []string{refusal.CodeConflict}),
	}, func(ctx context.Context, h *Hooks, in requests.Named) (requests.Deleted, error) {
		return requests.Deleted{Deleted: true}, h.DeleteWebhook(ctx, in.Namespace, in.Name)
	})
	TestWebhook = requests.OfName(route.Route{
		Pattern: "POST /v1/webhooks/{name}/test", Summary: "Sends a notice of the type webhook.test from this gateway, once, and returns the outcome.", Answer: webhookTest{}, Codes: webhookCodes,
	}, (*Hooks).TestWebhook)
	WebhookDead = route.Define(route.Route{
		Pattern: "GET /v1/webhooks/{name}/dead", Summary: "Lists the given-up notices, the oldest first.", Answer: webhookDead{}, Codes: webhookCodes,
	}, func(ctx context.Context, h *Hooks, in requests.Named) (WebhookLetters, error) {
		all, err := h.WebhookDead(ctx, in.Namespace, in.Name)
		return WebhookLetters{all}, err
	})
	RetryWebhook = letters("retry", "Delivers given-up notices again.", (*Hooks).RetryWebhook)
	DropWebhook  = letters("drop", "Removes given-up notices.", (*Hooks).DropWebhook)
)

// letters defines a request that does something with notices that were given up.
func letters(verb, summary string, do func(h *Hooks, ctx context.Context, ns, name string, ids []string) (int, error)) *route.Op[*Hooks, NamedLetters, WebhookCount] {
	return route.Define(route.Route{
		Pattern: "POST /v1/webhooks/{name}/" + verb, Summary: summary, OptionalBody: true,
		Codes: slices.Concat(webhookCodes, []string{refusal.CodeNotDead}), Example: `{"ids": ["0198c5a0-5a6b-7c00-8000-000000000001"]}`,
	}, func(ctx context.Context, h *Hooks, in NamedLetters) (WebhookCount, error) {
		n, err := do(h, ctx, in.Namespace, in.Name, in.IDs.IDs)
		return WebhookCount{n}, err
	})
}

// rows returns the requests of webhooks.
func (h *Hooks) rows() []route.Route {
	return []route.Route{
		ListWebhooks.Row(h), PutWebhook.Row(h), GetWebhook.Row(h), DeleteWebhook.Row(h), TestWebhook.Row(h),
		WebhookDead.Row(h), RetryWebhook.Row(h), DropWebhook.Row(h),
	}
}
