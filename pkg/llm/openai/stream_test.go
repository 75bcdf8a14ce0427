package openai

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/stretchr/testify/require"
)

func streamedCall(t *testing.T, c *llmhttp.Caller) (llm.Response, *heard, error) {
	t.Helper()
	var h heard
	res, err := c.Call(t.Context(), ask(), h.add)
	return res, &h, err
}

var hello = sse(
	delta(`"role":"assistant","content":""`, ""),
	delta(`"content":"Hällo "`, ""),
	delta(`"content":"wörld 🙂"`, ""),
	delta(``, "stop"),
	usage, done)

var helloText = llm.Text{
	Meta:    llm.Meta{Model: "m-1", Confidence: 1, Usage: llm.Usage{Input: 9, Output: 4, Cached: 8, Total: 13}},
	Content: "Hällo wörld 🙂",
}

// canned is a transport that answers streamed requests with a body of any kind.
type canned struct {
	body  func() io.Reader
	plain string
}

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	body := io.Reader(strings.NewReader(c.plain))
	if r.Header.Get("Accept") == "text/event-stream" {
		body = c.body()
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(body), Request: r}, nil
}

func cannedCaller(t testing.TB, tr canned, opts Options) *llmhttp.Caller {
	t.Helper()
	opts.BaseURL, opts.HTTPClient = "http://canned.invalid", &http.Client{Transport: tr}
	c, err := New(opts)
	require.NoError(t, err)
	return c
}

// TestQuirks plays the oddities of servers. A file's options are capabilities.
func TestQuirks(t *testing.T) {
	llmtest.RunQuirks(t, "testdata/quirks", func(t *testing.T, url string, options json.RawMessage) llm.Caller {
		c, err := New(Options{APIKey: testKey, BaseURL: url, Capabilities: options})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	})
}

// TestCompleteStreams are streams of which nothing may be lost; a plain call
// would fail the test.
func TestCompleteStreams(t *testing.T) {
	noUsage := helloText
	noUsage.Usage = llm.Usage{}
	finished := sse(delta(`"content":"Hällo wörld 🙂"`, "stop"))
	tests := []struct {
		name, events string
		want         llm.Response
	}{
		{"no line end", strings.TrimRight(finished, "\n"), noUsage},
		{"no usage", finished + "data: [DONE]\n\n", noUsage},
		{"usage beside the reply", sse(strings.Replace(delta(`"content":"Hällo wörld 🙂"`, "stop"), `"usage":null`,
			`"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}`, 1)), helloText},
		{"another choice", sse(`{"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"stop"}]}`) + hello, helloText},
		{"usage alone in the middle", sse(delta(`"content":"Hällo "`, ""), usage, delta(`"content":"wörld 🙂"`, "stop"), usage, done), helloText},
		{"words after finish_reason", sse(delta(`"content":"Hällo "`, "stop"), delta(`"content":"wörld 🙂"`, "stop"), usage, done), helloText},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, h, err := streamedCall(t, serve(t, Options{}, script(tt.events, `{"error":{"message":"no plain call expected"}}`)))
			require.NoError(t, err)
			llmtest.Same(t, tt.want, res)
			require.Equal(t, helloText.Content, h.text.String())
		})
	}
}

func TestStreamedCalls(t *testing.T) {
	first := `{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}`
	both := []llm.Call{{ID: "a", Name: "f", Arguments: `{"x":1}`}, {ID: "b", Name: "g", Arguments: `{"y":2}`}}
	tests := []struct {
		name  string
		calls []string // each the tool_calls of one chunk
		want  []llm.Call
	}{
		{"interleaved by index", []string{
			first + `,{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{\"y\""}}`,
			`{"index":0,"function":{"arguments":"{\"x"}}`, `{"index":1,"function":{"arguments":":2}"}}`,
			`{"index":0,"function":{"arguments":"\":1}"}}`,
		}, both},
		{"second before first", []string{
			`{"index":1,"id":"b","function":{"name":"g","arguments":"{\"y\":2}"}}`,
			`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}}`,
		}, both},
		{"no index, whole calls", []string{
			`{"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}}`, `{"id":"b","function":{"name":"g","arguments":"{\"y\":2}"}}`,
		}, both},
		{"no index, fragments", []string{
			`{"id":"a","function":{"name":"f","arguments":""}}`, `{"function":{"arguments":"{\"x\":1}"}}`,
			`{"id":"b","function":{"name":"g","arguments":""}}`, `{"function":{"arguments":"{\"y\":"}}`, `{"id":"b","function":{"arguments":"2}"}}`,
		}, both},
		{"every index 0", []string{
			`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}}`,
			`{"index":0,"id":"b","function":{"name":"g","arguments":"{\"y\":"}}`, `{"index":0,"function":{"arguments":"2}"}}`,
		}, both},
		{"name and id repeated", []string{
			`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\""}}`, `{"index":0,"id":"a","function":{"name":"f","arguments":":1}"}}`,
		}, both[:1]},
		{"no ids", []string{
			`{"index":0,"function":{"name":"f","arguments":"{}"}},{"index":1,"function":{"name":"f","arguments":"{}"}}`,
		}, []llm.Call{{ID: "call_1_1", Name: "f", Arguments: "{}"}, {ID: "call_1_2", Name: "f", Arguments: "{}"}}},
		{"neither index nor id", []string{
			`{"function":{"name":"f","arguments":"{}"}}`, `{"function":{"name":"g","arguments":"{"}}`, `{"function":{"arguments":"}"}}`,
		}, []llm.Call{{ID: "call_1_1", Name: "f", Arguments: "{}"}, {ID: "call_1_2", Name: "g", Arguments: "{}"}}},
		{"not JSON, huge index", []string{
			`{"index":2000000000,"id":"a","function":{"name":"f","arguments":"{\"x\": 1.50, cut"}}`,
		}, []llm.Call{{ID: "a", Name: "f", Arguments: `{"x": 1.50, cut`}}},
		{"no arguments", []string{first}, []llm.Call{{ID: "a", Name: "f", Arguments: "{}"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var chunks []string
			for _, c := range tt.calls {
				chunks = append(chunks, delta(`"tool_calls":[`+c+`]`, ""))
			}
			// Text stands around the calls, and some servers say stop in spite of them.
			stream := sse(delta(`"content":"I "`, "")) + sse(chunks...) + sse(delta(`"content":"look."`, "stop"), usage, done)
			res, h, err := streamedCall(t, serve(t, Options{}, script(stream, plainHello)))
			require.NoError(t, err)
			llmtest.Same(t, llm.ToolCalls{Meta: helloText.Meta, Content: "I look.", Calls: tt.want}, res)
			require.Equal(t, "I look.", h.text.String())
			require.Len(t, h.args, len(tt.want))
			for i, c := range tt.want {
				if _, told := h.names[i]; !told { // the huge index
					i = 2000000000
				}
				require.Equal(t, c.Arguments, cmp.Or(h.args[i], "{}"))
				require.Equal(t, c.Name, h.names[i])
			}
		})
	}
}

// TestBrokenStreams are streams that lack their end, or hold what is no chunk.
func TestBrokenStreams(t *testing.T) {
	half := sse(delta(`"content":"half"`, ""))
	for name, stream := range map[string]string{
		"no ending":                  half,
		"a chunk is no JSON":         half + "data: oops\n\n" + hello,
		"a chunk of another shape":   half + `data: {"choices":7}` + "\n\n" + hello,
		"a usage in the middle":      half + sse(usage, delta(`"content":"more"`, "")),
		"a usage that says nothing":  half + sse(`{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}`),
		"a usage beside the content": half + sse(`{"choices":[{"index":0,"delta":{"content":"x"}}],"usage":{"completion_tokens":2}}`),
	} {
		_, _, err := streamedCall(t, serve(t, Options{}, script(stream, plainHello)))
		reply := wantError(t, err, llm.KindBroken).Reply
		require.Equal(t, "m-1", reply.Model, name)
		require.Equal(t, llm.FinishUnknown, reply.Finish, name)
	}
	whole, _, err := streamedCall(t, serve(t, Options{}, script(half+sse(usage), plainHello)))
	require.NoError(t, err, "a usage alone may be the ending")
	require.Equal(t, llm.FinishUnknown, whole.About().Finish)
	_, _, err = streamedCall(t, serve(t, Options{}, script(sse(done), plainHello)))
	wantError(t, err, llm.KindBroken)
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(hello))
	f.Add([]byte(sse(delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]`, "tool_calls"))))
	f.Add([]byte(sse(delta(`"tool_calls":[{"id":"a"},{"index":-1},{"index":9}]`, "length"))))
	f.Add([]byte("data: {\"error\":{\"message\":[\"a\"]}}\n\n"))
	f.Add([]byte("data: {\"error\":\n: ping\ndata:\n\ndata: null\n\ndata: [DONE]"))
	f.Add([]byte("event: error\r\ndata: {\"error\":{\"message\":\"x\",\"code\":1e99}}\r\n"))
	f.Add([]byte(sse(delta(`"refusal":"no"`, "content_filter"))))
	f.Add([]byte{0xff, 0xfe, '\n', 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := cannedCaller(t, canned{plain: plainHello, body: func() io.Reader {
			return strings.NewReader(string(stream))
		}}, Options{MaxBytes: 1 << 20})
		var h heard
		res, err := c.Call(t.Context(), ask(), h.add)
		if err != nil {
			var e *llm.Error
			require.ErrorAs(t, err, &e)
			require.NotEmpty(t, e.Kind)
			require.Nil(t, res)
			return
		}
		if calls, ok := res.(llm.ToolCalls); ok {
			require.NotEmpty(t, calls.Calls)
			require.Equal(t, h.text.String(), calls.Content)
		}
	})
}
