package anthropic

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

// wantError asserts the kind of err and that it does not hold the key.
func wantError(t *testing.T, err error, kind llm.ErrorKind) *llm.Error {
	t.Helper()
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, kind, e.Kind, e.Message)
	require.NotContains(t, fmt.Sprintf("%v %+v %v", err, e, e.Err), testKey)
	return e
}

func ask() llm.Request { return llm.Request{Messages: []llm.Message{user("go")}} }

// always makes a Caller whose server gives every request the same reply.
func always(t *testing.T, contentType, body string) *llmhttp.Caller {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return open(t, server.URL)
}

// What is stated in the middle of a stream is sorted by its type alone.
func TestErrorsInTheStream(t *testing.T) {
	for kind, want := range map[string]llm.ErrorKind{
		"overloaded_error": llm.KindOverloaded, "api_error": llm.KindOverloaded, "rate_limit_error": llm.KindRateLimited,
		"authentication_error": llm.KindAuth, "invalid_request_error": llm.KindInvalid, "some_later_error": llm.KindOther,
	} {
		c := always(t, "text/event-stream", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\""+kind+"\",\"message\":\"key "+testKey+"\"}}\n\n")
		_, err := c.Call(t.Context(), ask(), func(llm.Chunk) {})
		require.Equal(t, "key [secret]", wantError(t, err, want).Message)
	}
}

func TestRepliesThatAreNone(t *testing.T) {
	for _, body := range []string{"<html>Welcome</html>", `{"type":"mess`, "", `{"hello":"world"}`, `{"content":[7]}`} {
		for _, contentType := range []string{"application/json", "text/html"} {
			c := always(t, contentType, body)
			for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
				_, err := c.Call(t.Context(), ask(), stream)
				if body == "" && stream != nil {
					require.Nil(t, wantError(t, err, llm.KindBroken).Reply)
					continue
				}
				require.Contains(t, wantError(t, err, llm.KindOther).Message, "not a message (is the base URL right?)", body)
			}
		}
	}
}

// What a reply's stop reason says beyond the suite.
func TestStopReasons(t *testing.T) {
	const text, call = `{"type":"text","text":"so far"}`, `{"type":"tool_use","id":"a","name":"f","input":{}}`
	for reason, want := range map[string]llm.Finish{
		"end_turn": llm.FinishStop, "stop_sequence": llm.FinishStop, "tool_use": llm.FinishStop, "max_tokens": llm.FinishLength,
		"model_context_window_exceeded": llm.FinishLength, "some_later_reason": llm.FinishUnknown, "": llm.FinishUnknown,
		"refusal": llm.FinishRefusal, "content_filter": llm.FinishContentFilter,
	} {
		for _, calls := range []bool{false, true} {
			content := text
			if calls {
				content += "," + call
				if want == llm.FinishStop || want == llm.FinishUnknown {
					want = llm.FinishToolCalls
				}
			}
			c := always(t, "application/json", `{"type":"message","model":"m","content":[`+content+`],"stop_reason":"`+reason+`"}`)
			got, err := c.Call(t.Context(), ask(), nil)
			require.NoError(t, err, reason)
			require.Equal(t, want, got.About().Finish, reason)
			require.Equal(t, reason, got.About().FinishRaw)
			require.Equal(t, want == llm.FinishLength || want == llm.FinishContentFilter, got.About().Cut())
			_, called := got.(llm.ToolCalls)
			require.Equal(t, calls && want != llm.FinishRefusal, called)
		}
	}
	for body, want := range map[string]string{
		`{"type":"message","content":[],"stop_reason":"refusal"}`:                                                       llm.RefusedText,
		`{"type":"message","content":[],"stop_reason":"refusal","stop_details":{"type":"refusal","explanation":"No."}}`: "No.",
	} {
		c := always(t, "application/json", body)
		got, err := c.Call(t.Context(), ask(), nil)
		require.NoError(t, err)
		require.Equal(t, want, got.(llm.Text).Content)
	}
}

// canned answers streamed requests with the given bytes.
type canned string

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	req, err := llmtest.Anthropic{}.Read(body)
	text, contentType := llmtest.Anthropic{}.Plain(hello, req), "application/json"
	if req.Stream {
		text, contentType = string(c), "text/event-stream"
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, err
}

func FuzzStream(f *testing.F) {
	calls := llmtest.Turn{Thinking: "hm", Reply: llm.ToolCalls{Content: "x", Calls: []llm.Call{{ID: "a", Name: "f", Arguments: `{"a":1}`}}}}
	f.Add([]byte(strings.Join(llmtest.Anthropic{}.Events(calls, llmtest.WireRequest{}), "")))
	f.Add([]byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":-1,\"delta\":{\"type\":\"text_delta\"}}\n\n"))
	f.Add([]byte("event: error\ndata: {\"error\":[]}\n\n"))
	f.Add([]byte("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"))
	f.Add([]byte("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"redacted_thinking\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"))
	f.Add([]byte{0xff, 0xfe, '\n', 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := open(t, "http://canned.invalid", func(o *Options) { o.HTTPClient = &http.Client{Transport: canned(stream)} })
		res, err := c.Call(t.Context(), ask(), func(llm.Chunk) {})
		if err != nil {
			var e *llm.Error
			require.ErrorAs(t, err, &e)
			require.NotEmpty(t, e.Kind)
			require.Nil(t, res)
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-ant-secret-0123456789"

// open makes a Caller of the server at the address.
func open(t testing.TB, url string, change ...func(*Options)) *llmhttp.Caller {
	t.Helper()
	opts := Options{APIKey: testKey, BaseURL: url, Model: "claude-test", MaxBytes: llmtest.MaxWireBytes}
	for _, c := range change {
		c(&opts)
	}
	caller, err := New(opts)
	require.NoError(t, err)
	t.Cleanup(caller.Close)
	return caller
}

func TestConformance(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		return open(t, llmtest.NewModel(llmtest.Anthropic{}, conv...).Serve(t))
	}, llmtest.NoConfidence, llmtest.ObjectArguments)
}

func TestWire(t *testing.T) {
	llmtest.RunWire(t, llmtest.Anthropic{}, func(t *testing.T, url string) llm.Caller { return open(t, url) })
}

func thinkingRequest(messages ...llm.Message) llm.Request {
	half := 0.5
	return llm.Request{Messages: append([]llm.Message{user("go")}, messages...), Sampling: llm.Sampling{ThinkingTokens: 2000, Temperature: &half, TopP: &half}}
}

func TestQuirks(t *testing.T) {
	llmtest.RunQuirks(t, "testdata/quirks", func(t *testing.T, url string, _ json.RawMessage) llm.Caller { return open(t, url) })
}
