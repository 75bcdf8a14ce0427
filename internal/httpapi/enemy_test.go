package httpapi_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a holder of the token sends to reach beyond the API, or to make one request cost more than it may.
func TestRequestsBeyondTheAPI(t *testing.T) {
	t.Parallel()
	r := simulatedRig(t, nil)
	id := r.start("task")
	deep := strings.Repeat("[", 101) + strings.Repeat("]", 101)
	zeros := strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		code               string
	}{
		"a list without end":             {"GET", "/v1/runs?limit=1000000000", "", 400, "bad_parameter"},
		"a list of no number":            {"GET", "/v1/runs?limit=18446744073709551616", "", 400, "bad_parameter"},
		"an inbox without end":           {"GET", "/v1/waiting?limit=1000000000", "", 400, "bad_parameter"},
		"a place that it made up":        {"GET", "/v1/runs?cursor=AAAA", "", 400, "bad_parameter"},
		"a place of the inbox":           {"GET", "/v1/waiting?cursor=AAAA", "", 400, "bad_parameter"},
		"states that are not there":      {"GET", "/v1/runs/" + id + "/states?to=9223372036854775807", "", 400, "bad_parameter"},
		"states behind the end":          {"GET", "/v1/runs/" + id + "/states?from=9223372036854775806", "", 400, "bad_parameter"},
		"a position of no shard":         {"GET", "/v1/events?from_seq=999999:1", "", 400, "bad_parameter"},
		"a position of no number":        {"GET", "/v1/events?from_seq=0:18446744073709551615", "", 400, "bad_parameter"},
		"many positions of a shard":      {"GET", "/v1/events?from_seq=0:1" + strings.Repeat(",0:1", 5000), "", 400, "bad_parameter"},
		"a parameter twice":              {"GET", "/v1/runs?limit=1&limit=2", "", 400, "bad_parameter"},
		"a result of nine exabytes":      {"GET", "/v1/blobs/results_default/" + zeros + "?size=9223372036854775807", "", 404, "unknown_ref"},
		"a bucket that holds no results": {"GET", "/v1/blobs/agents/" + zeros + "?size=1", "", 404, "unknown_ref"},
		"a file beside the buckets":      {"GET", "/v1/blobs/..%2f..%2fetc/passwd?size=1", "", 404, "not_found"},
		"a file beside the runs":         {"GET", "/v1/runs/..%2f..%2fetc%2fpasswd", "", 404, "not_found"},
		"an agent beside the agents":     {"GET", "/v1/agents/..%2fa", "", 404, "not_found"},
		"a header in a name":             {"GET", "/v1/agents/a%0d%0aX-Evil:%20z", "", 404, "agent_not_found"},
		"every run":                      {"GET", "/v1/runs/%3e", "", 404, "run_not_found"},
		"any run":                        {"GET", "/v1/runs/%2a/events", "", 404, "run_not_found"},
		"a run and a bit of a subject":   {"GET", "/v1/runs/" + id + ".x", "", 404, "run_not_found"},
		"an agent with a wildcard":       {"PUT", "/v1/agents/%2a", `{"llm":{"provider":"openai"}}`, 400, "bad_agent"},
		"a run with a name of its own":   {"POST", "/v1/runs", `{"agent":` + inline + `,"task":"x","run_id":"a.b"}`, 400, "bad_run_id"},
		"a run in the place of another":  {"POST", "/v1/runs", `{"agent":` + inline + `,"task":"y","run_id":"` + id + `"}`, 409, "run_exists"},
		"a deep body":                    {"POST", "/v1/runs", `{"agent":"a","task":` + deep + `}`, 400, "bad_request"},
		"a deep agent":                   {"POST", "/v1/runs", `{"agent":{"name":"a","llm":{"provider":"openai"},"output_schema":` + deep + `},"task":"x"}`, 400, "bad_request"},
		"a deep patch":                   {"POST", "/v1/runs/" + id + "/fork", `{"at":1,"patch":{"x":` + deep + `}}`, 400, "bad_request"},
		"a patch of what happened":       {"POST", "/v1/runs/" + id + "/fork", `{"at":1,"patch":{"tool_calls":{"c":{}}}}`, 400, "bad_patch"},
		"a patch of what is approved":    {"POST", "/v1/runs/" + id + "/fork", `{"at":1,"patch":{"pending_approval":null,"approvals":{}}}`, 400, "bad_patch"},
		"an endpoint of its own":         {"POST", "/v1/runs", `{"agent":{"name":"a","llm":{"provider":"openai","base_url":"http://10.0.0.1"}},"task":"x"}`, 400, "bad_agent"},
		"a key of its own":               {"POST", "/v1/runs", `{"agent":{"name":"a","llm":{"provider":"openai","api_key_env":"HOME"}},"task":"x"}`, 400, "bad_agent"},
		"a command":                      {"POST", "/v1/runs", `{"agent":{"name":"a","llm":{"provider":"openai"},"tools":[{"name":"x","exec":{"command":["id"]}}]},"task":"x"}`, 400, "bad_agent"},
		"a file for an image":            {"POST", "/v1/runs/" + id + "/inputs", `[{"type":"user-message","content":[{"type":"image","media_type":"image/png","url":"file:///etc/passwd"}]}]`, 400, "bad_input"},
		"a body of more than a megabyte": {"POST", "/v1/runs", strings.Repeat(" ", 1<<20+1), 413, "too_large"},
	} {
		a := r.do(c.method, c.path, c.body, "Content-Type", "application/json")
		require.Equal(t, c.status, a.status, "%s: %s", name, a.body)
		require.Equal(t, c.code, a.field(t, "code"), "%s: %s", name, a.body)
		require.Empty(t, a.header.Get("X-Evil"), name)
		require.Less(t, len(a.body), 1000, "%s: what it sent comes back", name)
	}
	require.Equal(t, []string{"Start"}, r.Types(id))
}
