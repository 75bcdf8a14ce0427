package mcpserve

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/journaltest/simtest"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/internal/worker"
)

// FuzzLines: whatever a client writes on stdin, each answer is a line of JSON, each message that is read
// is one, and the message on the last line is read.
func FuzzLines(f *testing.F) {
	const ping = `{"jsonrpc":"2.0","id":"the last one","method":"ping"}`
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","id":null,"result":{}}]`, "nonsense\n\r\n[]\n[5]\n", `{"jsonrpc":"2.0","id":{},"method":1}`, "\x00\xff",
		"[{\"jsonrpc\":\"2.0\",\"id\":1,\r\"method\":\"ping\"}]",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var out bytes.Buffer
		conn, err := Lines(strings.NewReader(string(text)+"\n"+ping+"\n"), &out).Connect(t.Context())
		require.NoError(t, err)
		var last jsonrpc.Message
		for {
			m, err := conn.Read(t.Context())
			if err != nil {
				break
			}
			last = m
		}
		request, is := last.(*jsonrpc.Request)
		require.True(t, is, "%v", last)
		require.Equal(t, "the last one", request.ID.Raw())
		for line := range strings.Lines(out.String()) {
			require.True(t, json.Valid([]byte(line)), line)
		}
		require.NoError(t, conn.Close())
	})
}

// FuzzRequest: whatever a client posts, it is answered, and no answer says that the server has failed.
func FuzzRequest(f *testing.F) {
	bus := simtest.New(simtest.Options{})
	store := runlog.New(runlog.Options{Log: bus})
	g, err := control.New(control.Config{Base: worker.Base{Store: store, Queue: bus, Feed: bus, Instance: "test"}, Timers: bus, KV: bus})
	require.NoError(f, err)
	s, err := New(f.Context(), Options{Log: bus, Store: store, Control: g, Namespace: "default"})
	require.NoError(f, err)
	f.Cleanup(s.shutDown)
	handler := s.handler("")
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"task":"x"},"requestState":"AAAA",` + meta + `}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, `[]`, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, `{"jsonrpc":"2.0","id":1,"result":{}}`, "\xff", ``,
	} {
		f.Add([]byte(body), true)
		f.Add([]byte(body), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, modern bool) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+Path, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		if modern {
			r.Header.Set("Mcp-Protocol-Version", stateless)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Less(t, w.Code, http.StatusInternalServerError, w.Body.String())
	})
}

// FuzzTask: the task of a call is what its arguments say, or they are refused.
func FuzzTask(f *testing.F) {
	for _, text := range []string{`{"task":"Dig."}`, `{"task":1}`, `{"other":""}`, `null`, `[]`, `{"task":"a","Task":"b"}`, ``} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, arguments []byte) {
		task, err := taskOf(arguments)
		var given map[string]any
		if err == nil && json.Unmarshal(arguments, &given) == nil && given["task"] != nil && len(given) == 1 {
			require.Equal(t, given["task"], task)
		}
	})
}
