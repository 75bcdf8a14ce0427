package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A bus that was set up before there were timers starts no run, and says what to
// do.
func TestBusWithoutTimers(t *testing.T) {
	t.Parallel()
	b := natsBus(t, 1)
	r := newRig(t, b, func(cfg *config) { cfg.Ready = b.Ready })
	require.Equal(t, http.StatusOK, r.do("GET", "/readyz", "").status)
	_, err := b.Conn().Request("$JS.API.STREAM.DELETE.MOORE_TIMERS", nil, patience)
	require.NoError(t, err)
	for _, a := range []answer{r.do("GET", "/readyz", ""), r.do("POST", "/v1/runs", startBody("task"))} {
		require.Contains(t, r.fails(503, "unavailable", a).text(t, "message"), "moorebus init")
	}
}
