package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
)

// memoryOf is the memory of another run of the agent's place, which has ended.
func memoryOf(t *testing.T, a *agent.Agent, run string) *agent.Memory {
	t.Helper()
	r, err := a.Open(t.Context(), run)
	require.NoError(t, err)
	_, err = r.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Release())
	return r.Memory()
}

func subAgent(t *testing.T) {
	model := scripted.NewMock(using(scripted.Say("Here is help."), 30, 12))
	helper := built(t, agent.New("").Name("helper").LLM(model))
	a := built(t, agent.New("find the answer").Name("boss").Data(t.TempDir()).Subagent(helper).
		LLM(scripted.NewMock(using(scripted.Ask("helper", `{"task":"help me"}`), 100, 10), using(scripted.Say("I was helped."), 100, 10))))
	answer, err := a.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "I was helped.", answer)
	mem := a.Memory()
	require.Equal(t, "SUCCESS: Here is help.", mem.History[0].Observation)
	require.Equal(t, 2*110+42, mem.TotalUsage.Total, "the caller pays")

	call := mem.Control.CallOrder[0]
	child := memoryOf(t, a, mem.ToolCalls[call].Run)
	require.Equal(t, events.ChildID(mem.RunID, call), child.RunID)
	require.Equal(t, &events.Parent{Run: mem.RunID, CallID: call, Depth: 1}, child.Control.Parent)
	require.Equal(t, "help me", child.Task)
	for _, m := range model.Requests()[0].Messages {
		require.NotContains(t, m.Content, "find the answer", "a memory of its own")
	}
}

func nestedSubAgent(t *testing.T) {
	deep := built(t, agent.New("").Name("deep").LLM(scripted.NewMock(using(scripted.Say("It is dug."), 30, 12))))
	helper := built(t, agent.New("").Name("helper").Subagent(deep, func(c *agent.Callee) { c.Name = "dig" }).
		LLM(scripted.NewMock(using(scripted.Ask("dig", `{"task":"dig"}`), 20, 5), using(scripted.Say("From below."), 20, 5))))
	a := built(t, agent.New("find the answer").Name("boss").Data(t.TempDir()).Subagent(helper).
		LLM(scripted.NewMock(using(scripted.Ask("helper", `{"task":"help"}`), 100, 10), using(scripted.Say("I was helped."), 100, 10))))
	_, err := a.Run(t.Context())
	require.NoError(t, err)
	mem := a.Memory()
	require.Equal(t, "SUCCESS: From below.", mem.History[0].Observation)
	require.Equal(t, 2*110+2*25+42, mem.TotalUsage.Total, "also for what is below")
	below := memoryOf(t, a, mem.ToolCalls[mem.Control.CallOrder[0]].Run)
	require.Equal(t, "SUCCESS: It is dug.", below.History[0].Observation)
	bottom := memoryOf(t, a, below.ToolCalls[below.Control.CallOrder[0]].Run)
	require.Equal(t, 2, bottom.Control.Parent.Depth)
	require.Equal(t, "dig", bottom.Task)
}

// mcpServer makes the test binary an MCP server on its standard input and output.
const mcpServer = "MOOREBUS_TEST_MCP_SERVER"

func serveMCP() {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	schema := json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}`)
	server.AddTool(&mcp.Tool{Name: "find", Description: "Finds.", InputSchema: schema}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var in query
		if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "found " + in.Q}}, IsError: in.Q == "none"}, nil
	})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func mcpTools(t *testing.T) {
	binary, err := os.Executable()
	require.NoError(t, err)
	open := func() (tool.Source, error) {
		return mcptool.New(mcptool.Options{Name: "library", Command: []string{binary}, Env: []string{mcpServer + "=1", "GORACE=atexit_sleep_ms=0"}})
	}
	model := scripted.NewMock(scripted.Ask("library.find", `{"q":"a"}`), scripted.Ask("library.find", `{"q":"none"}`), scripted.Say("the answer"))
	a := built(t, agent.New("find the answer").LLM(model).Source(open, "library.find"))
	_, err = a.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{
		"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess", "Continue", "LlmToolCall", "ToolCallStarted", "ToolFailure", "Continue", "LlmFinalAnswer",
	}, eventsOf(a.Trace()))
	history := a.Memory().History
	require.Equal(t, reducer.SuccessPrefix+"found a", history[0].Observation)
	require.Equal(t, "ERROR: found none", history[1].Observation)
	require.Equal(t, "library.find", model.Requests()[0].Tools[0].Name)
}
