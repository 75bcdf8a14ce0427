package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control/controltest"
	"github.com/moorebus/moorebus/internal/natsbus"
)

// TestQuotasOverHTTP: quotas are stored, shown and removed, and a start says that it is queued.
func TestQuotasOverHTTP(t *testing.T) {
	t.Parallel()
	b := controltest.NATS(t, natsbus.InitOptions{})
	r := newRig(t, b, func(c *config) { c.Leases = b })
	require.JSONEq(t, `{"quotas":[]}`, r.do("GET", "/v1/quotas", "").body)
	r.fails(404, "not_found", r.do("GET", "/v1/quotas/default", ""))
	a := r.do("PUT", "/v1/quotas/default", `{"active":1,"queued":1}`)
	require.Equal(t, http.StatusOK, a.status, a.body)
	r.fails(400, "bad_quota", r.do("PUT", "/v1/quotas/default", `{"active":-1}`))
	r.fails(400, "bad_quota", r.do("PUT", "/v1/quotas/UPPER", `{"active":1}`))
	r.fails(400, "bad_request", r.do("PUT", "/v1/quotas/default", `{"actve":1}`))
	started := r.do("POST", "/v1/runs", startBody("task"))
	require.Equal(t, http.StatusCreated, started.status, started.body)
	require.Contains(t, started.body, `"queued":true`)
	r.fails(400, "bad_request", r.do("POST", "/v1/runs", `{"agent":"x","priority":"urgent"}`))
	require.Eventually(t, func() bool {
		var q struct{ Now struct{ Active, Queued int } }
		return json.Unmarshal([]byte(r.do("GET", "/v1/quotas/default", "").body), &q) == nil && q.Now.Active == 1
	}, patience, 10*time.Millisecond)
	require.Equal(t, http.StatusCreated, r.do("POST", "/v1/runs", startBody("task")).status)
	require.Contains(t, r.do("GET", "/v1/runs?limit=1", "").body, `"queued":true`)
	require.Eventually(t, func() bool { return r.do("POST", "/v1/runs", startBody("task")).status == http.StatusTooManyRequests }, patience, 10*time.Millisecond)
	refused := r.fails(429, "too_many_queued", r.do("POST", "/v1/runs", startBody("task")))
	require.NotEmpty(t, refused.header.Get("Retry-After"))
	require.JSONEq(t, `{"deleted":true}`, r.do("DELETE", "/v1/quotas/default", "").body)
	r.fails(404, "not_found", r.do("DELETE", "/v1/quotas/default", ""))
	require.NotContains(t, r.do("POST", "/v1/runs", startBody("task")).body, "queued")
}
