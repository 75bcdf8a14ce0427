package anthropic

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
)

// signed is a thinking block as reasoning.
func signed(text, signature string) events.Reasoning {
	return events.Reasoning{{Kind: events.ReasoningText, Text: text}, {Kind: events.ReasoningOpaque, Data: encode(signature)}}
}

// Thinking comes with a reply, in both ways of asking, and goes back unchanged before its
// calls.
func TestThinkingGoesBack(t *testing.T) {
	call := llm.Call{ID: "toolu_1", Name: "search", Arguments: `{"q":"x"}`}
	turn := llmtest.Turn{Reply: llm.ToolCalls{Content: "I look.", Calls: []llm.Call{call}, Meta: llm.Meta{Model: "claude-test-1"}}, Thinking: "Hm, <größe> 🙂"}
	model := llmtest.NewModel(llmtest.Anthropic{}, turn)
	c := open(t, model.Serve(t))
	want := append(signed("Hm, <größe> 🙂", llmtest.Signature), events.ReasoningPart{Kind: events.ReasoningOpaque, Data: json.RawMessage(`{"data":"RWFzdGVy","type":"redacted_thinking"}`)})
	for way, stream := range map[string]func(llm.Chunk){"plain": nil, "streamed": func(llm.Chunk) {}} {
		reply, err := c.Call(t.Context(), thinkingRequest(), stream)
		require.NoError(t, err)
		require.Equal(t, want, reply.About().Reasoning, way)
		require.True(t, reply.About().ReasoningBack, "without its text a signature is good for nothing")
		require.Equal(t, []events.Adjusted{{Key: "temperature"}, {Key: "top_p"}}, reply.About().Adjusted)
	}
	sent := `[{"role":"user","content":[{"type":"text","text":"go"}]},
		{"role":"assistant","content":[
			{"type":"thinking","thinking":"Hm, <größe> 🙂","signature":"` + llmtest.Signature + `"},
			{"type":"redacted_thinking","data":"RWFzdGVy"},
			{"type":"text","text":"I look."},
			{"type":"tool_use","id":"toolu_1","name":"search","input":{"q":"x"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"found"}],` + mark + `}]}]`
	old := json.RawMessage(`{"provider":"anthropic","model":"claude-test","blocks":[{"type":"thinking","thinking":"Hm, <größe> 🙂","signature":"` +
		llmtest.Signature + `"},{"type":"redacted_thinking","data":"RWFzdGVy"}]}`)
	for _, reasoning := range []events.Reasoning{want, {{Kind: events.ReasoningOpaque, Data: old}}} {
		answered := asks("I look.", call)
		answered.Reasoning = reasoning
		body, _ := capture(t, thinkingRequest(answered, result("toolu_1", "search", "found")))
		require.JSONEq(t, `{"type":"enabled","budget_tokens":2000}`, string(body["thinking"]))
		require.JSONEq(t, `6096`, string(body["max_tokens"]), "the thinking comes on top of the default")
		require.NotContains(t, body, "temperature")
		require.NotContains(t, body, "top_p")
		require.JSONEq(t, sent, string(body["messages"]))
	}
}

// A turn that was begun without thinking, or by another model, goes on without where the
// model wants a budget.
func TestThinkingDoesNotBeginInTheMiddleOfATurn(t *testing.T) {
	call := llm.Call{ID: "toolu_1", Name: "search", Arguments: `{}`}
	old := func(provider, model string) events.Reasoning {
		return events.Reasoning{{Kind: events.ReasoningOpaque, Data: json.RawMessage(`{"provider":"` + provider + `","model":"` + model + `","blocks":[{"type":"thinking"}]}`)}}
	}
	for name, c := range map[string]struct {
		reasoning events.Reasoning
		asked     events.Asked
		after     []llm.Message
		thinks    bool
	}{
		"its own":                         {reasoning: signed("hm", "s"), thinks: true},
		"its own, by name":                {reasoning: signed("hm", "s"), asked: events.Asked{Provider: "claude", Model: "claude-test"}, thinks: true},
		"its own, of an older build":      {reasoning: old("anthropic", "claude-test"), thinks: true},
		"none":                            {},
		"unsigned":                        {reasoning: events.Reasoning{{Kind: events.ReasoningText, Text: "hm"}}},
		"another model's":                 {reasoning: signed("hm", "s"), asked: events.Asked{Model: "claude-other"}},
		"another provider's":              {reasoning: signed("hm", "s"), asked: events.Asked{Provider: "other"}},
		"another model's of an old build": {reasoning: old("anthropic", "claude-other")},
		"another's of an old build":       {reasoning: old("other", "claude-test")},
		"no object":                       {reasoning: events.Reasoning{{Kind: events.ReasoningOpaque, Data: json.RawMessage(`[1]`)}}},
		"a turn that has ended":           {after: []llm.Message{asks("It is 42."), user("And then?")}, thinks: true},
	} {
		t.Run(name, func(t *testing.T) {
			reply := asks("", call)
			reply.Reasoning, reply.Asked = c.reasoning, c.asked
			req := thinkingRequest(append([]llm.Message{reply, result("toolu_1", "search", "found")}, c.after...)...)
			req.Provider = "claude"
			body, _ := capture(t, req)
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

// How much a model thinks is said in its own way.
func TestEffortAndBudget(t *testing.T) {
	const none = ""
	for _, tt := range []struct {
		model, effort    string
		budget, max      int
		thinking, config string
		maxTokens        int
		adjusted         string
	}{
		{"claude-sonnet-4-5", "", 0, 0, none, none, 4096, `null`},
		{"claude-sonnet-4-5", "", 2000, 0, `{"type":"enabled","budget_tokens":2000}`, none, 6096, `null`},
		{"claude-sonnet-4-5", "medium", 0, 0, `{"type":"enabled","budget_tokens":8192}`, none, 12288, `[{"key":"reasoning.effort","sent":{"type":"enabled","budget_tokens":8192}}]`},
		{"claude-sonnet-4-5", "high", 0, 6000, `{"type":"enabled","budget_tokens":3000}`, none, 6000, `[{"key":"reasoning.effort","sent":{"type":"enabled","budget_tokens":3000}}]`},
		{"claude-sonnet-4-5", "high", 0, 500, none, none, 500, `[{"key":"reasoning.effort"}]`},
		{"claude-sonnet-4-5", "", 500, 0, `{"type":"enabled","budget_tokens":1024}`, none, 5120, `[{"key":"reasoning.budget_tokens","sent":1024}]`},
		{"claude-sonnet-4-5", "", 9000, 3000, `{"type":"enabled","budget_tokens":2999}`, none, 3000, `[{"key":"reasoning.budget_tokens","sent":2999}]`},
		{"claude-sonnet-4-5", "", 2000, 1024, none, none, 1024, `[{"key":"reasoning.budget_tokens"}]`},
		{"claude-opus-4-1", "max", 0, 0, `{"type":"enabled","budget_tokens":27904}`, none, 32000, `[{"key":"reasoning.effort","sent":{"type":"enabled","budget_tokens":27904}}]`},
		{"claude-opus-4-20250514", "", 40000, 0, `{"type":"enabled","budget_tokens":27904}`, none, 32000, `[{"key":"reasoning.budget_tokens","sent":27904}]`},
		{"claude-sonnet-4-5", "none", 0, 0, `{"type":"disabled"}`, none, 4096, `null`},
		{"claude-3-5-haiku-latest", "high", 2000, 0, none, none, 4096, `[{"key":"reasoning.effort"},{"key":"reasoning.budget_tokens"}]`},
		{"claude-3-5-haiku-latest", "none", 0, 0, none, none, 4096, `null`},
		{"claude-opus-4-5", "low", 3000, 0, `{"type":"enabled","budget_tokens":3000}`, `{"effort":"low"}`, 7096, `null`},
		{"claude-opus-4-6", "", 2000, 0, `{"type":"enabled","budget_tokens":2000}`, none, 6096, `null`},
		{"claude-opus-4-6", "xhigh", 2000, 0, `{"type":"adaptive"}`, `{"effort":"max"}`, 6096, `[{"key":"reasoning.budget_tokens"},{"key":"reasoning.effort","sent":"max"}]`},
		{"claude-opus-4-7", "", 0, 0, none, none, 4096, `null`},
		{"claude-opus-4-7", "", 2000, 0, `{"type":"adaptive","display":"summarized"}`, none, 6096, `[{"key":"reasoning.budget_tokens"}]`},
		{"claude-opus-4-7", "xhigh", 0, 0, `{"type":"adaptive","display":"summarized"}`, `{"effort":"xhigh"}`, 28672, `null`},
		{"claude-opus-4-7", "minimal", 0, 9000, `{"type":"adaptive","display":"summarized"}`, `{"effort":"low"}`, 9000, `[{"key":"reasoning.effort","sent":"low"}]`},
		{"claude-opus-5", "", 0, 0, `{"type":"adaptive","display":"summarized"}`, none, 20480, `null`},
		{"claude-opus-5", "none", 0, 0, `{"type":"disabled"}`, none, 4096, `null`},
		{"claude-opus-5-5", "none", 0, 0, `{"type":"adaptive","display":"summarized"}`, `{"effort":"low"}`, 8192, `[{"key":"reasoning.effort","sent":"low"}]`},
		{"minimax-m2", "", 0, 0, none, none, 4096, `null`},
	} {
		model := llmtest.NewModel(llmtest.Anthropic{}, hello)
		got, err := open(t, model.Serve(t)).Call(t.Context(), llm.Request{
			Model: tt.model, Messages: []llm.Message{user("go")}, Sampling: llm.Sampling{Effort: tt.effort, ThinkingTokens: tt.budget, MaxTokens: tt.max},
		}, nil)
		require.NoError(t, err)
		var body struct {
			Thinking  json.RawMessage `json:"thinking"`
			Config    json.RawMessage `json:"output_config"`
			MaxTokens int             `json:"max_tokens"`
		}
		require.NoError(t, json.Unmarshal(model.Requests()[0], &body))
		same := func(want string, got json.RawMessage) {
			t.Helper()
			if want == none {
				require.Empty(t, got, "%+v", tt)
				return
			}
			require.JSONEq(t, want, string(got), "%+v", tt)
		}
		same(tt.thinking, body.Thinking)
		same(tt.config, body.Config)
		require.Equal(t, tt.maxTokens, body.MaxTokens, "%+v", tt)
		adjusted, err := json.Marshal(got.About().Adjusted)
		require.NoError(t, err)
		require.JSONEq(t, tt.adjusted, string(adjusted), "%+v", tt)
	}
}

// Sampling that a model refuses is left out, and the reply says so.
func TestSamplingThatIsRefused(t *testing.T) {
	half, seed := 0.5, 7
	for model, want := range map[string][]events.Adjusted{
		"minimax-m2":        {{Key: "seed"}},
		"claude-sonnet-4-5": {{Key: "top_p"}, {Key: "seed"}},
		"claude-opus-4-7":   {{Key: "temperature"}, {Key: "top_p"}, {Key: "seed"}},
		"claude-fable-5-1":  {{Key: "temperature"}, {Key: "top_p"}, {Key: "seed"}},
	} {
		server := llmtest.NewModel(llmtest.Anthropic{}, hello)
		got, err := open(t, server.Serve(t)).Call(t.Context(), llm.Request{
			Model: model, Messages: []llm.Message{user("go")}, Sampling: llm.Sampling{Temperature: &half, TopP: &half, Seed: &seed},
		}, nil)
		require.NoError(t, err)
		require.Equal(t, want, got.About().Adjusted, model)
		require.Equal(t, len(want) < 3, strings.Contains(string(server.Requests()[0]), `"temperature":0.5`), model)
		require.NotContains(t, string(server.Requests()[0]), "seed")
	}
}

// A model that cannot be made to call a tool is not forced to answer.
func TestForcedAnswer(t *testing.T) {
	for model, forced := range map[string]bool{
		"claude-sonnet-4-5": true, "claude-opus-4-7": true, "claude-opus-5": false, "claude-fable-5-1": false, "minimax-m2": true,
	} {
		body, _ := capture(t, llm.Request{Model: model, Messages: []llm.Message{user("go")}, OutputSchema: json.RawMessage(`{"type":"object"}`)})
		require.Equal(t, forced, body["tool_choice"] != nil, model)
	}
}
