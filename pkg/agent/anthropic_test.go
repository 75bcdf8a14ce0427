package agent_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/gateway"
	"github.com/moorebus/moorebus/internal/llmtest"
	"github.com/moorebus/moorebus/internal/natsbus"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/embedded"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/anthropic"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
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

	mem := runOn(t, caller, events.LLM{Provider: "anthropic", ThinkingTokens: 1024})
	require.Equal(t, events.Done, mem.State, "%+v", mem.Error)
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

// runOn carries a run to its end, on an embedded server with all roles.
func runOn(t *testing.T, caller llm.Caller, settings events.LLM) *reducer.Memory {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(server.Shutdown)
	conn, err := server.Connect()
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.NoError(t, natsbus.Init(t.Context(), conn, natsbus.InitOptions{Memory: true}))
	bus, err := natsbus.Open(t.Context(), conn, natsbus.Options{Logger: quiet})
	require.NoError(t, err)

	type query struct {
		Q string `json:"q"`
	}
	find, err := typed.New(tool.Definition{Name: "library.find", Description: "Finds.", Effect: tool.Pure},
		func(_ context.Context, in query) (string, error) {
			if in.Q == "none" {
				return "", tool.Failf("not_there", "there is no %s", in.Q)
			}
			return "found " + in.Q, nil
		})
	require.NoError(t, err)
	tools, err := tool.NewRegistry(find)
	require.NoError(t, err)
	host, err := agent.NewHost(agent.HostOptions{Bus: bus, Tools: tools, Providers: map[string]llm.Caller{settings.Provider: caller}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- host.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	require.NoError(t, host.Announce(ctx))

	def := events.DefaultAgent()
	def.Name, def.LLM, def.Tools = "reader", settings, []string{"library.find"}
	started, err := host.Gateway().Start(ctx, events.DefaultNamespace, gateway.StartRequest{Agent: &def, Task: "Look it up."})
	require.NoError(t, err)
	run := host.Store().Acquire(host.Store().Place(events.DefaultNamespace, started.RunID))
	defer host.Store().Release(run)
	var mem *reducer.Memory
	require.Eventually(t, func() bool {
		run.Lock()
		defer run.Unlock()
		require.NoError(t, run.Refresh(ctx))
		mem = run.Memory().Clone()
		return host.Store().Machine().Table().Terminal(mem.State)
	}, time.Minute, 10*time.Millisecond)
	return mem
}
