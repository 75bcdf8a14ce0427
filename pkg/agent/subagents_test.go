package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/codes"
	"github.com/moorebus/moorebus/internal/runid"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/mcptool"
)

func named(name string, replies ...any) *agent.Builder {
	return agent.New(name).LLM(scripted.NewMock(replies...))
}

func TestWrongCallees(t *testing.T) {
	t.Parallel()
	child := built(t, named("child", scripted.Say("yes")))
	remote := built(t, named("remote").Use("model").Elsewhere().NATS("nats://127.0.0.1:1"))
	drawn := built(t, named("drawn", scripted.Say("yes")).Graph(agent.NewGraph().Fold("Continue", func(*reducer.Memory, *events.Event) {})))
	for want, b := range map[string]*agent.Builder{
		"is nil":                      named("a").Subagent(nil),
		"name its tool by":            named("b").Subagent(remote.Agent),
		"so do those of agent child":  named("c").Use("model").Elsewhere().NATS("nats://127.0.0.1:1").Subagent(child.Agent),
		`"child" stands there twice`:  named("d").Subagent(child.Agent).Tool(textTool(t, "child", "x")),
		"two agents are called child": named("child").Subagent(child.Agent),
		"different graphs":            named("e").Subagent(drawn.Agent),
		"risk":                        named("f").Subagent(child.Agent, func(t *agent.Callee) { t.Risk = "none at all" }),
		"one is an agent":             named("g").Subagent(child.Agent).Subagent(built(t, named("h").Tool(textTool(t, "child", "x"))).Agent),
		"the same one": named("i").Subagent(child.Agent, func(t *agent.Callee) { t.Risk = tool.High }).
			Subagent(built(t, named("j").Subagent(child.Agent)).Agent),
	} {
		_, err := b.Build()
		var wrong *agent.BuildError
		require.ErrorAs(t, err, &wrong, want)
		require.ErrorContains(t, err, want)
	}
}

func TestCalleesDoNotStep(t *testing.T) {
	t.Parallel()
	child := built(t, named("child", scripted.Say("yes")))
	_, err := built(t, agent.New("agent").LLM(scripted.NewMock()).Subagent(child.Agent)).Stepwise(t.Context(), agent.Task(task))
	require.ErrorIs(t, err, agent.ErrStepwise)
}

// late is a source whose tool comes when it runs.
type late struct {
	tool  tool.Tool
	ended chan struct{}
}

func (late) Name() string    { return "late" }
func (late) Pools() []string { return []string{"shelf"} }

func (s late) Run(ctx context.Context, _ *slog.Logger, put func([]tool.Tool)) {
	defer close(s.ended)
	put([]tool.Tool{s.tool})
	<-ctx.Done()
}

func TestToolsOfASource(t *testing.T) {
	t.Parallel()
	find := agent.Func("shelf.find", "Finds.", func(context.Context, query) (string, error) { return "found it", nil }, agent.Pure,
		func(d *tool.Definition) { d.Pool = "shelf" })
	var opened []late
	open := func() (tool.Source, error) {
		opened = append(opened, late{find, make(chan struct{})})
		return opened[len(opened)-1], nil
	}
	a := built(t, agent.New("agent").Source(open, "shelf.find").
		LLM(llm.CallerFunc(func(_ context.Context, req llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
			if req.Replies == 0 {
				return llm.ToolCalls{Meta: llm.Meta{Confidence: 1}, Calls: []llm.Call{{ID: "c", Name: "shelf.find", Arguments: `{"q":"it"}`}}}, nil
			}
			return llm.Text{Meta: llm.Meta{Confidence: 1}, Content: "It was found."}, nil
		})))
	require.Len(t, opened, 1, "Build looks at it")
	for run := range 2 {
		answer, err := a.Run(t.Context(), task)
		require.NoError(t, err)
		require.Equal(t, "It was found.", answer)
		require.Equal(t, "SUCCESS: found it", a.Memory().History[0].Observation)
		require.Len(t, opened, run+2, "each service has one of its own")
		<-opened[run+1].ended // nothing is left running
	}

	_, err := agent.New("agent").LLM(scripted.NewMock()).Source(func() (tool.Source, error) { return nil, errors.New("no such server") }).Build()
	require.ErrorContains(t, err, "no such server")
	_, err = built(t, agent.New("agent").LLM(scripted.NewMock()).Source(open, "shelf.lose")).Run(t.Context(), task)
	var wrong *agent.BuildError
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, "shelf.lose")
}

// memoryOf is the memory of another run of the agent's place, which has ended.
func memoryOf(t *testing.T, a *watched, run string) *agent.Memory {
	t.Helper()
	r, err := a.Attach(t.Context(), run)
	require.NoError(t, err)
	_, err = r.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Release())
	return r.Memory()
}

func subAgent(t *testing.T) {
	model := scripted.NewMock(using(scripted.Say("Here is help."), 30, 12))
	helper := built(t, agent.New("helper").LLM(model))
	a := built(t, agent.New("boss").Data(t.TempDir()).Subagent(helper.Agent).
		LLM(scripted.NewMock(using(scripted.Ask("helper", `{"task":"help me"}`), 100, 10), using(scripted.Say("I was helped."), 100, 10))))
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "I was helped.", answer)
	mem := a.Memory()
	require.Equal(t, "SUCCESS: Here is help.", mem.History[0].Observation)
	require.Equal(t, 2*110+42, mem.TotalUsage.Total, "the caller pays")

	call := mem.Control.CallOrder[0]
	child := memoryOf(t, a, mem.ToolCalls[call].Run)
	require.Equal(t, runid.Child(mem.RunID, call), child.RunID)
	require.Equal(t, &events.Parent{Run: mem.RunID, CallID: call, Depth: 1}, child.Control.Parent)
	require.Equal(t, "help me", child.Task)
	for _, m := range model.Requests()[0].Messages {
		require.NotContains(t, m.Content, "find the answer", "a memory of its own")
	}
}

func nestedSubAgent(t *testing.T) {
	deep := built(t, agent.New("deep").LLM(scripted.NewMock(using(scripted.Say("It is dug."), 30, 12))))
	helper := built(t, agent.New("helper").Subagent(deep.Agent, func(c *agent.Callee) { c.Name = "dig" }).
		LLM(scripted.NewMock(using(scripted.Ask("dig", `{"task":"dig"}`), 20, 5), using(scripted.Say("From below."), 20, 5))))
	a := built(t, agent.New("boss").Data(t.TempDir()).Subagent(helper.Agent).
		LLM(scripted.NewMock(using(scripted.Ask("helper", `{"task":"help"}`), 100, 10), using(scripted.Say("I was helped."), 100, 10))))
	_, err := a.Run(t.Context(), task)
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
	a := built(t, agent.New("agent").LLM(model).Source(open, "library.find"))
	_, err = a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, []string{
		"Start", "LlmToolCall", "ToolCallStarted", "ToolSuccess", "Continue", "LlmToolCall", "ToolCallStarted", "ToolFailure", "Continue", "LlmFinalAnswer",
	}, eventsOf(a.Trace()))
	history := a.Memory().History
	require.Equal(t, codes.SuccessPrefix+"found a", history[0].Observation)
	require.Equal(t, "ERROR: found none", history[1].Observation)
	require.Equal(t, "library.find", model.Requests()[0].Tools[0].Name)
}
