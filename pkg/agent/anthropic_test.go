package agent_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
)

// A whole run over Anthropic's format and a real bus: calls of a tool with a dot
// in its name, in parallel and alone, one that fails, thinking that comes back
// with the calls, and the cache's reads in the sum.
func TestRunOverAnthropic(t *testing.T) {
	t.Parallel()
	about := func(input, cached, output int) llm.Meta {
		return llm.Meta{Model: "claude-test", Confidence: 1, Usage: llm.Usage{Input: input, Cached: cached, Output: output, Total: input + output}}
	}
	find := func(id, q string) llm.Call {
		return llm.Call{ID: id, Name: "library_find", Arguments: `{"q":"` + q + `"}`}
	}
	model := llmtest.NewModel(llmtest.Anthropic{},
		llmtest.Turn{Thinking: "Both at once.", Reply: llm.ToolCalls{Meta: about(100, 0, 20), Content: "I look.", Calls: []llm.Call{find("toolu_1", "one"), find("toolu_2", "none")}}},
		llmtest.Turn{Thinking: "One more.", Reply: llm.ToolCalls{Meta: about(150, 90, 10), Calls: []llm.Call{find("toolu_3", "three")}}},
		llmtest.Turn{Reply: llm.Text{Meta: about(180, 140, 5), Content: "All was looked up."}},
	)
	caller, err := anthropic.New(anthropic.Options{APIKey: "sk-ant-secret-0123456789", BaseURL: model.Serve(t), Model: "claude-test"})
	require.NoError(t, err)
	t.Cleanup(caller.Close)

	look := agent.Func("library.find", "Finds.", func(_ context.Context, in query) (string, error) {
		if in.Q == "none" {
			return "", tool.Failf("not_there", "there is no %s", in.Q)
		}
		return "found " + in.Q, nil
	}, agent.Pure)
	a, err := agent.New("Look it up.").LLM(caller).ThinkingTokens(1024).Tool(look).Build()
	require.NoError(t, err)
	_, err = a.Run(t.Context())
	require.NoError(t, err)
	mem := a.Memory()
	require.Equal(t, "All was looked up.", *mem.FinalAnswer)
	require.Equal(t, reducer.TotalUsage{Input: 430, Output: 35, Cached: 230, Total: 465}, mem.TotalUsage)
	require.Equal(t, "library.find", mem.ToolCalls["toolu_1"].Name, "the log has the tool's own name")

	requests := model.Requests()
	require.Len(t, requests, 3)
	var last struct {
		Messages []struct {
			Role    string           `json:"role"`
			Content []map[string]any `json:"content"`
		} `json:"messages"`
	}
	require.NoError(t, json.Unmarshal(requests[2], &last))
	var shape [][]string
	for _, m := range last.Messages {
		kinds := []string{m.Role}
		for _, b := range m.Content {
			kinds = append(kinds, b["type"].(string))
		}
		shape = append(shape, kinds)
	}
	require.Equal(t, [][]string{
		{"user", "text"},
		{"assistant", "thinking", "redacted_thinking", "text", "tool_use", "tool_use"},
		{"user", "tool_result", "tool_result"},
		{"assistant", "thinking", "redacted_thinking", "tool_use"},
		{"user", "tool_result"},
	}, shape)
	first, second, third := last.Messages[1].Content, last.Messages[2].Content, last.Messages[3].Content
	require.Equal(t, map[string]any{"type": "thinking", "thinking": "Both at once.", "signature": llmtest.Signature}, first[0])
	require.Equal(t, "One more.", third[0]["thinking"])
	require.Nil(t, second[0]["is_error"])
	require.Equal(t, true, second[1]["is_error"])
	require.NotContains(t, string(requests[2]), "library.find")
}
