package mcptool

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/pkg/tool"
)

// posted is the message that a request brings.
func posted(r *http.Request) (id json.RawMessage, method string) {
	body, _ := io.ReadAll(r.Body) // what cannot be read has no method
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	_ = json.Unmarshal(body, &m)
	return m.ID, m.Method
}

// reply answers a request of the handshake, or for the tools with those that are
// given; it reports whether it was one of these.
func reply(w http.ResponseWriter, id json.RawMessage, method, tools string) bool {
	w.Header().Set("Mcp-Session-Id", "s")
	w.Header().Set("Content-Type", "application/json")
	switch method {
	case "initialize":
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}`, id)
	case "tools/list":
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}`, id, tools)
	case "notifications/initialized", "notifications/cancelled":
		w.WriteHeader(http.StatusAccepted)
	default:
		return false
	}
	return true
}

// asker is a server that asks without end on its stream and takes no answers.
type asker struct{ answers, sent atomic.Int64 }

func (a *asker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		w.Header().Set("Mcp-Session-Id", "s")
		w.Header().Set("Content-Type", "text/event-stream")
		padding := strings.Repeat("z", 20_000)
		for i := 0; i < 20_000; i++ {
			if _, err := fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"ping\",\"params\":{\"_meta\":{\"x\":%q}}}\n\n", i, padding); err != nil {
				return
			}
			a.sent.Add(1)
			w.(http.Flusher).Flush()
		}
	case http.MethodPost:
		if id, method := posted(r); !reply(w, id, method, "") {
			a.answers.Add(1)
			<-r.Context().Done()
		}
	}
}

// A server behind a URL that asks faster than it takes answers loses its session.
func TestHTTPServerThatAsksWithoutEnd(t *testing.T) {
	a := &asker{}
	web := httptest.NewServer(a)
	defer web.Close()
	before := runtime.NumGoroutine()
	r := start(t, Options{Name: "srv", URL: web.URL})
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), errAsks.Error()) }, within, 10*time.Millisecond)
	require.Less(t, runtime.NumGoroutine()-before, 20*maxAsked)
	require.Less(t, a.sent.Load(), int64(20_000))
	r.stop()
	web.CloseClientConnections()
}

// Answers that a server does not take are given up, and its session goes on.
func TestHTTPServerThatTakesNoAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real timeouts
	}
	t.Parallel()
	w := newWeb(t, "server")
	works := w.handler
	var answers atomic.Int64
	w.serve(http.HandlerFunc(func(res http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			body, _ := io.ReadAll(req.Body)
			if strings.Contains(string(body), `"error"`) {
				answers.Add(1)
				<-req.Context().Done()
				return
			}
			req.Body = io.NopCloser(strings.NewReader(string(body)))
		}
		works.ServeHTTP(res, req)
	}))
	r := startWeb(t, w, func(o *Options) { o.Over.Timeout = 5 * time.Second })
	r.failure(t, "ask") // waits for answers that it does not take
	require.Positive(t, answers.Load())
	require.Eventually(t, func() bool { return r.server.current.inlet.asked.Load() == 0 }, writeTimeout+within, 20*time.Millisecond)
	require.Equal(t, "{}", r.says(t, "echo"))
}

// never is the last of a stream that goes on.
func never(*jsonrpc.Response) bool { return false }

// What follows the response to a call, which nobody reads, counts for nothing.
func TestSiftedAfterItsResponse(t *testing.T) {
	t.Parallel()
	const after = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n" +
		"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n"
	response := func(id string) string { return "data: {\"jsonrpc\":\"2.0\",\"id\":" + id + ",\"result\":{}}\n\n" }
	call, err := http.NewRequest(http.MethodPost, "http://h", strings.NewReader(`{"jsonrpc":"2.0","id":7,"method":"tools/call"}`))
	require.NoError(t, err)
	own, err := http.NewRequest(http.MethodGet, "http://h", http.NoBody)
	require.NoError(t, err)
	resumed := own.Clone(t.Context())
	resumed.Header.Set("Last-Event-ID", "3")
	for name, c := range map[string]struct {
		req    *http.Request
		in     string
		want   string
		counts bool
	}{
		"a call's":    {call, response("7") + after, response("7"), false},
		"another's":   {call, response("8") + after, response("8") + after, true},
		"of a string": {call, response(`"7"`) + after, response(`"7"`) + after, true},
		"resumed":     {resumed, response("7") + after, response("7"), false},
		"its own":     {own, response("7") + after, response("7") + after, true},
	} {
		in := &inlet{}
		body := io.NopCloser(strings.NewReader(c.in))
		got, err := io.ReadAll(newSifted(body, in, 1000, func(err error) { t.Error(name, err) }, lastOf(c.req)))
		require.NoError(t, err, name)
		require.Equal(t, c.want, string(got), name)
		require.Equal(t, c.counts, in.changes.Load() == 1, name)
		require.Equal(t, c.counts, in.asked.Load() == 1, name)
	}
}

func TestSifted(t *testing.T) {
	t.Parallel()
	const (
		note     = `{"jsonrpc":"2.0","method":"notifications/progress"}`
		changed  = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
		response = `{"jsonrpc":"2.0","id":1,"result":{}}`
	)
	for name, c := range map[string]struct{ in, want string }{
		"dropped":          {"data: " + note + "\n\n", ""},
		"resumed":          {"id: 7\nretry: 5\nevent: message\ndata: " + note + "\n\n", "id: 7\nretry: 5\n\n"},
		"kept":             {"id: 7\ndata: " + response + "\n\n", "id: 7\ndata: " + response + "\n\n"},
		"in lines":         {"data: {\"jsonrpc\":\"2.0\",\ndata:\"id\":1,\"result\":{}}\n\n", "data: {\"jsonrpc\":\"2.0\",\ndata:\"id\":1,\"result\":{}}\n\n"},
		"CRLF":             {"data: " + note + "\r\n\r\ndata: " + response + "\r\n\r\n", "data: " + response + "\r\n\r\n"},
		"comments":         {": ping\n\n:\n:\n\n", "\n\n"},
		"one for many":     {strings.Repeat("data: "+changed+"\n\n", 3), "data: " + changed + "\n\n"},
		"no message":       {"data: words\n\n", "data: words\n\n"},
		"without its end":  {"data: " + response, "data: " + response},
		"dropped, cut off": {"data: " + note, ""},
	} {
		body := io.NopCloser(strings.NewReader(c.in))
		got, err := io.ReadAll(newSifted(body, &inlet{}, 1000, func(err error) { t.Error(name, err) }, never))
		require.NoError(t, err, name)
		require.Equal(t, c.want, string(got), name)
	}
	for in, want := range map[string]string{
		"data: " + strings.Repeat("x", 2000): "a message of more than 1000 bytes",
		strings.Repeat("data: x\n", 200):     "a message of more than 1000 bytes",
		strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n\n", maxAsked+1): errAsks.Error(),
	} {
		var ended error
		_, err := io.ReadAll(newSifted(io.NopCloser(strings.NewReader(in)), &inlet{}, 1000, func(err error) { ended = err }, never))
		require.ErrorContains(t, err, want)
		require.Equal(t, err, ended)
	}
}

// Of a list without an end no more pages are read than are bounded.
func TestListWithoutEnd(t *testing.T) {
	t.Parallel()
	r := startStdio(t, "pages")
	require.Len(t, r.Definitions(), 2)
	require.Len(t, r.Definitions()[0].Description, maxDescription)
	require.Len(t, lines(r.hangs), 2, "it was asked for a page after 4 MiB")
	require.Contains(t, r.log.String(), "lists more than")
}

// A server that says all the time that its tools have changed is asked once a
// second, and what is left out is logged once.
func TestListThatChangesWithoutEnd(t *testing.T) {
	t.Parallel()
	began := time.Now()
	r := startStdio(t, "flap")
	for range 3 {
		changed := r.Changed()
		select {
		case <-changed:
		case <-time.After(within):
			t.Fatal("the list was not read again")
		}
	}
	require.GreaterOrEqual(t, time.Since(began), 3*relistEvery-500*time.Millisecond)
	require.Equal(t, 1, strings.Count(r.log.String(), "it has no name"), r.log.String())
}

// What may be secret in a URL is in no failure and no log.
func TestSecretsOfAURL(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, method := posted(r)
		if r.Method != http.MethodPost || r.URL.Query().Get("key") != "SECRET/QUERY" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if !reply(w, id, method, `{"name":"echo","inputSchema":{"type":"object"}},{"name":"tell","inputSchema":{"type":"object"}}`) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}
	}))
	defer web.Close()
	address := strings.Replace(web.URL, "://", "://SECRET-USER:SECRET-WORD@", 1) + "/SECRET-PATH?key=SECRET%2FQUERY"
	r := start(t, Options{Name: "srv", URL: address, Over: tool.Definition{Timeout: 2 * time.Second}})
	first := r.failure(t, "echo")
	require.Equal(t, codes.OutcomeUnknown, first.Code)
	require.Contains(t, first.Message, web.URL, "it says where")
	web.CloseClientConnections()
	web.Close()
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "is away") }, within, 10*time.Millisecond)
	second := r.failure(t, "echo")
	for _, text := range []string{first.Message, second.Message, r.log.String()} {
		require.NotContains(t, text, "SECRET")
	}
}
