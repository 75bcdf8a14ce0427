package openai

import (
	"cmp"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/stretchr/testify/require"
)

func streamedCall(t *testing.T, c *Caller) (llm.Response, *heard, error) {
	t.Helper()
	var h heard
	res, err := c.Call(t.Context(), request(), h.add)
	return res, &h, err
}

var hello = events(
	delta(`"role":"assistant","content":""`, ""),
	delta(`"content":"Hällo "`, ""),
	delta(`"content":"wörld 🙂"`, ""),
	delta(``, "stop"),
	usage, done)

var helloText = llm.Text{
	Meta:    llm.Meta{Model: "m-1", Confidence: 1, Usage: llm.Usage{Input: 9, Output: 4, Cached: 8, Total: 13}},
	Content: "Hällo wörld 🙂",
}

func TestStreamIsTheSameHoweverItIsCut(t *testing.T) {
	var cut atomic.Int64
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !isStream(t, r) {
			t.Error("fell back to a plain call")
		}
		at := int(cut.Load())
		_, _ = io.WriteString(w, hello[:at])
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, hello[at:])
	})
	for at := range len(hello) {
		cut.Store(int64(at))
		res, h, err := streamedCall(t, c)
		require.NoError(t, err)
		require.Equal(t, helloText, res)
		require.Equal(t, helloText.Content, h.text.String())
	}
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

func cannedCaller(t testing.TB, tr canned, opts Options) *Caller {
	t.Helper()
	opts.BaseURL, opts.HTTPClient = "http://canned.invalid", &http.Client{Transport: tr}
	c, err := New(opts)
	require.NoError(t, err)
	return c
}

func TestStreamByteByByte(t *testing.T) {
	c := cannedCaller(t, canned{body: func() io.Reader {
		return iotest.OneByteReader(strings.NewReader(hello))
	}}, Options{})
	res, _, err := streamedCall(t, c)
	require.NoError(t, err)
	require.Equal(t, helloText, res)
}

// TestCompleteStreams are streams of which nothing may be lost; a plain call
// would fail the test.
func TestCompleteStreams(t *testing.T) {
	noUsage := helloText
	noUsage.Usage = llm.Usage{}
	finished := events(delta(`"content":"Hällo wörld 🙂"`, "stop"))
	tests := []struct {
		name, events string
		want         llm.Response
	}{
		{"CRLF", strings.ReplaceAll(hello, "\n", "\r\n"), helloText},
		{"no space after data:", strings.ReplaceAll(hello, "data: ", "data:"), helloText},
		{"keep-alive comments", strings.Repeat(": still here\n\n", 1000) + strings.ReplaceAll(hello, "\n\n", "\n\n: ping\n\n"), helloText},
		{"other fields", strings.ReplaceAll(hello, "data: ", "event: message\nid: 7\nretry: 10\ndata: "), helloText},
		{"no [DONE]", strings.TrimSuffix(hello, "data: [DONE]\n\n"), helloText},
		{"no line end", strings.TrimRight(finished, "\n"), noUsage},
		{"no usage", finished + "data: [DONE]\n\n", noUsage},
		{"rubbish after the reply", finished + "data: {\n\n", noUsage},
		{"error after the reply", finished + "data: {\"error\":{\"message\":\"late\"}}\n\n", noUsage},
		{"usage beside the reply", events(strings.Replace(delta(`"content":"Hällo wörld 🙂"`, "stop"), `"usage":null`,
			`"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}`, 1)), helloText},
		{"another choice", events(`{"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"stop"}]}`) + hello, helloText},
		{"words after finish_reason", events(delta(`"content":"Hällo "`, "stop"), delta(`"content":"wörld 🙂"`, "stop"), usage, done), helloText},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, h, err := streamedCall(t, serve(t, script(t, tt.events, `{"error":{"message":"no plain call expected"}}`)))
			require.NoError(t, err)
			require.Equal(t, tt.want, res)
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
			stream := events(delta(`"content":"I "`, "")) + events(chunks...) + events(delta(`"content":"look."`, "stop"), usage, done)
			res, h, err := streamedCall(t, serve(t, script(t, stream, plainHello)))
			require.NoError(t, err)
			require.Equal(t, llm.ToolCalls{Meta: helloText.Meta, Content: "I look.", Calls: tt.want}, res)
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

func TestBrokenStreamFallsBackOnce(t *testing.T) {
	half := events(delta(`"content":"half"`, ""))
	tests := []struct {
		name   string
		stream func(w http.ResponseWriter)
	}{
		{"ends without finish_reason", write(half)},
		{"[DONE] without finish_reason", write(half + events(done))},
		{"empty", write("")},
		{"cut in a chunk", write(half + `data: {"choices":[{"ind`)},
		{"a chunk is no JSON", write(half + "data: oops\n\n" + hello)},
		{"a chunk of another shape", write(half + `data: {"choices":7}` + "\n\n" + hello)},
		{"an error that says nothing", write(half + "data: {\"error\":\"oops\"}\n\n")},
		{"plain JSON instead", write(plainHello)},
		{"connection reset", func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, half)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
		{"does not stream", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"no streams","param":"stream_options","type":"invalid_request_error"}}`)
		}},
	}
	for _, tt := range tests {
		for name, plain := range map[string]string{"then the plain call gives it": plainHello, "then the plain call fails": ""} {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				var streams, plains atomic.Int32
				c := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if isStream(t, r) {
						streams.Add(1)
						tt.stream(w)
						return
					}
					plains.Add(1)
					if plain == "" {
						panic(http.ErrAbortHandler)
					}
					_, _ = io.WriteString(w, plain)
				})
				res, _, err := streamedCall(t, c)
				require.Equal(t, int32(1), streams.Load())
				require.Equal(t, int32(1), plains.Load())
				if plain == "" {
					require.Nil(t, res)
					wantError(t, err, llm.KindNetwork)
					return
				}
				require.NoError(t, err)
				require.Equal(t, "plain hello", res.(llm.Text).Content)
			})
		}
	}
}

func write(s string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { _, _ = io.WriteString(w, s) }
}

// TestErrorsStatedInAStream are the provider's own word: no plain call follows.
func TestErrorsStatedInAStream(t *testing.T) {
	half := events(delta(`"content":"half"`, ""))
	tests := []struct {
		name, error string
		kind        llm.ErrorKind
	}{
		{"overloaded", `{"error":{"message":"words","type":"server_error","code":null}}`, llm.KindOverloaded},
		{"with comments around", "{\"error\":{\"message\":\"words\",\"type\":\"server_error\"}}\n: ping\n\n: ping", llm.KindOverloaded},
		{"status as code", `{"error":{"message":"words","code":429}}`, llm.KindRateLimited},
		{"beside other fields", `{"id":"x","choices":[],"error":{"message":"words","code":502}}`, llm.KindOverloaded},
		{"rate limit by code", `{"error":{"message":"words","code":"rate_limit_exceeded"}}`, llm.KindRateLimited},
		{"too long", `{"error":{"message":"words","code":"context_length_exceeded"}}`, llm.KindContextTooLong},
		{"auth", `{"error":{"message":"words","type":"authentication_error"}}`, llm.KindAuth},
		{"invalid", `{"error":{"message":"words","type":"invalid_request_error"}}`, llm.KindInvalid},
		{"unknown", `{"error":{"message":"words","type":"?"}}`, llm.KindOther},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, _, err := streamedCall(t, serve(t, script(t, half+": ping\n\n"+events(tt.error)+hello, plainHello)))
			require.Nil(t, res)
			require.Contains(t, wantError(t, err, tt.kind).Message, "words")
		})
	}
}

func TestFloodedStreamIsCut(t *testing.T) {
	endless := map[string]string{"one line": "x", "comments": ": ping\n", "chunks": events(delta(`"content":"more "`, ""))}
	for name, piece := range endless {
		t.Run(name, func(t *testing.T) {
			c := cannedCaller(t, canned{plain: plainHello, body: func() io.Reader { return &repeat{piece: piece} }},
				Options{MaxBytes: 1 << 16})
			_, _, err := streamedCall(t, c)
			require.Contains(t, wantError(t, err, llm.KindOther).Message, "larger than 65536 bytes")
		})
	}
}

type repeat struct {
	piece string
	at    int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.piece[r.at:])
	r.at = (r.at + n) % len(r.piece)
	return n, nil
}

// TestStreamThatStaysOpen has its reply, but its server does not end it.
func TestStreamThatStaysOpen(t *testing.T) {
	for name, tail := range map[string]string{"without [DONE]": "", "after [DONE]": events(done)} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, events(delta(`"content":"complete"`, "stop"))+tail)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			c.grace = 30 * time.Millisecond
			res, _, err := streamedCall(t, c)
			require.NoError(t, err)
			require.Equal(t, "complete", res.(llm.Text).Content)
		})
	}
}

func TestStreamedConnectionIsUsedAgain(t *testing.T) {
	remotes := make(chan string, 5)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		remotes <- r.RemoteAddr
		script(t, hello, plainHello)(w, r)
	})
	for range cap(remotes) {
		_, _, err := streamedCall(t, c)
		require.NoError(t, err)
	}
	used := map[string]bool{}
	for range cap(remotes) {
		used[<-remotes] = true
	}
	require.Less(t, len(used), cap(remotes), "a busy machine may need more than one")
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(hello))
	f.Add([]byte(events(delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]`, "tool_calls"))))
	f.Add([]byte(events(delta(`"tool_calls":[{"id":"a"},{"index":-1},{"index":9}]`, "length"))))
	f.Add([]byte("data: {\"error\":{\"message\":[\"a\"]}}\n\n"))
	f.Add([]byte("data: {\"error\":\n: ping\ndata:\n\ndata: null\n\ndata: [DONE]"))
	f.Add([]byte("event: error\r\ndata: {\"error\":{\"message\":\"x\",\"code\":1e99}}\r\n"))
	f.Add([]byte(events(delta(`"refusal":"no"`, "content_filter"))))
	f.Add([]byte{0xff, 0xfe, '\n', 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := cannedCaller(t, canned{plain: plainHello, body: func() io.Reader {
			return strings.NewReader(string(stream))
		}}, Options{MaxBytes: 1 << 20})
		var h heard
		res, err := c.Call(t.Context(), request(), h.add)
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

func TestServerThatIgnoresStreamIsAskedOnce(t *testing.T) {
	requests := 0
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = io.WriteString(w, `{"model":"m","choices":[{"message":{"role":"assistant","content":"two words"},"finish_reason":"stop"}]}`)
	})
	var h heard
	res, err := c.Call(t.Context(), request(), h.add)
	require.NoError(t, err)
	require.Equal(t, "two words", res.(llm.Text).Content)
	require.Equal(t, "two words", h.text.String())
	require.Equal(t, 1, requests)
}

func TestServerThatIgnoresStreamAndBreaks(t *testing.T) {
	requests := 0
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[]}`)
	})
	_, err := c.Call(t.Context(), request(), func(llm.Chunk) {})
	wantError(t, err, llm.KindOther)
	require.Equal(t, 1, requests)
}
