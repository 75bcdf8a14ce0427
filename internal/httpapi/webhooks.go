package httpapi

import (
	"context"
	"net/http"

	"github.com/moorebus/moorebus/internal/control/webhooks"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

// Bodies and answers of requests about webhooks, by the names that the description gives them.
type (
	webhookChange webhooks.Change
	webhookInfo   webhooks.Info
	webhookTest   webhooks.Tested
	webhookList   struct {
		Webhooks []webhooks.Info `json:"webhooks"`
	}
	webhookDead struct {
		Dead []webhooks.Undelivered `json:"dead"`
	}
	webhookIDs struct {
		IDs []string `json:"ids,omitempty" jsonschema:"The events, as the list of what was given up names them. Default: all of that list."`
	}
	webhookCount struct {
		Count int `json:"count" jsonschema:"How many notices that were."`
	}
)

// webhookRows are about webhooks.
func (s *Server) webhookRows() []route.Route {
	codes := []string{refusal.CodeBadNamespace, refusal.CodeWebhookNotFound, refusal.CodeBadWebhook}
	return []route.Route{
		{
			Pattern: "GET /v1/webhooks", Handle: route.JSON(http.StatusOK, s.getWebhooks), Answer: webhookList{}, Codes: []string{refusal.CodeBadNamespace},
			Summary: "Lists the webhooks of the namespace, and how their delivery stands.",
		},
		{
			Pattern: "PUT /v1/webhooks/{name}", Handle: route.JSON(http.StatusOK, s.putWebhook), Body: webhookChange{}, Answer: webhookInfo{},
			Summary: "Makes or changes a webhook. A new one, and one that was disabled, gets the events from now on.",
			Codes:   []string{refusal.CodeBadNamespace, refusal.CodeBadWebhook, refusal.CodeConflict}, Example: `{"url": "https://hooks.example/moorebus", "on": ["waiting", "failed"]}`,
		},
		{Pattern: "GET /v1/webhooks/{name}", Handle: route.JSON(http.StatusOK, s.getWebhook), Answer: webhookInfo{}, Codes: codes, Summary: "Shows a webhook, and how its delivery stands."},
		{
			Pattern: "DELETE /v1/webhooks/{name}", Handle: route.JSON(http.StatusOK, s.deleteWebhook), Answer: deleted{}, Codes: with(codes, refusal.CodeConflict),
			Summary: "Removes a webhook, with what was not delivered.",
		},
		{
			Pattern: "POST /v1/webhooks/{name}/test", Handle: route.JSON(http.StatusOK, s.testWebhook), Answer: webhookTest{}, Codes: codes,
			Summary: "Sends a notice of the type webhook.test from this gateway, once, and says how that went.",
		},
		{Pattern: "GET /v1/webhooks/{name}/dead", Handle: route.JSON(http.StatusOK, s.getWebhookDead), Answer: webhookDead{}, Codes: codes, Summary: "Lists the notices that were given up, the oldest first."},
		{
			Pattern: "POST /v1/webhooks/{name}/retry", Handle: route.JSON(http.StatusOK, s.letters(s.control.RetryWebhook)), Body: webhookIDs{}, OptionalBody: true, Answer: webhookCount{},
			Summary: "Delivers notices again that were given up.", Codes: with(codes, refusal.CodeNotDead), Example: `{"ids": ["0198c5a0-5a6b-7c00-8000-000000000001"]}`,
		},
		{
			Pattern: "POST /v1/webhooks/{name}/drop", Handle: route.JSON(http.StatusOK, s.letters(s.control.DropWebhook)), Body: webhookIDs{}, OptionalBody: true, Answer: webhookCount{},
			Summary: "Forgets notices that were given up.", Codes: with(codes, refusal.CodeNotDead), Example: `{"ids": ["0198c5a0-5a6b-7c00-8000-000000000001"]}`,
		},
	}
}

func (s *Server) getWebhooks(ctx context.Context, r *route.Request) (any, error) {
	if _, err := route.Parameters(r.Request); err != nil {
		return nil, err
	}
	all, err := s.control.Webhooks(ctx, r.Namespace())
	return webhookList{all}, err
}

func (s *Server) putWebhook(ctx context.Context, r *route.Request) (any, error) {
	var body webhooks.Change
	if err := r.Object(&body); err != nil {
		return nil, err
	}
	return s.control.PutWebhook(ctx, r.Namespace(), r.PathValue("name"), body)
}

func (s *Server) getWebhook(ctx context.Context, r *route.Request) (any, error) {
	return s.control.Webhook(ctx, r.Namespace(), r.PathValue("name"))
}

func (s *Server) deleteWebhook(ctx context.Context, r *route.Request) (any, error) {
	err := s.control.DeleteWebhook(ctx, r.Namespace(), r.PathValue("name"))
	return deleted{Deleted: err == nil}, err
}

func (s *Server) testWebhook(ctx context.Context, r *route.Request) (any, error) {
	return s.control.TestWebhook(ctx, r.Namespace(), r.PathValue("name"))
}

func (s *Server) getWebhookDead(ctx context.Context, r *route.Request) (any, error) {
	all, err := s.control.WebhookDead(ctx, r.Namespace(), r.PathValue("name"))
	return webhookDead{all}, err
}

// letters answers a request that does something with notices that were given up.
func (s *Server) letters(do func(ctx context.Context, ns, name string, ids []string) (int, error)) func(context.Context, *route.Request) (any, error) {
	return func(ctx context.Context, r *route.Request) (any, error) {
		var body webhookIDs
		if err := r.OptionalObject(&body); err != nil {
			return nil, err
		}
		n, err := do(ctx, r.Namespace(), r.PathValue("name"), body.IDs)
		return webhookCount{n}, err
	}
}
