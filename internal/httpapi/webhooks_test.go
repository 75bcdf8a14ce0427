package httpapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/feature/all"
	"github.com/moorebus/moorebus/internal/feature/webhooks"
)

func TestWebhooksOverHTTP(t *testing.T) {
	t.Parallel()
	bus := natsBus(t, 2)
	r := newRig(t, bus, func(c *config) {
		c.features = all.Features().With("webhooks", webhooks.Made(webhooks.Settings{Allowed: webhooks.Loopback()}))
	})
	posts := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { posts <- r.Header.Get("webhook-id") }))
	defer receiver.Close()

	require.JSONEq(t, `{"webhooks":[]}`, r.do("GET", "/v1/webhooks", "").body)
	r.fails(404, "webhook_not_found", r.do("GET", "/v1/webhooks/pager", ""))
	r.fails(400, "bad_webhook", r.do("PUT", "/v1/webhooks/Pager", `{"url":"https://x.example"}`))
	r.fails(400, "bad_webhook", r.do("PUT", "/v1/webhooks/pager", `{"url":"http://x.example"}`))
	r.fails(400, "bad_request", r.do("PUT", "/v1/webhooks/pager", `{"uri":"http://x.example"}`))
	a := r.do("PUT", "/v1/webhooks/pager", `{"url":"`+receiver.URL+`/in?key=hidden","on":["failed"]}`)
	require.Equal(t, http.StatusOK, a.status, a.body)
	var made webhooks.Info
	require.NoError(t, json.Unmarshal([]byte(a.body), &made))
	require.NotEmpty(t, made.Secret)
	for _, path := range []string{"/v1/webhooks/pager", "/v1/webhooks"} {
		a = r.do("GET", path, "")
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.Contains(t, a.body, "/in?…")
		require.NotContains(t, a.body, made.Secret[8:])
		require.NotContains(t, a.body, "hidden")
	}
	require.JSONEq(t, `{"webhooks":[]}`, r.do("GET", "/v1/webhooks", "", "Moorebus-Namespace", "other").body)
	a = r.do("PUT", "/v1/webhooks/pager", `{"url":"`+receiver.URL+`","rotate":true}`)
	require.Contains(t, a.body, `"old_secret_until"`)
	require.NotContains(t, a.body, made.Secret)

	a = r.do("POST", "/v1/webhooks/pager/test", "")
	require.Contains(t, a.body, `"delivered":true,"status":200`)
	require.Regexp(t, "^test_", <-posts)
	require.JSONEq(t, `{"dead":[]}`, r.do("GET", "/v1/webhooks/pager/dead", "").body)
	require.JSONEq(t, `{"count":0}`, r.do("POST", "/v1/webhooks/pager/retry", "").body)
	require.JSONEq(t, `{"count":0}`, r.do("POST", "/v1/webhooks/pager/drop", `{}`).body)
	r.fails(404, "not_dead", r.do("POST", "/v1/webhooks/pager/drop", `{"ids":["x"]}`))
	require.JSONEq(t, `{"deleted":true}`, r.do("DELETE", "/v1/webhooks/pager", "").body)
	r.fails(404, "webhook_not_found", r.do("DELETE", "/v1/webhooks/pager", ""))
}
