package anthropic

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/pkg/llm"
)

// inTurn answers each request with the next of the bodies, and then with the last one
// again. A body that is no JSON object is a stream. It returns the bodies of the requests.
func inTurn(t *testing.T, bodies ...string) (*llmhttp.Caller, func() [][]byte) {
	t.Helper()
	var asked [][]byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		body := bodies[min(len(asked), len(bodies)-1)]
		asked = append(asked, data)
		switch {
		case strings.HasPrefix(body, `{"type":"error"`):
			w.WriteHeader(529)
		case !strings.HasPrefix(body, "{"):
			w.Header().Set("Content-Type", "text/event-stream")
		}
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return open(t, server.URL), func() [][]byte { return asked }
}

// sse is a stream of events.
func sse(events ...string) string { return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n" }

const (
	search = `{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"moore"}}`
	found  = `{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}`
	first  = `{"type":"message","model":"m","content":[{"type":"thinking","thinking":"Hm.","signature":"c2ln"},{"type":"text","text":"I search. "},` + search + `,` + found + `],"stop_reason":"pause_turn","usage":{"input_tokens":10,"cache_read_input_tokens":4,"output_tokens":5}}`
	second = `{"type":"message","model":"m","content":[{"type":"text","text":"It is Moore."}],"stop_reason":"end_turn","usage":{"input_tokens":20,"output_tokens":3,"cost":0.5}}`
)

var firstStreamed = sse(
	`{"type":"message_start","message":{"model":"m","usage":{"input_tokens":10,"cache_read_input_tokens":4}}}`,
	`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`,
	`{"type":"content_block_delta","index":0,"delta":{"thinking":"Hm."}}`, `{"type":"content_block_delta","index":0,"delta":{"signature":"c2ln"}}`,
	`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":1,"delta":{"text":"I search. "}}`,
	`{"type":"content_block_start","index":2,"content_block":{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}}`,
	`{"type":"content_block_delta","index":2,"delta":{"partial_json":"{\"query\":"}}`, `{"type":"content_block_delta","index":2,"delta":{"partial_json":"\"moore\"}"}}`,
	`{"type":"content_block_start","index":3,"content_block":`+found+`}`,
	`{"type":"message_delta","delta":{"stop_reason":"pause_turn"},"usage":{"output_tokens":5}}`, `{"type":"message_stop"}`)

var secondStreamed = sse(
	`{"type":"message_start","message":{"model":"m","usage":{"input_tokens":20}}}`,
	`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"It is "}}`, `{"type":"content_block_delta","index":0,"delta":{"text":"Moore."}}`,
	`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3,"cost":0.5}}`, `{"type":"message_stop"}`)

// A reply that the provider pauses is continued from what came, and is one reply.
func TestPausedReply(t *testing.T) {
	for way, bodies := range map[string][]string{"plain": {first, first, second}, "streamed": {firstStreamed, firstStreamed, secondStreamed}} {
		t.Run(way, func(t *testing.T) {
			c, asked := inTurn(t, bodies...)
			var text, reasoning strings.Builder
			var stream func(llm.Chunk)
			if way == "streamed" {
				stream = func(chunk llm.Chunk) {
					if chunk.Kind == llm.ChunkReasoning {
						reasoning.WriteString(chunk.Text)
						return
					}
					text.WriteString(chunk.Text)
				}
			}
			got, err := c.Call(t.Context(), llm.Request{Model: "claude-opus-5", Messages: []llm.Message{user("Who?")}}, stream)
			require.NoError(t, err)
			require.Equal(t, "I search. I search. It is Moore.", got.(llm.Text).Content)
			cost := 0.5
			meta := got.About()
			require.Equal(t, llm.Usage{Input: 48, Cached: 8, Output: 13, Total: 61, CostUSD: &cost}, meta.Usage)
			require.Equal(t, llm.FinishStop, meta.Finish)
			require.Equal(t, "end_turn", meta.FinishRaw)
			require.Len(t, meta.Reasoning, 9, "places, and twice text, signature, search and result")
			sent := asked()
			require.Len(t, sent, 3)
			sum := sha256.Sum256(sent[0])
			require.Equal(t, hex.EncodeToString(sum[:]), meta.RequestSHA256)
			blocks := `{"type":"thinking","thinking":"Hm.","signature":"c2ln"},{"type":"text","text":"I search. "},` + search + `,` + found
			for i, content := range []string{"", blocks, blocks + "," + blocks} {
				var body struct {
					Messages []json.RawMessage `json:"messages"`
				}
				require.NoError(t, json.Unmarshal(sent[i], &body))
				require.JSONEq(t, `{"role":"user","content":[{"type":"text","text":"Who?",`+mark+`}]}`, string(body.Messages[0]))
				if content == "" {
					require.Len(t, body.Messages, 1)
					continue
				}
				require.Len(t, body.Messages, 2)
				require.JSONEq(t, `{"role":"assistant","content":[`+content+`]}`, string(body.Messages[1]))
			}
			if stream != nil {
				require.Equal(t, "I search. I search. It is Moore.", text.String())
				require.Equal(t, "Hm.Hm.", reasoning.String())
			}
			// All of it goes back in its place.
			m := asks(got.(llm.Text).Content)
			m.Reasoning = meta.Reasoning
			body, _ := capture(t, llm.Request{Model: "claude-opus-5", Messages: []llm.Message{user("Who?"), m, user("And?")}})
			var messages []json.RawMessage
			require.NoError(t, json.Unmarshal(body["messages"], &messages))
			require.JSONEq(t, `{"role":"assistant","content":[`+blocks+`,`+blocks+`,{"type":"text","text":"It is Moore."}]}`, string(messages[1]))
		})
	}
}

// What came before a failure is billed, and a reply is not continued without end.
func TestPausedReplyThatFails(t *testing.T) {
	usage := llm.Usage{Input: 14, Cached: 4, Output: 5, Total: 19}
	c, asked := inTurn(t, first, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`)
	_, err := c.Call(t.Context(), ask(), nil)
	e := wantError(t, err, llm.KindOverloaded)
	require.Equal(t, &usage, e.Usage)
	require.Equal(t, "pause_turn", e.Reply.FinishRaw)
	require.Equal(t, "anthropic", e.Reply.Dialect)
	sum := sha256.Sum256(asked()[0])
	require.Equal(t, hex.EncodeToString(sum[:]), e.Reply.RequestSHA256)

	c, _ = inTurn(t, firstStreamed, strings.Split(secondStreamed, `data: {"type":"message_delta"`)[0])
	_, err = c.Call(t.Context(), ask(), func(llm.Chunk) {})
	e = wantError(t, err, llm.KindBroken)
	require.Equal(t, &llm.Usage{Input: 34, Cached: 4, Output: 5, Total: 39}, e.Usage)

	c, asked = inTurn(t, first)
	_, err = c.Call(t.Context(), ask(), nil)
	e = wantError(t, err, llm.KindOther)
	require.Contains(t, e.Message, "more than 8 times")
	require.Len(t, asked(), 9)
	require.Equal(t, 9*usage.Input, e.Usage.Input)

	// A call is for the agent: its result continues the reply.
	c, asked = inTurn(t, strings.Replace(first, search, `{"type":"tool_use","id":"a","name":"f","input":{}}`, 1))
	got, err := c.Call(t.Context(), ask(), nil)
	require.NoError(t, err)
	require.IsType(t, llm.ToolCalls{}, got)
	require.Len(t, asked(), 1)
}
