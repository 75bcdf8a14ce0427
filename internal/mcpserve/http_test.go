package mcpserve

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/journal"
)

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`

// send sends a request to the handler; header are pairs. What is empty is not sent.
func send(handler http.Handler, method, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:1"+Path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func same(log journal.Log) journal.Log { return log }

// A session is that of whoever got its id from the server: nobody chooses it, guesses it, or reaches it from a web
// page.
func TestSessionsOfOthers(t *testing.T) {
	s := served(t, same)
	handler := s.handler("")
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	for name, c := range map[string]struct {
		method, body string
		header       []string
		status       int
	}{
		"a session that it chose":            {"POST", initialize, []string{"Mcp-Session-Id", "mine"}, 404},
		"a guess":                            {"POST", list, []string{"Mcp-Session-Id", strings.Repeat("A", 26)}, 404},
		"to end another one's":               {"DELETE", "", []string{"Mcp-Session-Id", strings.Repeat("A", 26)}, 404},
		"to hear another one":                {"GET", "", []string{"Mcp-Session-Id", strings.Repeat("A", 26)}, 404},
		"to hear without a session":          {"GET", "", nil, 400},
		"a page of another site":             {"POST", initialize, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		"a page of another port":             {"POST", initialize, []string{"Sec-Fetch-Site", "same-site"}, 403},
		"a page of a file":                   {"POST", initialize, []string{"Origin", "null"}, 403},
		"a page that ends a session":         {"DELETE", "", []string{"Origin", "http://localhost:9", "Mcp-Session-Id", "x"}, 403},
		"a form":                             {"POST", initialize, []string{"Content-Type", "text/plain"}, 415},
		"a form, by the stateless protocol":  {"POST", list, []string{"Content-Type", "text/plain", "Mcp-Protocol-Version", "2026-07-28"}, 415},
		"a version that never was":           {"POST", initialize, []string{"Mcp-Protocol-Version", "1999-01-01"}, 400},
		"more than a body may have":          {"POST", strings.Repeat(" ", maxBody+1), nil, 413},
		"a session of the stateless version": {"DELETE", "", []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Session-Id", "x"}, 405},
	} {
		require.Equal(t, c.status, send(handler, c.method, c.body, c.header...).Code, name)
	}
	first, second := send(handler, "POST", initialize).Header().Get("Mcp-Session-Id"), send(handler, "POST", initialize).Header().Get("Mcp-Session-Id")
	require.NotEqual(t, first, second)
	require.GreaterOrEqual(t, len(first), 26, "it has 128 bits of chance")
}

// A server whose clients open sessions and leave has no more of them than it can hold, and serves those that it has.
func TestSessionsAreBounded(t *testing.T) {
	s := served(t, same)
	s.most = 8
	handler := s.handler("")
	session := send(handler, "POST", initialize).Header().Get("Mcp-Session-Id")
	for range s.most - 1 {
		require.Equal(t, 200, send(handler, "POST", initialize).Code)
	}
	refused := send(handler, "POST", initialize)
	require.Equal(t, http.StatusServiceUnavailable, refused.Code)
	require.NotEmpty(t, refused.Header().Get("Retry-After"))
	require.Equal(t, 200, send(handler, "POST", `{"jsonrpc":"2.0","id":2,"method":"ping"}`, "Mcp-Session-Id", session).Code)
	require.Equal(t, 204, send(handler, "DELETE", "", "Mcp-Session-Id", session).Code)
	require.Equal(t, 200, send(handler, "POST", initialize).Code, "there is room again")
}

// Only this server makes states, and each for one run: none is changed, cut, made up, or taken from another server.
func TestForgedStates(t *testing.T) {
	s, other := served(t, same), served(t, same)
	run := s.o.Store.Place("default", s.o.Store.NewID())
	state := func(s *Server) string {
		return s.asks(&caller{req: &mcp.CallToolRequest{}}, run, []events.Request{{CallID: "c", Reason: "r"}}, "a").RequestState
	}
	mine, err := base64.RawURLEncoding.DecodeString(state(s))
	require.NoError(t, err)
	changed := append([]byte{}, mine...)
	changed[len(changed)-3] ^= 1
	for name, forged := range map[string]string{
		"no base64": "*", "nothing of a proof": "AAAA", "a proof of zeros": strings.Repeat("A", 200),
		"of another server": state(other), "changed": base64.RawURLEncoding.EncodeToString(changed), "cut": base64.RawURLEncoding.EncodeToString(mine[:len(mine)-1]),
		"the run alone": base64.RawURLEncoding.EncodeToString(mine[32:]), "two in one": base64.RawURLEncoding.EncodeToString(append(mine, mine...)),
	} {
		_, err := s.resume(t.Context(), &caller{req: &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{RequestState: forged}}})
		require.ErrorIs(t, err, errState, name)
	}
}
