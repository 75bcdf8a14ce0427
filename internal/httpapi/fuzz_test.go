package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/journaltest/simtest"
)

// queried are the requests with parameters in their query, but for streams.
var queried = []string{
	"/v1/runs", "/v1/runs/ID", "/v1/runs/ID/events", "/v1/runs/ID/states", "/v1/runs/ID/request", "/v1/runs/ID/tree", "/v1/costs", "/v1/dead", "/v1/compare", "/v1/stats",
	"/v1/agents/tester/storage", "/v1/storage", "/v1/waiting", "/v1/blobs/results_web/" + strings.Repeat("0", 64), "/v1/tools", "/v1/schedules/x",
}

// FuzzQuery: whatever the query of a request is, it is answered, or refused with a code and a reason. No
// answer says that the gateway has failed.
func FuzzQuery(f *testing.F) {
	r := newRig(f, simtest.New(simtest.Options{}), nil)
	id := r.start("chat")
	r.Happens(id, "planning", turnDone("Hello."))
	for i, query := range []string{
		"state=planning&agent=tester&q=hello&limit=3", "since=2026-01-02T15:04:05Z&until=2026-01-02T15:04:05.999999999%2B14:00&cost_above=0.5", "cost_above=NaN", "limit=18446744073709551616",
		"cursor=AAAA&after=x", "parent=" + id + "&waiting=human&paused=only", "at=1", "from=1&view=state", "from=2&to=1", "at=2&body=true", "by=agent&since=1h", "all=true&dropped=false",
		"a=" + id + "&b=" + id, "tags=a,b&q=x&exact=true&limit=1", "%zz", "a=1;b=2", "q=%ff", "q=a&q=b", "=", "id_prefix=019",
	} {
		f.Add(uint(i), query)
	}
	f.Fuzz(func(t *testing.T, n uint, query string) {
		path := strings.ReplaceAll(queried[n%uint(len(queried))], "ID", id)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
		require.NoError(t, err)
		req.URL.RawQuery = strings.Map(func(c rune) rune {
			if c <= ' ' || c == '#' || c >= 0x7f {
				return -1 // no client can send it
			}
			return c
		}, query)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		// What this gateway does not keep is 503, whatever the query.
		require.True(t, resp.StatusCode < 500 || resp.StatusCode == http.StatusServiceUnavailable, "%s %s", resp.Status, body)
		if resp.StatusCode >= 400 {
			var refused struct{ Code, Message string }
			require.NoError(t, json.Unmarshal(body, &refused), "%s", body)
			require.NotEmpty(t, refused.Code)
			require.NotEmpty(t, refused.Message)
		}
	})
}
