package responses

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
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-secret-0123456789"

// open makes a Caller of the server at the address.
func open(t testing.TB, url string, change ...func(*Options)) *llmhttp.Caller {
	t.Helper()
	opts := Options{APIKey: testKey, BaseURL: url, Model: "m", MaxBytes: llmtest.MaxWireBytes, Like: "openai"}
	for _, c := range change {
		c(&opts)
	}
	c, err := New(opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestConformance(t *testing.T) {
	llmtest.Run(t, func(t *testing.T, conv llmtest.Conversation) llm.Caller {
		return open(t, llmtest.NewModel(llmtest.Responses{}, conv...).Serve(t))
	}, llmtest.NoConfidence)
}

func TestWire(t *testing.T) {
	if testing.Short() {
		t.Skip("-short") // reason: it waits for real timeouts
	}
	llmtest.RunWire(t, llmtest.Responses{}, func(t *testing.T, url string) llm.Caller { return open(t, url) })
}

func TestQuirks(t *testing.T) {
	llmtest.RunQuirks(t, "testdata/quirks", func(t *testing.T, url string, options json.RawMessage) llm.Caller {
		return open(t, url, func(o *Options) {
			if options != nil {
				require.NoError(t, json.Unmarshal(options, o))
			}
		})
	})
}

// wantError asserts the kind of err and that it does not hold the key.
func wantError(t *testing.T, err error, kind llm.ErrorKind) *llm.Error {
	t.Helper()
	var e *llm.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, kind, e.Kind, e.Message)
	require.NotContains(t, fmt.Sprintf("%v %+v %v", err, e, e.Err), testKey)
	return e
}

// capture makes one plain call and returns what the server got.
func capture(t *testing.T, req llm.Request, change ...func(*Options)) string {
	t.Helper()
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/responses", r.URL.Path)
		body, _ = io.ReadAll(r.Body)
		_, _ = io.WriteString(w, `{"status":"completed","output":[]}`)
	}))
	defer server.Close()
	_, err := open(t, server.URL, change...).Call(t.Context(), req, nil)
	require.NoError(t, err)
	return string(body)
}

func user(content string) llm.Message { return llm.Message{Role: llm.RoleUser, Content: content} }

func TestTheConversationAsItems(t *testing.T) {
	body := capture(t, llm.Request{
		Model: "gpt-4o",
		Messages: []llm.Message{
			{Role: llm.RoleSystem, Content: "Be <brief> & good."},
			user("go"),
			{Role: llm.RoleAssistant, Content: "Looking.", Calls: []llm.Call{
				{ID: "a", Name: "f", Arguments: `{"n": 1.50}`}, {ID: "b", Name: "not a name!", Arguments: `{"cut": `},
			}},
			{Role: llm.RoleTool, CallID: "a", Name: "f", Content: ""},
			{Role: llm.RoleTool, CallID: "b", Name: "not a name!", Content: "ERROR: x", Failed: true},
			{Role: llm.RoleAssistant},
			user(""),
		},
		Tools: []llm.Tool{{Name: "f", Description: "does f", Schema: json.RawMessage(`{"type":"object","maximum":1.0}`)}, {Name: "g"}},
	})
	require.Equal(t, `{"model":"gpt-4o","input":[`+
		`{"type":"message","role":"system","content":"Be <brief> & good."},`+
		`{"type":"message","role":"user","content":"go"},`+
		`{"type":"message","role":"assistant","content":"Looking."},`+
		`{"type":"function_call","call_id":"a","name":"f","arguments":"{\"n\": 1.50}"},`+
		`{"type":"function_call","call_id":"b","name":"not_a_name_","arguments":"{\"cut\": "},`+
		`{"type":"function_call_output","call_id":"a","output":""},`+
		`{"type":"function_call_output","call_id":"b","output":"ERROR: x"},`+
		`{"type":"message","role":"user","content":""}],`+
		`"tools":[{"type":"function","name":"f","description":"does f","parameters":{"type":"object","maximum":1.0},"strict":false},`+
		`{"type":"function","name":"g","description":"","parameters":{"type":"object","properties":{}},"strict":false}],`+
		`"store":false}`, body)
}

func TestSampling(t *testing.T) {
	half, seed := 0.5, 7
	all := llm.Sampling{Temperature: &half, TopP: &half, Seed: &seed, MaxTokens: 100, Stop: []string{"x"}, Effort: "max", ThinkingTokens: 9}
	for model, want := range map[string]string{
		"gpt-4o":  `"store":false,"max_output_tokens":100,"temperature":0.5,"top_p":0.5}`,
		"gpt-5.6": `"store":false,"include":["reasoning.encrypted_content"],"reasoning":{"effort":"xhigh","summary":"auto"},"max_output_tokens":100}`,
	} {
		require.Contains(t, capture(t, llm.Request{Model: model, Sampling: all}), want)
	}
	require.Contains(t, capture(t, llm.Request{Model: "o3"}), `"reasoning":{"summary":"auto"}`)
	require.Contains(t, capture(t, llm.Request{Model: "gpt-5.6", Sampling: llm.Sampling{Effort: "none"}}), `"reasoning":{"effort":"none"}}`)

	server := llmtest.NewModel(llmtest.Responses{}, llmtest.Turn{Reply: llm.Text{Content: "x"}}).Serve(t)
	res, err := open(t, server).Call(t.Context(), llm.Request{Model: "gpt-5.6", Sampling: all}, nil)
	require.NoError(t, err)
	require.Equal(t, []events.Adjusted{
		{Key: "temperature"}, {Key: "top_p"}, {Key: "seed"}, {Key: "stop"}, {Key: "reasoning.budget_tokens"},
		{Key: "reasoning.effort", Sent: json.RawMessage(`"xhigh"`)},
	}, res.About().Adjusted)
}

// A model's reasoning goes back unchanged, where it stood, and only to the model.
func TestReasoningGoesBack(t *testing.T) {
	call := llm.Call{ID: "call_1", Name: "search", Arguments: `{"q":"x"}`}
	turn := llmtest.Turn{Reply: llm.ToolCalls{Content: "I look.", Calls: []llm.Call{call}}, Thinking: "Hm, <größe> 🙂"}
	c := open(t, llmtest.NewModel(llmtest.Responses{}, turn).Serve(t))
	for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		reply, err := c.Call(t.Context(), llmtest.Request(0), stream)
		require.NoError(t, err)
		require.Equal(t, events.Reasoning{
			{Kind: events.ReasoningSummary, Text: "Hm, <größe> 🙂", ID: "rs_1"},
			{Kind: events.ReasoningOpaque, Data: json.RawMessage(`"` + llmtest.Encrypted + `"`), ID: "rs_1"},
		}, reply.About().Reasoning)
	}
	item := `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Hm, <größe> 🙂"}],"encrypted_content":"` + llmtest.Encrypted + `"},`
	first := events.Reasoning{
		{Kind: events.ReasoningSummary, Text: "Hm, <größe> 🙂", ID: "rs_1"},
		{Kind: events.ReasoningOpaque, Data: json.RawMessage(`"` + llmtest.Encrypted + `"`), ID: "rs_1"},
	}
	said, called := `{"type":"message","role":"assistant","content":"I look."},`, `{"type":"function_call","call_id":"call_1",`
	for name, tt := range map[string]struct {
		reasoning events.Reasoning
		asked     events.Asked
		want      string
	}{
		"its own":           {first, events.Asked{Provider: "p", Model: "o3"}, item + said + called},
		"of an unknown":     {first, events.Asked{}, item + said + called},
		"another model's":   {first, events.Asked{Provider: "p", Model: "o4"}, said + called},
		"another provider":  {first, events.Asked{Provider: "q", Model: "o3"}, said + called},
		"without a summary": {first[1:], events.Asked{}, `{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"` + llmtest.Encrypted + `"},` + said},
		"only a summary":    {first[:1], events.Asked{}, said + called},
		"between":           {events.Reasoning{{Kind: "opaque", Data: json.RawMessage(`"e"`), ID: "rs_2@1"}}, events.Asked{}, said + `{"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"e"},` + called},
		"after everything":  {events.Reasoning{{Kind: "opaque", Data: json.RawMessage(`"e"`), ID: "rs_2@2"}}, events.Asked{}, said + `{"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"e"},` + called},
		"open text":         {events.Reasoning{{Kind: "text", Text: "hm", ID: "rs_3"}}, events.Asked{}, `{"type":"reasoning","id":"rs_3","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},` + said + called},
		"of other APIs": {events.Reasoning{
			{Kind: "text", Text: "hm"}, {Kind: "opaque", Data: json.RawMessage(`"signature"`)}, {Kind: "opaque", Data: json.RawMessage(`{"google":{}}`), ID: "call_1"},
		}, events.Asked{}, said + called},
	} {
		body := capture(t, llm.Request{Provider: "p", Model: "o3", Messages: []llm.Message{
			user("go"),
			{Role: llm.RoleAssistant, Content: "I look.", Calls: []llm.Call{call}, Reasoning: tt.reasoning, Asked: tt.asked},
		}})
		require.Contains(t, body, `{"type":"message","role":"user","content":"go"},`+tt.want, name)
	}
	body := capture(t, llm.Request{Model: "o3", Messages: []llm.Message{user("go"), {Role: llm.RoleAssistant, Reasoning: first}}})
	require.NotContains(t, body, `"rs_1"`, "nothing follows it")
}

// Reasoning between the items of a reply is known to stand there.
func TestWhereReasoningStood(t *testing.T) {
	message := `{"type":"message","content":[{"type":"output_text","text":"hi"}]}`
	call := `{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}`
	thought := func(id string) string {
		return `{"type":"reasoning","id":"` + id + `","summary":[],"encrypted_content":"e"}`
	}
	body := `{"status":"completed","output":[` + strings.Join([]string{thought("rs_1"), message, thought("rs_2"), call, thought("rs_3"), call}, ",") + `]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
	defer server.Close()
	res, err := open(t, server.URL).Call(t.Context(), llm.Request{}, nil)
	require.NoError(t, err)
	var ids []string
	for _, p := range res.About().Reasoning {
		ids = append(ids, p.ID)
	}
	require.Equal(t, []string{"rs_1", "rs_2@1", "rs_3@2"}, ids)
	require.False(t, res.About().ReasoningBack, "the encrypted content is enough")

	body = `{"status":"completed","output":[{"type":"reasoning","id":"rs_1","content":[{"type":"reasoning_text","text":"hm"}]},` + message + `]}`
	res, err = open(t, server.URL).Call(t.Context(), llm.Request{}, nil)
	require.NoError(t, err)
	require.True(t, res.About().ReasoningBack, "there is only the text")
}

func TestImagesAndFiles(t *testing.T) {
	parts := []events.Part{
		{Type: events.PartText, Text: "See"},
		{Type: events.PartImage, MediaType: "image/png", Data: []byte("abc")},
		{Type: events.PartImage, MediaType: "image/png", URL: "https://h/i.png"},
		{Type: events.PartFile, MediaType: "application/pdf", Name: "a.pdf", Data: []byte("abc")},
		{Type: events.PartFile, MediaType: "application/pdf", URL: "https://h/a.pdf"},
	}
	req := llm.Request{Messages: []llm.Message{
		{Role: llm.RoleUser, Content: "See", Parts: parts},
		{Role: llm.RoleTool, CallID: "a", Content: "See", Parts: parts[:2]},
	}}
	list := `[{"type":"input_text","text":"See"},{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,YWJj"}`
	both := func(o *Options) { o.Capabilities = json.RawMessage(`{"images":"all","files":"all"}`) }
	body := capture(t, req, both)
	require.Contains(t, body, `"role":"user","content":`+list+`,{"type":"input_image","detail":"auto","image_url":"https://h/i.png"},`+
		`{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,YWJj"},{"type":"input_file","file_url":"https://h/a.pdf"}]`)
	require.Contains(t, body, `"call_id":"a","output":`+list+`]`)

	body = capture(t, req, func(o *Options) { o.Capabilities = json.RawMessage(`{"images":"none","files":"none"}`) })
	require.Contains(t, body, `"call_id":"a","output":"See\n[image left out: this model does not take it;`)
	require.NotContains(t, body, "YWJj")
}

func TestOutputSchema(t *testing.T) {
	req := llm.Request{OutputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"number"}},"required":["a"],"additionalProperties":false}`)}
	require.Contains(t, capture(t, req), `"text":{"format":{"type":"json_schema","name":"answer","schema":`+string(req.OutputSchema)+`,"strict":true}}`)
	req.OutputSchema = json.RawMessage(`{"type":"object"}`)
	require.Contains(t, capture(t, req), `"strict":false}}`)

	req.Tools = []llm.Tool{{Name: "f"}}
	final := func(o *Options) { o.Capabilities = json.RawMessage(`{"output_with_tools":"final_tool"}`) }
	body := capture(t, req, final)
	require.Contains(t, body, `"name":"final_answer"`)
	require.NotContains(t, body, `"text":`)
	model := llmtest.NewModel(llmtest.Responses{}, llmtest.Turn{Reply: llm.ToolCalls{Calls: []llm.Call{{ID: "a", Name: "final_answer", Arguments: `{"x":1}`}}}})
	res, err := open(t, model.Serve(t), final).Call(t.Context(), req, func(llm.Chunk) {})
	require.NoError(t, err)
	require.Equal(t, `{"x":1}`, res.(llm.Structured).Content)

	req.OutputSchema = json.RawMessage(`{`)
	_, err = open(t, "http://127.0.0.1:1").Call(t.Context(), req, nil)
	require.Contains(t, wantError(t, err, llm.KindInvalid).Message, "output schema is not valid JSON")
}

// A server that refuses a parameter that is not needed is asked again without it, and
// is not given a summary's again.
func TestRefusedParameters(t *testing.T) {
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body))
		for param, sent := range map[string]string{"reasoning.summary": `"summary"`, "include": `"include"`} {
			if strings.Contains(string(body), sent) {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = fmt.Fprintf(w, `{"error":{"message":"no %[1]s","type":"invalid_request_error","param":%[1]q}}`, param)
				return
			}
		}
		_, _ = io.WriteString(w, `{"status":"completed","output":[]}`)
	}))
	defer server.Close()
	c := open(t, server.URL)
	for _, requests := range []int{3, 2} {
		bodies = nil
		_, err := c.Call(t.Context(), llm.Request{Model: "o3"}, nil)
		require.NoError(t, err)
		require.Len(t, bodies, requests)
	}
}

// What the provider states in place of a reply is its error, with what was billed.
func TestStatedErrors(t *testing.T) {
	for stated, kind := range map[string]llm.ErrorKind{
		`{"code":"rate_limit_exceeded","message":"its words"}`:     llm.KindRateLimited,
		`{"code":"server_error","message":"its words"}`:            llm.KindOverloaded,
		`{"code":"server_is_overloaded","message":"its words"}`:    llm.KindOverloaded,
		`{"code":"invalid_prompt","message":"its words"}`:          llm.KindInvalid,
		`{"code":"context_length_exceeded","message":"its words"}`: llm.KindContextTooLong,
		`{"code":"insufficient_quota","message":"its words"}`:      llm.KindInvalid,
		`null`: llm.KindOverloaded,
	} {
		response := `{"model":"m-1","status":"failed","error":` + stated + `,"output":[],"usage":{"input_tokens":7,"output_tokens":2}}`
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept") == "text/event-stream" {
				w.Header().Set("Content-Type", "text/event-stream")
				response = `data: {"type":"response.failed","response":` + response + "}\n\n"
			}
			_, _ = io.WriteString(w, response)
		}))
		for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
			_, err := open(t, server.URL).Call(t.Context(), llm.Request{}, stream)
			e := wantError(t, err, kind)
			require.Equal(t, &llm.Usage{Input: 7, Output: 2, Total: 9}, e.Usage)
			require.Equal(t, "m-1", e.Reply.Model)
			require.Len(t, e.Reply.RequestSHA256, 64)
			if stated != "null" {
				require.Contains(t, e.Message, "its words")
			}
		}
		server.Close()
	}
}

// The index of a part is the server's word, and makes no parts.
func TestPartsOfReasoningAreThoseThatCame(t *testing.T) {
	var all texts
	for _, index := range []int{1000, -1, 1 << 40} {
		all.add(index, "x")
	}
	require.Len(t, all, 2)
}

// Ollama says completed whatever happened, but the count tells.
func TestAReplyThatUsesAllItsTokensIsCut(t *testing.T) {
	turn := llmtest.Turn{Reply: llm.Text{Content: "as far as", Meta: llm.Meta{Usage: llm.Usage{Input: 3, Output: 5}}}}
	for _, tt := range []struct {
		like  string
		bound int
		want  llm.Finish
	}{{"ollama", 5, llm.FinishLength}, {"ollama", 6, llm.FinishStop}, {"openai", 5, llm.FinishStop}} {
		c := open(t, llmtest.NewModel(llmtest.Responses{}, turn).Serve(t), func(o *Options) { o.Like = tt.like })
		res, err := c.Call(t.Context(), llm.Request{Model: "gpt-4o", Sampling: llm.Sampling{MaxTokens: tt.bound}}, nil)
		require.NoError(t, err)
		require.Equal(t, tt.want, res.About().Finish)
		require.Equal(t, "completed", res.About().FinishRaw)
	}
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	for want, req := range map[string]llm.Request{
		"no model":                        {},
		`schema of tool "f" is not valid`: {Model: "m", Tools: []llm.Tool{{Name: "f", Schema: json.RawMessage(`{`)}}},
		"output schema is not valid JSON": {Model: "m", OutputSchema: json.RawMessage(`{`)},
	} {
		_, err := open(t, "http://127.0.0.1:1", func(o *Options) { o.Model = "" }).Call(t.Context(), req, nil)
		require.Contains(t, wantError(t, err, llm.KindInvalid).Message, want)
	}
}

func TestOptions(t *testing.T) {
	_, err := New(Options{})
	require.ErrorContains(t, err, "responses: no API key: set one (OPENAI_API_KEY), or a base URL (OPENAI_BASE_URL)")
	c, err := New(Options{APIKey: testKey, Model: "m-0"})
	require.NoError(t, err)
	require.Equal(t, "m-0", c.Describe().DefaultModel)
	require.Equal(t, `responses https://api.openai.com/v1 "m-0"`, c.Describe().Identity)
}

func FuzzStream(f *testing.F) {
	turn := llmtest.Turn{Thinking: "hm", Reply: llm.ToolCalls{Content: "x", Calls: []llm.Call{{ID: "a", Name: "f", Arguments: `{"a":1}`}}}}
	f.Add([]byte(strings.Join(llmtest.Responses{}.Events(turn, llmtest.WireRequest{}), "")))
	f.Add([]byte("data: {\"type\":\"response.reasoning_text.delta\",\"content_index\":-9,\"delta\":\"x\"}\n\ndata: {\"type\":\"response.completed\"}\n\n"))
	f.Add([]byte("data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"message\",\"content\":\"x\"}}\n\n"))
	f.Add([]byte("event: error\ndata: {\"error\":[]}\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := open(t, "http://canned.invalid", func(o *Options) { o.HTTPClient = &http.Client{Transport: canned(stream)} })
		var text strings.Builder
		res, err := c.Call(t.Context(), llm.Request{}, func(c llm.Chunk) { text.WriteString(c.Text) })
		if err != nil {
			var e *llm.Error
			require.ErrorAs(t, err, &e)
			require.NotEmpty(t, e.Kind)
			require.Nil(t, res)
		}
	})
}

// canned answers with the bytes as a stream.
type canned string

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(string(c))), Request: r,
	}, nil
}

// Reasoning that the server cannot read any more is left out of a second request.
func TestReasoningThatIsRefused(t *testing.T) {
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body))
		if strings.Contains(string(body), `"gAAA"`) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"The encrypted content could not be verified.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}`)
			return
		}
		_, _ = io.WriteString(w, `{"status":"completed","output":[]}`)
	}))
	defer server.Close()
	_, err := open(t, server.URL).Call(t.Context(), llm.Request{Model: "o3", Messages: []llm.Message{
		{Role: llm.RoleUser, Content: "one"},
		{Role: llm.RoleAssistant, Content: "two", Reasoning: events.Reasoning{{Kind: events.ReasoningOpaque, Data: json.RawMessage(`"gAAA"`), ID: "rs_1"}}},
		{Role: llm.RoleUser, Content: "three"},
	}}, nil)
	require.NoError(t, err)
	require.Len(t, bodies, 2)
	require.Contains(t, bodies[1], `"two"`)
}
