package openai

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// sent is what a server gets, as far as the tests look at it.
type sent struct {
	Messages []struct {
		Role             string
		Content          json.RawMessage
		ReasoningContent *string           `json:"reasoning_content"`
		Reasoning        *string           `json:"reasoning"`
		ReasoningDetails []json.RawMessage `json:"reasoning_details"`
		ExtraContent     json.RawMessage   `json:"extra_content"`
		ToolCalls        []struct {
			ExtraContent json.RawMessage `json:"extra_content"`
		} `json:"tool_calls"`
	}
}

func send(t *testing.T, like string, req llm.Request) sent {
	t.Helper()
	body, _, _ := capture(t, Options{Like: like}, req, nil)
	var s sent
	require.NoError(t, json.Unmarshal([]byte(body), &s))
	return s
}

// reasoned is a conversation of two turns. In the first one the model reasoned beside a call
// and before its answer, in the second one beside a call.
func reasoned(asked events.Asked) []llm.Message {
	call := func(id, text string, opaque ...events.ReasoningPart) llm.Message {
		return llm.Message{
			Role: llm.RoleAssistant, Asked: asked, Calls: []llm.Call{{ID: id, Name: "f", Arguments: "{}"}},
			Reasoning: append(events.Reasoning{{Kind: events.ReasoningText, Text: text}}, opaque...),
		}
	}
	signature := func(id string) events.ReasoningPart {
		return events.ReasoningPart{Kind: events.ReasoningOpaque, ID: id, Data: json.RawMessage(`{"signed":"` + id + `"}`)}
	}
	return []llm.Message{
		{Role: llm.RoleUser, Content: "one"},
		call("a", "A.", signature("a")),
		{Role: llm.RoleTool, CallID: "a", Name: "f", Content: "1"},
		{Role: llm.RoleAssistant, Asked: asked, Content: "Done.", Reasoning: events.Reasoning{{Kind: events.ReasoningText, Text: "B."}}},
		{Role: llm.RoleUser, Content: "two"},
		call("c", "C.", signature("c")),
		{Role: llm.RoleTool, CallID: "c", Name: "f", Content: "2"},
	}
}

// TestReasoningGoesBack holds each row to the field and the messages that its server wants.
func TestReasoningGoesBack(t *testing.T) {
	for _, tt := range []struct {
		like, model          string
		field                string // reasoning_content or reasoning; others have none
		first, answer, third string // the texts of the three replies that go back
	}{
		{"openai", "gpt-5", "", "", "", ""},
		{"deepseek", "deepseek-v4-pro", "reasoning_content", "A.", "B.", "C."},
		{"deepseek", "deepseek-reasoner", "reasoning_content", "A.", "", "C."},
		{"kimi", "kimi-k2.5", "reasoning_content", "A.", "B.", "C."},
		{"glm", "glm-4.6", "reasoning_content", "A.", "", "C."},
		{"glm", "glm-5", "reasoning_content", "A.", "B.", "C."},
		{"groq", "openai/gpt-oss-120b", "", "", "", ""},
		{"mistral", "mistral-small-latest", "", "", "", ""},
		{"cerebras", "zai-glm-4.7", "reasoning", "A.", "B.", "C."},
		{"ollama", "qwen3", "reasoning", "", "", "C."},
		{"llamacpp", "any", "reasoning_content", "", "", "C."},
		{"", "unknown", "", "", "", ""},
	} {
		t.Run(tt.like+" "+tt.model, func(t *testing.T) {
			s := send(t, tt.like, llm.Request{Model: tt.model, Messages: reasoned(events.Asked{Model: tt.model})})
			for i, want := range map[int]string{1: tt.first, 3: tt.answer, 5: tt.third} {
				m := s.Messages[i]
				fields := map[string]*string{"reasoning_content": m.ReasoningContent, "reasoning": m.Reasoning}
				for name, got := range fields {
					switch {
					case name != tt.field || want == "":
						require.Nil(t, got, "%s of message %d", name, i)
					default:
						require.NotNil(t, got, "%s of message %d", name, i)
						require.Equal(t, want, *got)
					}
				}
				require.Empty(t, m.ReasoningDetails)
				require.Empty(t, m.ExtraContent)
			}
		})
	}
}

func TestReasoningOfAnotherModelStays(t *testing.T) {
	other := reasoned(events.Asked{Provider: "elsewhere", Model: "other"})
	s := send(t, "cerebras", llm.Request{Provider: "mine", Model: "m", Messages: other})
	require.Nil(t, s.Messages[1].Reasoning)

	// DeepSeek, Kimi and GLM refuse a reply without the field.
	s = send(t, "deepseek", llm.Request{Provider: "mine", Model: "deepseek-v4", Messages: other})
	require.NotNil(t, s.Messages[1].ReasoningContent)
	require.Empty(t, *s.Messages[1].ReasoningContent)
	for like, model := range map[string]string{"kimi": "kimi-k3", "glm": "glm-5"} { // nor with an empty one
		s = send(t, like, llm.Request{Provider: "mine", Model: model, Messages: other})
		require.Equal(t, " ", *s.Messages[1].ReasoningContent, model)
		require.Equal(t, " ", *s.Messages[3].ReasoningContent, model)
	}
	s = send(t, "kimi", llm.Request{Provider: "mine", Model: "moonshot-v1-32k", Messages: other})
	require.Nil(t, s.Messages[1].ReasoningContent)

	s = send(t, "gemini", llm.Request{Provider: "mine", Model: "gemini-3-flash", Messages: other})
	require.JSONEq(t, `{"google":{"thought_signature":"skip_thought_signature_validator"}}`, string(s.Messages[1].ToolCalls[0].ExtraContent))
	s = send(t, "gemini", llm.Request{Provider: "mine", Model: "gemini-2.5-flash", Messages: other})
	require.Empty(t, s.Messages[1].ToolCalls[0].ExtraContent, "2.5 does not need one")

	// A log that does not say who reasoned is sent as before.
	s = send(t, "cerebras", llm.Request{Provider: "mine", Model: "m", Messages: reasoned(events.Asked{})})
	require.Equal(t, "A.", *s.Messages[1].Reasoning)
}

func TestFormsOfReasoning(t *testing.T) {
	detail := func(data string) events.ReasoningPart {
		return events.ReasoningPart{Kind: events.ReasoningOpaque, Data: json.RawMessage(data)}
	}
	text := events.ReasoningPart{Kind: events.ReasoningText, Text: "Hm.\n"}
	of := func(content string, parts ...events.ReasoningPart) []llm.Message {
		return []llm.Message{{Role: llm.RoleUser, Content: "go"}, {Role: llm.RoleAssistant, Content: content, Reasoning: parts}, {Role: llm.RoleUser, Content: "on"}}
	}
	s := send(t, "openrouter", llm.Request{Model: "x/y", Messages: of("ok", text, detail(`{"type":"reasoning.text","text":"Hm.\n","index":0}`), detail(`{"type":"reasoning.encrypted","data":"="}`))})
	require.Len(t, s.Messages[1].ReasoningDetails, 2)
	require.JSONEq(t, `{"type":"reasoning.encrypted","data":"="}`, string(s.Messages[1].ReasoningDetails[1]))
	require.Nil(t, s.Messages[1].Reasoning, "the details hold it")
	s = send(t, "openrouter", llm.Request{Model: "x/y", Messages: of("ok", text)})
	require.Equal(t, "Hm.\n", *s.Messages[1].Reasoning)

	s = send(t, "mistral", llm.Request{Model: "magistral", Messages: of("ok", text)})
	require.JSONEq(t, `[{"type":"thinking","thinking":[{"type":"text","text":"Hm.\n"}]},{"type":"text","text":"ok"}]`, string(s.Messages[1].Content))
	s = send(t, "mistral", llm.Request{Model: "magistral", Messages: of("ok")})
	require.JSONEq(t, `"ok"`, string(s.Messages[1].Content))

	s = send(t, "gemini", llm.Request{Model: "gemini-3-pro", Messages: of("ok", text, detail(`{"google":{"thought_signature":"s"}}`))})
	require.JSONEq(t, `{"google":{"thought_signature":"s"}}`, string(s.Messages[1].ExtraContent))
	s = send(t, "gemini", llm.Request{Model: "gemini-3-pro", Messages: reasoned(events.Asked{})})
	require.JSONEq(t, `{"signed":"c"}`, string(s.Messages[5].ToolCalls[0].ExtraContent))

	body, _, _ := capture(t, Options{Capabilities: json.RawMessage(`{"reasoning_field":"think_tags","reasoning_back":"always"}`)},
		llm.Request{Model: "m", Messages: of("ok", text)}, nil)
	require.NoError(t, json.Unmarshal([]byte(body), &s))
	require.JSONEq(t, `"<think>Hm.\n</think>ok"`, string(s.Messages[1].Content))
}

func TestMistralsMessages(t *testing.T) {
	call := func(id string) llm.Call { return llm.Call{ID: id, Name: "f", Arguments: "{}"} }
	req := llm.Request{Model: "mistral-large", Messages: []llm.Message{
		{Role: llm.RoleUser, Content: "go"},
		{Role: llm.RoleAssistant, Calls: []llm.Call{call("D681PevKs"), call("call_1_2")}},
		{Role: llm.RoleTool, CallID: "D681PevKs", Name: "f", Content: "1"},
		{Role: llm.RoleTool, CallID: "call_1_2", Name: "f", Content: "2"},
		{Role: llm.RoleUser, Content: "wait"},
	}}
	body, _, _ := capture(t, Options{Like: "mistral"}, req, nil)
	var got struct{ Messages []message }
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	require.Len(t, got.Messages, 6)
	calls := got.Messages[1].ToolCalls
	require.Equal(t, "D681PevKs", calls[0].ID, "its own id")
	require.Regexp(t, "^[a-zA-Z0-9]{9}$", calls[1].ID)
	for i := range calls {
		require.Equal(t, calls[i].ID, got.Messages[2+i].ToolCallID)
	}
	require.Equal(t, message{Role: "assistant", Content: "OK."}, got.Messages[4])
	require.Equal(t, "call_1_2", req.Messages[1].Calls[1].ID)
}

// TestTextThatGoesBack: an agent that records no reasoning keeps what the server needs.
func TestTextThatGoesBack(t *testing.T) {
	call := `"content":null,"reasoning_content":"Hm.","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]`
	details := `"content":"x","reasoning":"Hm.","reasoning_details":[{"type":"reasoning.text","text":"Hm.","index":0}]`
	for _, tt := range []struct {
		like, message string
		want          bool
	}{
		{"kimi", call, true},
		{"kimi", `"content":"x","reasoning_content":"Hm."`, true},
		{"ollama", call, true},
		{"openai", call, false},
		{"deepseek", `"content":"x","reasoning_content":"Hm."`, true},
		{"deepseek", `"content":"x"`, false},
		{"openrouter", details, false},
		{"openrouter", `"content":"x","reasoning":"Hm."`, true},
	} {
		c := serve(t, Options{Like: tt.like}, script("", plainReply(tt.message, "stop")))
		res, err := c.Call(t.Context(), ask(), nil)
		require.NoError(t, err)
		require.Equal(t, tt.want, res.About().ReasoningBack, "%v", tt)
	}
}

func TestImagesAndFiles(t *testing.T) {
	picture := events.Part{Type: events.PartImage, MediaType: "image/png", Data: []byte("png")}
	messages := []llm.Message{
		{Role: llm.RoleUser, Content: "look", Parts: []events.Part{
			{Type: events.PartText, Text: "look"}, picture,
			{Type: events.PartFile, MediaType: "application/pdf", Name: "a.pdf", Data: []byte("pdf")},
			{Type: events.PartFile, MediaType: "application/pdf", URL: "https://example.org/b.pdf"},
		}},
		{Role: llm.RoleAssistant, Calls: []llm.Call{{ID: "a", Name: "f", Arguments: "{}"}, {ID: "b", Name: "f", Arguments: "{}"}}},
		{Role: llm.RoleTool, CallID: "a", Name: "f", Content: "seen", Parts: []events.Part{{Type: events.PartText, Text: "seen"}, picture}},
		{Role: llm.RoleTool, CallID: "b", Name: "f", Content: "none"},
	}
	const png = `{"type":"image_url","image_url":{"url":"data:image/png;base64,cG5n"}}`
	s := send(t, "openai", llm.Request{Model: "gpt-4o", Messages: messages})
	require.Len(t, s.Messages, 5)
	require.JSONEq(t, `[{"type":"text","text":"look"},`+png+`,
		{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,cGRm"}},
		{"type":"text","text":"[file left out: this model does not take it; application/pdf; https://example.org/b.pdf]"}]`, string(s.Messages[0].Content))
	require.JSONEq(t, `"seen"`, string(s.Messages[2].Content))
	require.Equal(t, "tool", s.Messages[3].Role, "results follow their calls")
	require.Equal(t, "user", s.Messages[4].Role)
	require.JSONEq(t, `[{"type":"text","text":"(From the tool results above:)"},`+png+`]`, string(s.Messages[4].Content))

	s = send(t, "deepseek", llm.Request{Model: "deepseek-v4", Messages: messages})
	require.Len(t, s.Messages, 4)
	require.JSONEq(t, `"seen\n[image left out: this model does not take it; image/png; 3 bytes]"`, string(s.Messages[2].Content))
	require.Contains(t, string(s.Messages[0].Content), "a.pdf")
}

// TestSettings holds each row to how it takes effort, sampling and bounds.
func TestSettings(t *testing.T) {
	half, seed := 0.5, 7
	all := llm.Sampling{Temperature: &half, TopP: &half, Seed: &seed, MaxTokens: 50, Stop: []string{"x"}}
	effort := func(level string) llm.Sampling { return llm.Sampling{Effort: level} }
	for _, tt := range []struct {
		name, like, model string
		sampling          llm.Sampling
		tools             bool
		want, adjusted    string
	}{
		{"nothing asked", "openai", "gpt-5.2", llm.Sampling{}, false, `{}`, ``},
		{"a level that it has", "openai", "gpt-5", effort("minimal"), false, `{"reasoning_effort":"minimal"}`, ``},
		{"the nearest level", "openai", "gpt-5.1", effort("max"), false, `{"reasoning_effort":"high"}`, `[{"key":"reasoning.effort","sent":"high"}]`},
		{"no levels", "openai", "gpt-4o", effort("high"), false, `{}`, `[{"key":"reasoning.effort"}]`},
		{"effort or tools", "openai", "gpt-5.4", effort("high"), true, `{}`, `[{"key":"reasoning.effort"}]`},
		{"tools without reasoning", "openai", "gpt-5.6", effort("high"), true, `{"reasoning_effort":"none"}`, `[{"key":"reasoning.effort","sent":"none"}]`},
		{"refused sampling", "openai", "o3", all, false, `{"max_completion_tokens":50,"seed":7}`, `[{"key":"temperature"},{"key":"top_p"},{"key":"stop"}]`},
		{"sampling", "", "m", all, false, `{"max_tokens":50,"seed":7,"temperature":0.5,"top_p":0.5,"stop":["x"]}`, ``},
		{"no budget", "openai", "o3", llm.Sampling{ThinkingTokens: 100}, false, `{}`, `[{"key":"reasoning.budget_tokens"}]`},
		{"DeepSeek off", "deepseek", "deepseek-v4", effort("none"), false, `{"thinking":{"type":"disabled"}}`, ``},
		{"DeepSeek on", "deepseek", "deepseek-v4", effort("xhigh"), false, `{"thinking":{"type":"enabled"},"reasoning_effort":"max"}`, `[{"key":"reasoning.effort","sent":"max"}]`},
		{"Kimi off", "kimi", "kimi-k2.5", effort("none"), false, `{"thinking":{"type":"disabled"}}`, ``},
		{"Kimi K2.6 keeps", "kimi", "kimi-k2.6", llm.Sampling{MaxTokens: 9}, false, `{"thinking":{"type":"enabled","keep":"all"},"max_completion_tokens":9}`, ``},
		{"Kimi K3", "kimi", "kimi-k3", effort("none"), false, `{"reasoning_effort":"low"}`, `[{"key":"reasoning.effort","sent":"low"}]`},
		{"GLM keeps", "glm", "glm-4.7", effort("none"), false, `{"thinking":{"type":"disabled","clear_thinking":false}}`, ``},
		{"OpenRouter", "openrouter", "x/y", effort("low"), false, `{"reasoning":{"effort":"low"}}`, ``},
		{"OpenRouter's budget", "openrouter", "x/y", llm.Sampling{ThinkingTokens: 100}, false, `{"reasoning":{"max_tokens":100}}`, ``},
		{"an effort goes before a budget", "openrouter", "x/y", llm.Sampling{Effort: "low", ThinkingTokens: 100}, false, `{"reasoning":{"effort":"low"}}`, `[{"key":"reasoning.budget_tokens"}]`},
		{"Gemini's budget", "gemini", "gemini-2.5-flash", llm.Sampling{ThinkingTokens: 100}, false, `{"extra_body":{"google":{"thinking_config":{"thinking_budget":100}}}}`, ``},
		{"Qwen", "qwen", "qwen3.8-max", llm.Sampling{Effort: "medium", ThinkingTokens: 100}, false, `{"enable_thinking":true,"thinking_budget":100}`, `[{"key":"reasoning.effort","sent":"high"}]`},
		{"llama.cpp", "llamacpp", "m", effort("none"), false, `{"chat_template_kwargs":{"enable_thinking":false}}`, ``},
		{"Mistral has no seed", "mistral", "mistral-large", llm.Sampling{Seed: &seed}, false, `{}`, `[{"key":"seed"}]`},
		{"MiniMax splits", "minimax", "MiniMax-M2", llm.Sampling{}, false, `{"reasoning_split":true}`, ``},
		{"Groq's Qwen", "groq", "qwen/qwen3-32b", effort("high"), false, `{}`, `[{"key":"reasoning.effort"}]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := ask()
			req.Model, req.Sampling = tt.model, tt.sampling
			if tt.tools {
				req.Tools = []llm.Tool{{Name: "f"}}
			}
			body := make(chan map[string]json.RawMessage, 1)
			c := serve(t, Options{Like: tt.like}, func(w http.ResponseWriter, r *http.Request) {
				var got map[string]json.RawMessage
				_ = json.NewDecoder(r.Body).Decode(&got)
				body <- got
				_, _ = io.WriteString(w, plainHello)
			})
			res, err := c.Call(t.Context(), req, nil)
			require.NoError(t, err)
			got := <-body
			delete(got, "model")
			delete(got, "messages")
			delete(got, "tools")
			left, err := json.Marshal(got)
			require.NoError(t, err)
			require.JSONEq(t, tt.want, string(left))
			adjusted := ""
			if a := res.About().Adjusted; len(a) > 0 {
				text, err := json.Marshal(a)
				require.NoError(t, err)
				adjusted = string(text)
			}
			require.Equal(t, tt.adjusted, adjusted)
		})
	}
}

// Thinking that the model behind a router refuses is left out of a second request.
func TestReasoningThatIsRefused(t *testing.T) {
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body))
		if strings.Contains(string(body), `"signed"`) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"messages.1.content.0: Invalid `+"`signature` in `thinking`"+` block\"}}"}}}`)
			return
		}
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}]}`)
	}))
	defer server.Close()
	c, err := New(Options{BaseURL: server.URL, Like: "openrouter"})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Call(t.Context(), llm.Request{Model: "anthropic/claude-fable-5-1", Messages: reasoned(events.Asked{})}, nil)
	require.NoError(t, err)
	require.Len(t, bodies, 2)
	require.NotContains(t, bodies[1], `"A."`)
}
