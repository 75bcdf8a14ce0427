package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/host"
	"github.com/moorebus/moorebus/internal/subagent"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
)

// hosted runs all roles on the bus until the test ends.
func hosted(t *testing.T, o host.Options) {
	t.Helper()
	host, err := host.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- host.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	require.NoError(t, host.Announce(ctx))
}

// family hosts agents that call each other by name: each asks the model of its own
// name. It returns the one called "boss", on the same bus.
func family(t *testing.T, models map[string]*scripted.Mock) *agent.Agent {
	t.Helper()
	bus, names := busOf(t), []string{}
	none, err := tool.NewRegistry()
	require.NoError(t, err)
	o := host.Options{Bus: bus, Tools: none, Providers: map[string]llm.Caller{}}
	for name, model := range models {
		o.Providers[name] = model
		if name != "boss" {
			names, o.Subagents = append(names, name), append(o.Subagents, subagent.Tool{Agent: name})
		}
	}
	for _, name := range names {
		def := events.DefaultAgent()
		def.Name, def.LLM.Provider, def.Tools = name, name, names
		require.NoError(t, bus.PutAgent(t.Context(), events.DefaultNamespace, name, agentfile.Marshal(def)))
	}
	hosted(t, o)
	a, err := agent.New("find the answer").Elsewhere().Use("boss").RemoteTools(names...).Bus(bus).Build()
	require.NoError(t, err)
	return a
}

// memoryOf is the memory of another run of the agent's bus, which has ended.
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
	models := map[string]*scripted.Mock{
		"boss":   scripted.NewMock(using(scripted.Ask("helper", `{"task":"help me"}`), 100, 10), using(scripted.Say("I was helped."), 100, 10)),
		"helper": scripted.NewMock(using(scripted.Say("Here is help."), 30, 12)),
	}
	a := family(t, models)
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
	asked := models["helper"].Requests()
	require.Len(t, asked, 1)
	for _, m := range asked[0].Messages {
		require.NotContains(t, m.Content, "find the answer", "a memory of its own")
	}
}

func nestedSubAgent(t *testing.T) {
	a := family(t, map[string]*scripted.Mock{
		"boss":   scripted.NewMock(using(scripted.Ask("helper", `{"task":"help"}`), 100, 10), using(scripted.Say("I was helped."), 100, 10)),
		"helper": scripted.NewMock(using(scripted.Ask("deep", `{"task":"dig"}`), 20, 5), using(scripted.Say("From below."), 20, 5)),
		"deep":   scripted.NewMock(using(scripted.Say("It is dug."), 30, 12)),
	})
	_, err := a.Run(t.Context())
	require.NoError(t, err)
	mem := a.Memory()
	require.Equal(t, "SUCCESS: From below.", mem.History[0].Observation)
	require.Equal(t, 2*110+2*25+42, mem.TotalUsage.Total, "also for what is below")
	helper := memoryOf(t, a, mem.ToolCalls[mem.Control.CallOrder[0]].Run)
	require.Equal(t, "SUCCESS: It is dug.", helper.History[0].Observation)
	deep := memoryOf(t, a, helper.ToolCalls[helper.Control.CallOrder[0]].Run)
	require.Equal(t, 2, deep.Control.Parent.Depth)
	require.Equal(t, "dig", deep.Task)
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
	server, err := mcptool.New(mcptool.Options{
		Name: "library", Command: []string{binary}, Env: []string{mcpServer + "=1", "GORACE=atexit_sleep_ms=0"},
	})
	require.NoError(t, err)
	registry, err := tool.NewRegistryWith(tool.Options{Sources: []tool.Source{server}})
	require.NoError(t, err)
	t.Cleanup(registry.Start(t.Context(), slog.New(slog.DiscardHandler)))
	registry.Settle(t.Context())

	bus := busOf(t)
	model := scripted.NewMock(scripted.Ask("library.find", `{"q":"a"}`), scripted.Ask("library.find", `{"q":"none"}`), scripted.Say("the answer"))
	hosted(t, host.Options{Bus: bus, Tools: registry, Providers: map[string]llm.Caller{"mock": model}})
	a, err := agent.New("find the answer").Elsewhere().Use("mock").RemoteTools("library.find").Bus(bus).Build()
	require.NoError(t, err)
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
