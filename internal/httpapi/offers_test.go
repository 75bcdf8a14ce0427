package httpapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestJustGoneOverHTTP: the client is told when to try again.
func TestJustGoneOverHTTP(t *testing.T) {
	r := simulatedRig(t, func(c *config) { c.PoolWait = time.Second })
	require.Eventually(t, func() bool {
		o, err := r.Bus.Offers(t.Context())
		return err == nil && o.First["search"] == "default"
	}, patience, 10*time.Millisecond)
	require.NoError(t, r.Bus.Withdraw(t.Context(), "default", "a"))
	for r.do("POST", "/v1/runs", startBody("task")).status == http.StatusCreated {
		continue // what was announced is known for a second
	}
	a := r.fails(http.StatusServiceUnavailable, "announcements_pending", r.do("POST", "/v1/runs", startBody("task")))
	require.Equal(t, "2", a.header.Get("Retry-After"))
	require.Equal(t, "search", a.text(t, "tool"))
}
