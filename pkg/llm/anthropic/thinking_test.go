package anthropic

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/llm"
)

func thinkingRequest(messages ...llm.Message) llm.Request {
	half := 0.5
	return llm.Request{Messages: append([]llm.Message{user("go")}, messages...), Sampling: llm.Sampling{ThinkingTokens: 2000, Temperature: &half, TopP: &half}}
}

// Thinking comes with a reply that has calls, in both ways of asking, and goes
// back unchanged before them.
func TestThinkingGoesBack(t *testing.T) {
	call := llm.Call{ID: "toolu_1", Name: "search", Arguments: `{"q":"x"}`}
	turn := llmtest.Turn{Reply: llm.ToolCalls{Content: "I look.", Calls: []llm.Call{call}, Meta: llm.Meta{Model: "claude-test-1"}}, Thinking: "Hm, <größe> 🙂"}
	model := llmtest.NewModel(llmtest.Anthropic{}, turn)
	c := open(t, model.Serve(t))
	var seen []json.RawMessage
	for _, stream := range []func(llm.Chunk){nil, func(llm.Chunk) {}} {
		reply, err := c.Call(t.Context(), thinkingRequest(), stream)
		require.NoError(t, err)
		seen = append(seen, reply.About().Reasoning)
	}
	require.JSONEq(t, `{"provider":"anthropic","model":"claude-test","blocks":[
		{"type":"thinking","thinking":"Hm, <größe> 🙂","signature":"`+llmtest.Signature+`"},
		{"type":"redacted_thinking","data":"RWFzdGVy"}]}`, string(seen[0]))
	require.JSONEq(t, string(seen[0]), string(seen[1]))

	answered := asks("I look.", call)
	answered.Reasoning = seen[0]
	body, _ := capture(t, thinkingRequest(answered, result("toolu_1", "search", "found")))
	require.JSONEq(t, `{"type":"enabled","budget_tokens":2000}`, string(body["thinking"]))
	require.JSONEq(t, `6096`, string(body["max_tokens"]), "the thinking comes on top of the default")
	require.NotContains(t, body, "temperature")
	require.NotContains(t, body, "top_p")
	require.JSONEq(t, `[{"role":"user","content":[{"type":"text","text":"go"}]},
		{"role":"assistant","content":[
			{"type":"thinking","thinking":"Hm, <größe> 🙂","signature":"`+llmtest.Signature+`"},
			{"type":"redacted_thinking","data":"RWFzdGVy"},
			{"type":"text","text":"I look."},
			{"type":"tool_use","id":"toolu_1","name":"search","input":{"q":"x"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"found"}],`+mark+`}]}]`, string(body["messages"]))
}

// A turn that was begun without thinking, or by another model, goes on without.
func TestThinkingDoesNotBeginInTheMiddleOfATurn(t *testing.T) {
	call := llm.Call{ID: "toolu_1", Name: "search", Arguments: `{}`}
	own := writeReasoning("claude-test", []json.RawMessage{thought("hm", "s")})
	for name, c := range map[string]struct {
		reasoning json.RawMessage
		after     []llm.Message
		thinks    bool
	}{
		"its own":               {own, nil, true},
		"none":                  {nil, nil, false},
		"another model's":       {writeReasoning("claude-other", []json.RawMessage{thought("hm", "s")}), nil, false},
		"another provider's":    {json.RawMessage(`{"provider":"other","model":"claude-test","blocks":[{}]}`), nil, false},
		"no object":             {json.RawMessage(`[1]`), nil, false},
		"a turn that has ended": {nil, []llm.Message{asks("It is 42."), user("And then?")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			reply := asks("", call)
			reply.Reasoning = c.reasoning
			body, _ := capture(t, thinkingRequest(append([]llm.Message{reply, result("toolu_1", "search", "found")}, c.after...)...))
			if _, on := body["thinking"]; on != c.thinks {
				t.Fatalf("thinking %v, want %v", on, c.thinks)
			}
			if !c.thinks {
				require.NotContains(t, string(body["messages"]), `"thinking"`)
				require.JSONEq(t, `0.5`, string(body["temperature"]))
			}
		})
	}
}
