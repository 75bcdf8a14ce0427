package anthropic

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmhttp"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

// hello is what the servers of these tests answer.
var hello = llmtest.Turn{Reply: llm.Text{Content: "hello", Meta: llm.Meta{Model: "claude-test"}}}

// capture makes one plain call and gives what the server got, as compact JSON
// without what stands for every request.
func capture(t *testing.T, req llm.Request, change ...func(*Options)) (map[string]json.RawMessage, http.Header) {
	t.Helper()
	type got struct {
		body   []byte
		path   string
		header http.Header
	}
	requests := make(chan got, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		requests <- got{data, r.URL.Path, r.Header}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, llmtest.Anthropic{}.Plain(hello, llmtest.WireRequest{}))
	}))
	t.Cleanup(server.Close)
	_, err := open(t, server.URL, change...).Call(t.Context(), req, nil)
	require.NoError(t, err)
	g := <-requests
	require.Equal(t, "/v1/messages", g.path)
	var body map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(g.body, &body))
	return body, g.header
}

const mark = `"cache_control":{"type":"ephemeral"}`

func user(content string) llm.Message { return llm.Message{Role: llm.RoleUser, Content: content} }

func asks(content string, calls ...llm.Call) llm.Message {
	return llm.Message{Role: llm.RoleAssistant, Content: content, Calls: calls}
}

func result(id, name, content string) llm.Message {
	return llm.Message{Role: llm.RoleTool, CallID: id, Name: name, Content: content}
}

func TestTheConversationAsTheAPIWantsIt(t *testing.T) {
	failed := result("b", "g", "ERROR: x")
	failed.Failed = true
	body, header := capture(t, llm.Request{
		Messages: []llm.Message{
			{Role: llm.RoleSystem, Content: "Be <brief> & good."},
			user("go"),
			asks("Looking.", llm.Call{ID: "a", Name: "f", Arguments: `{"n": 1.50, "big": 12345678901234567890}`}, llm.Call{ID: "b", Name: "g", Arguments: `{"cut": `}),
			result("a", "f", ""), failed,
			user("and?"), user(" \n"),
			asks("", llm.Call{ID: "a", Name: "f"}), // an id that was there before
			result("a", "f", "found"),
			asks("Half."), asks("Other half."),
			user("thanks"),
		},
		Tools: []llm.Tool{
			{Name: "f", Description: "does f", Schema: json.RawMessage(`{"type":"object","maximum":1.0,"x-a":"b"}`)},
			{Name: "g"},
			{Name: "h", Schema: json.RawMessage(`{"properties":{}}`)},
		},
	})
	require.JSONEq(t, `[{"type":"text","text":"Be <brief> & good.",`+mark+`}]`, string(body["system"]))
	require.JSONEq(t, `[
		{"role":"user","content":[{"type":"text","text":"go"}]},
		{"role":"assistant","content":[{"type":"text","text":"Looking."},
			{"type":"tool_use","id":"a","name":"f","input":{"n":1.50,"big":12345678901234567890}},
			{"type":"tool_use","id":"b","name":"g","input":{"arguments":"{\"cut\": "}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"},
			{"type":"tool_result","tool_use_id":"b","is_error":true,"content":[{"type":"text","text":"ERROR: x"}]},
			{"type":"text","text":"and?"}]},
		{"role":"assistant","content":[{"type":"tool_use","id":"a_2","name":"f","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"a_2","content":[{"type":"text","text":"found"}]}]},
		{"role":"assistant","content":[{"type":"text","text":"Half."},{"type":"text","text":"Other half."}]},
		{"role":"user","content":[{"type":"text","text":"thanks",`+mark+`}]}]`, string(body["messages"]))
	require.Contains(t, string(body["messages"]), "12345678901234567890", "numbers are not written anew")
	require.JSONEq(t, `[
		{"name":"f","description":"does f","input_schema":{"type":"object","maximum":1.0,"x-a":"b"}},
		{"name":"g","input_schema":{"type":"object","properties":{}}},
		{"name":"h","input_schema":{"type":"object","properties":{}},`+mark+`}]`, string(body["tools"]))
	require.JSONEq(t, `4096`, string(body["max_tokens"]))
	require.JSONEq(t, `"claude-test"`, string(body["model"]))
	require.NotContains(t, body, "temperature")
	require.NotContains(t, body, "tool_choice")
	require.Equal(t, testKey, header.Get("X-Api-Key"))
	require.Equal(t, "2023-06-01", header.Get("Anthropic-Version"))
	require.Empty(t, header.Get("Authorization"))
}

// A window on a conversation can begin with a reply, which the API refuses.
func TestConversationThatBeginsWithAReply(t *testing.T) {
	body, _ := capture(t, llm.Request{Messages: []llm.Message{asks("As I said."), user("go on")}})
	require.JSONEq(t, `[{"role":"user","content":[{"type":"text","text":"(Earlier messages are not shown.)"}]},
		{"role":"assistant","content":[{"type":"text","text":"As I said."}]},
		{"role":"user","content":[{"type":"text","text":"go on",`+mark+`}]}]`, string(body["messages"]))
}

func TestIDsOfOtherProviders(t *testing.T) {
	body, _ := capture(t, llm.Request{Messages: []llm.Message{
		user("go"),
		asks("", llm.Call{ID: "call~1", Name: "f"}, llm.Call{ID: "call~1", Name: "g"}, llm.Call{Name: "h"}),
		result("call~1", "f", "1"), result("call~1", "g", "2"), result("", "h", "3"),
	}})
	var messages []struct {
		Content []struct {
			ID        string `json:"id"`
			ToolUseID string `json:"tool_use_id"`
		} `json:"content"`
	}
	require.NoError(t, json.Unmarshal(body["messages"], &messages))
	for i, want := range []string{"call_1", "call_1_2", "call"} {
		require.Equal(t, want, messages[1].Content[i].ID)
		require.Equal(t, want, messages[2].Content[i].ToolUseID)
	}
}

// What a request begins with does not change when the conversation goes on, so
// that the cache is met.
func TestThePrefixIsStable(t *testing.T) {
	prefix := func(turn int) string {
		body, _ := capture(t, llmtest.Request(turn))
		messages := strings.ReplaceAll(string(body["messages"]), ","+mark, "")
		return string(body["tools"]) + string(body["system"]) + strings.TrimSuffix(messages, "]")
	}
	before := prefix(0)
	for turn := 1; turn < 4; turn++ {
		after := prefix(turn)
		require.True(t, strings.HasPrefix(after, before), "%s\n%s", before, after)
		before = after
	}
}

func TestSampling(t *testing.T) {
	zero, half := 0.0, 0.5
	body, _ := capture(t, llm.Request{Model: "minimax-other", Messages: []llm.Message{user("go")},
		Sampling: llm.Sampling{Temperature: &zero, TopP: &half, MaxTokens: 77, Stop: []string{"END"}}})
	require.JSONEq(t, `0`, string(body["temperature"]))
	require.JSONEq(t, `0.5`, string(body["top_p"]))
	require.JSONEq(t, `77`, string(body["max_tokens"]))
	require.JSONEq(t, `["END"]`, string(body["stop_sequences"]))
	require.JSONEq(t, `"minimax-other"`, string(body["model"]))
	body, header := capture(t, llm.Request{Messages: []llm.Message{user("go")}}, func(o *Options) {
		o.MaxTokens, o.Header = 99, http.Header{"Anthropic-Beta": {"one", "two"}}
	})
	require.JSONEq(t, `99`, string(body["max_tokens"]))
	require.Equal(t, []string{"one", "two"}, header.Values("Anthropic-Beta"))
}

func TestStructuredAnswerIsATool(t *testing.T) {
	req := llm.Request{Messages: []llm.Message{user("go")}, OutputSchema: json.RawMessage(`{"type":"object","properties":{"n":{}}}`)}
	body, _ := capture(t, req)
	require.JSONEq(t, `[{"name":"final_answer","description":"`+llmhttp.AnswerWords+`","input_schema":{"type":"object","properties":{"n":{}}},`+mark+`}]`, string(body["tools"]))
	require.JSONEq(t, `{"type":"tool","name":"final_answer","disable_parallel_tool_use":true}`, string(body["tool_choice"]))

	thinking := req
	thinking.Sampling.ThinkingTokens = 2000
	body, _ = capture(t, thinking)
	require.NotContains(t, body, "tool_choice", "a model that thinks cannot be forced")

	req.Tools = []llm.Tool{{Name: "final_answer"}}
	body, _ = capture(t, req)
	require.NotContains(t, body, "tool_choice")
	require.Regexp(t, `"final_answer_[0-9a-f]{8}"`, string(body["tools"]), "an agent's tool keeps its name")

	req.Tools, req.OutputSchema = nil, json.RawMessage(`{"type":"array","items":{"$ref":"#/$defs/n"},"$defs":{"n":{"type":"integer"}}}`)
	body, _ = capture(t, req)
	require.Contains(t, string(body["tools"]), `"$defs":{"n":{"type":"integer"}}`, "references from the root hold")
	require.Contains(t, string(body["tools"]), `"required":["answer"]`)
}

func TestRequestsThatAreRefusedHere(t *testing.T) {
	c := open(t, "http://127.0.0.1:1", func(o *Options) { o.Model = "" })
	for want, req := range map[string]llm.Request{
		"no model":          {},
		"not valid JSON":    {Model: "m", Tools: []llm.Tool{{Name: "f", Schema: json.RawMessage(`{`)}}},
		"not a JSON object": {Model: "m", OutputSchema: json.RawMessage(`{`)},
		"the output schema": {Model: "m", OutputSchema: json.RawMessage(`[]`)},
	} {
		_, err := c.Call(t.Context(), req, nil)
		require.ErrorContains(t, err, want)
		wantError(t, err, llm.KindInvalid)
	}
}

func TestOptions(t *testing.T) {
	_, err := New(Options{})
	require.ErrorContains(t, err, "ANTHROPIC_API_KEY")
	c, err := New(Options{APIKey: "k", Model: "m-0"})
	require.NoError(t, err)
	require.Equal(t, "m-0", c.Describe().DefaultModel)
	require.Equal(t, `anthropic https://api.anthropic.com/ "m-0" 4096`, c.Describe().Identity, "planners of two builds compare it")
}

// An agent without tools can go on with a conversation that has calls: their tools
// are named, and none may be called.
func TestCallsWithoutTools(t *testing.T) {
	req := llm.Request{Messages: []llm.Message{
		user("go"), asks("", llm.Call{ID: "a", Name: "server.f"}, llm.Call{ID: "b", Name: "server.f"}, llm.Call{ID: "c", Name: "g"}),
		result("a", "server.f", "1"), result("b", "server.f", "2"), result("c", "g", "3"),
	}}
	body, _ := capture(t, req)
	require.JSONEq(t, `[{"name":"server_f","input_schema":{"type":"object","properties":{}}},
		{"name":"g","input_schema":{"type":"object","properties":{}},`+mark+`}]`, string(body["tools"]))
	require.JSONEq(t, `{"type":"none"}`, string(body["tool_choice"]))

	req.Tools = []llm.Tool{{Name: "h"}}
	body, _ = capture(t, req)
	require.NotContains(t, body, "tool_choice")
	require.NotContains(t, string(body["tools"]), "server_f")
	body, _ = capture(t, llm.Request{Messages: req.Messages[:1]})
	require.NotContains(t, body, "tools")
}
