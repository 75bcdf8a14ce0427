package openapitest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/httpapi/openapi"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/openapitest"
	"github.com/moorebus/moorebus/internal/refusal"
)

type answer struct {
	N    int               `json:"n"`
	More map[string]string `json:"more,omitempty"`
}

// Whatever an answer has that the description lacks is found.
func TestTransport(t *testing.T) {
	document, err := openapi.Document([]route.Route{
		{Pattern: "POST /v1/x/{id}", Summary: "Makes x.", Body: struct {
			A string `json:"a"`
		}{}, Answer: answer{}, Status: http.StatusCreated, Codes: []string{refusal.CodeRunNotFound}},
		{Pattern: "GET /v1/lines/{id}", Summary: "Lists x.", Streams: []string{"application/x-ndjson", "text/event-stream"}},
	})
	require.NoError(t, err)
	var status int
	var media, body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/openapi.json" {
			_, _ = w.Write(document)
			return
		}
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	var failed []string
	client := &http.Client{Transport: &openapitest.Transport{Base: server.Client().Transport, Fail: func(format string, args ...any) { failed = append(failed, fmt.Sprintf(format, args...)) }}}
	for _, c := range []struct {
		method, path, sent string
		status             int
		media, body        string
		want               string // "": as described
	}{
		{"POST", "/v1/x/1", `{"a": "b"}`, 201, "application/json", `{"n": 1, "more": {"x": "y"}}`, ""},
		{"POST", "/v1/x/1", `{"a": "b"}`, 201, "application/json", `{"n": 1, "odd": 2}`, "odd"},
		{"POST", "/v1/x/1", `{"a": "b"}`, 201, "application/json", `{"more": {}}`, "n"},
		{"POST", "/v1/x/1", `{"a": "b"}`, 201, "application/json", `{"n": "1"}`, "integer"},
		{"POST", "/v1/x/1", `{"a": "b"}`, 200, "application/json", `{"n": 1}`, "lacks this status"},
		{"POST", "/v1/x/1", `{"a": "b"}`, 201, "text/plain", `x`, "media type"},
		{"POST", "/v1/x/1", `{"b": "b"}`, 201, "application/json", `{"n": 1}`, "the body was accepted"},
		{"POST", "/v1/x/1", `{"b": "b"}`, 400, "application/json", `{"code": "bad_request", "message": "m"}`, ""},
		{"POST", "/v1/x/1", `{"a": "b"}`, 404, "application/json", `{"code": "run_not_found", "message": "m", "run": "1"}`, ""},
		{"POST", "/v1/x/1", `{"a": "b"}`, 404, "application/json", `{"code": "agent_not_found", "message": "m"}`, "run_not_found"},
		{"POST", "/v1/x/1", `{"a": "b"}`, 404, "application/json", `{"code": "run_not_found"}`, "message"},
		{"GET", "/v1/lines/1", "", 200, "application/x-ndjson", "x", ""},
		{"GET", "/v1/lines/1", "", 200, "application/json", "{}", "media type"},
		{"GET", "/v1/lines/1", "", 204, "", "", ""},
		{"GET", "/v1/elsewhere", "", 404, "application/json", `{"code": "not_found", "message": "m"}`, ""},
		{"GET", "/v1/elsewhere", "", 200, "application/json", `{}`, "no operation"},
	} {
		failed, status, media, body = nil, c.status, c.media, c.body
		req, err := http.NewRequestWithContext(t.Context(), c.method, server.URL+c.path, strings.NewReader(c.sent))
		require.NoError(t, err)
		res, err := client.Do(req)
		require.NoError(t, err)
		data, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, c.body, string(data), "the body can still be read")
		if c.want == "" {
			require.Empty(t, failed, "%+v", c)
			continue
		}
		require.Len(t, failed, 1, "%+v", c)
		require.Contains(t, failed[0], c.want)
	}
}
