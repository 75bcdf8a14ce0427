package mcptool

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/tool"
)

// FuzzResult: whatever a server says is the result of a tool, it becomes a text or a failure of the tool.
func FuzzResult(f *testing.F) {
	for _, text := range []string{
		`{"content":[{"type":"text","text":"a"},{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"}]}`, `{"content":[{"type":"resource_link","uri":"file:///a","name":"a"}],"isError":true}`,
		`{"content":[{"type":"resource","resource":{"uri":"x:y","text":"t"}},{"type":"resource","resource":{"uri":"x:y","blob":"AA=="}}],"structuredContent":{"a":1e400}}`,
		`{"content":[{"type":"nothing"}]}`, `{"content":null,"structuredContent":[1]}`, `null`, `[]`, `{"content":[null]}`, `{"content":[{"type":"resource"}]}`, "\xff",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var res anyResult
		require.NoError(t, res.UnmarshalJSON(data))
		_, err := said(t.Context(), &res)
		var failure *tool.Failure
		require.True(t, err == nil || errors.As(err, &failure), "%v", err)
		var state task
		if json.Unmarshal(data, &state) == nil {
			require.GreaterOrEqual(t, state.pause(), leastPoll)
			require.LessOrEqual(t, state.pause(), max(mostPoll, defaultPoll))
		}
	})
}

// FuzzTool: whatever a server says of a tool, its definition has a schema in JSON, or it is refused.
func FuzzTool(f *testing.F) {
	for _, text := range []string{
		`{"name":"dig","description":"Digs.","inputSchema":{"type":"object","properties":{"a":{"type":"number"}}},"annotations":{"readOnlyHint":true,"destructiveHint":false}}`,
		`{"name":"","inputSchema":null}`, `{"name":"a b/\u0000","inputSchema":[]}`, `{"name":"x","inputSchema":{"$ref":"#"}}`, `{"name":"` + strings.Repeat("x", 200) + `","inputSchema":{"type":"object"}}`,
	} {
		f.Add([]byte(text))
	}
	source, err := New(Options{Name: "s", URL: "http://127.0.0.1:1/"})
	require.NoError(f, err)
	here := source.(*server)
	f.Fuzz(func(t *testing.T, data []byte) {
		var said mcp.Tool
		if json.Unmarshal(data, &said) != nil {
			return
		}
		d, err := here.definition(&said, &listing{left: map[string]string{}, said: map[string]json.RawMessage{}})
		if err == nil {
			require.True(t, json.Valid(d.Schema), "%s", d.Schema)
			require.True(t, here.Claims(d.Name), d.Name)
		}
	})
}

// FuzzEvents: of a server's stream of events, whatever it holds, no more comes through than the server sent,
// and never more requests than the limit.
func FuzzEvents(f *testing.F) {
	const ask = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n"
	for _, text := range []string{
		"id: 1\nretry: 5\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\ndata: \"result\":{}}\n\n", strings.Repeat(ask, maxAsked+1), "data: {\"jsonrpc\":\"2.0\",\"method\":\"" + listChanged + "\"}\r\n\r\n",
		": a comment\n\ndata\n\n", "event: x\rdata: y\r\r", strings.Repeat("x", 5000), "\n\n\n", "data: 1",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var ended error
		const most = 4 << 10
		s := newSifted(io.NopCloser(bytes.NewReader(text)), &inlet{}, most, func(err error) { ended = err }, func(r *jsonrpc.Response) bool { return r.ID.IsValid() })
		began := time.Now()
		out, err := io.ReadAll(s)
		require.Equal(t, err != nil, ended != nil)
		require.LessOrEqual(t, len(out), len(text)+bytes.Count(text, []byte("\n"))+1)
		asked := 0 // a line of other fields, or in an event that is no message, asks nothing
		var e event
		for line := range bytes.Lines(out) {
			e.add(line)
			if len(bytes.TrimRight(line, "\r\n")) > 0 {
				continue
			}
			if msg, err := jsonrpc.DecodeMessage(e.data); err == nil {
				if req, ok := msg.(*jsonrpc.Request); ok && req.IsCall() {
					asked++
				}
			}
			e = event{}
		}
		require.LessOrEqual(t, asked, maxAsked)
		require.Less(t, time.Since(began), 10*time.Second)
	})
}
