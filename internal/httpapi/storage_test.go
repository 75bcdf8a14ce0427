package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStorageOverHTTP(t *testing.T) {
	t.Parallel()
	onEveryBus(t, 1, func(t *testing.T, r *rig) {
		const path = "/v1/agents/keeper/storage"
		require.JSONEq(t, `{"agents":[]}`, r.do("GET", "/v1/storage", "").body)
		require.JSONEq(t, `{"entries":[],"total":0}`, r.do("GET", path, "").body)
		for _, body := range []string{`{"tags":"plan, to day","value":"Rest"}`, `{"tags":["plan"],"value":"Work"}`} {
			a := r.do("PUT", path, body)
			require.Equal(t, http.StatusOK, a.status, a.body)
		}
		require.JSONEq(t, `{"agents":["keeper"]}`, r.do("GET", "/v1/storage", "").body)
		require.JSONEq(t, `{"entries":[{"tags":["plan"],"value":"Work"},{"tags":["plan","to_day"],"value":"Rest"}],"total":2}`, r.do("GET", path, "").body)
		require.JSONEq(t, `{"entries":[{"tags":["plan"],"value":"Work"}],"total":2}`, r.do("GET", path+"?tags=plan&limit=1", "").body)
		require.JSONEq(t, `{"entries":[{"tags":["plan","to_day"],"value":"Rest"}],"total":1}`, r.do("GET", path+"?q=REST", "").body)
		require.JSONEq(t, `{"entries":[{"tags":["plan","to_day"],"value":"Rest"}],"total":1}`, r.do("GET", path+"?tags=to%20day,plan&exact=true", "").body)
		require.JSONEq(t, `{"entries":[],"total":0}`, r.do("GET", path, "", "Moorebus-Namespace", "other").body)
		r.fails(404, "entry_not_found", r.do("GET", path+"?tags=to_day&exact=true", ""))

		require.JSONEq(t, `{"deleted":true}`, r.do("DELETE", path+"?tags=plan", "").body)
		r.fails(404, "entry_not_found", r.do("DELETE", path+"?tags=plan", ""))
		require.JSONEq(t, `{"entries":[{"tags":["plan","to_day"],"value":"Rest"}],"total":1}`, r.do("GET", path+"?tags=plan", "").body)

		r.fails(400, "bad_entry", r.do("PUT", path, `{"value":"x"}`))
		r.fails(400, "bad_entry", r.do("PUT", path, `{"tags":"x","value":"`+strings.Repeat("v", 70_000)+`"}`))
		r.fails(400, "bad_request", r.do("PUT", path, `{"tags":7,"value":"x"}`))
		r.fails(400, "bad_request", r.do("PUT", path, `{"tags":["a,b"],"value":"x"}`))
		r.fails(400, "bad_entry", r.do("DELETE", path, ""))
		r.fails(400, "bad_parameter", r.do("GET", path+"?exact=maybe", ""))
		r.fails(400, "bad_parameter", r.do("GET", path+"?limit=1001", ""))
		r.fails(400, "bad_agent", r.do("GET", "/v1/agents/UPPER/storage", ""))
	})
}
