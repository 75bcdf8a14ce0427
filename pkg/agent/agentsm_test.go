package agent_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/moorebus/moorebus/internal/commandtest"
	"github.com/moorebus/moorebus/internal/toolset"
	"github.com/moorebus/moorebus/pkg/agent"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/llm"
	"github.com/moorebus/moorebus/pkg/llm/scripted"
	"github.com/moorebus/moorebus/pkg/reducer"
	"github.com/moorebus/moorebus/pkg/tool"
	"github.com/moorebus/moorebus/pkg/tool/typed"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(doomedDir); dir != "" {
		doomed(dir)
	}
	if os.Getenv(mcpServer) != "" {
		serveMCP()
	}
	commandtest.FilesInMemory()
	// Those that run beside others wait for a server or a clock most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// The tests of SPEC A92, by their names. Each runs every role over a real
// embedded server, unless it concerns the table alone.
func TestAgentsm(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"idle_to_planning_transition":               idleToPlanning,
		"planning_max_steps_guard":                  maxStepsGuard,
		"planning_tool_blacklist":                   toolBlacklist,
		"acting_unknown_tool_is_failure_not_crash":  unknownTool,
		"observing_triggers_reflection_at_step_5":   reflectionAtStep5,
		"observing_commits_to_history":              commitsToHistory,
		"full_run_with_mock_llm":                    fullRun,
		"full_run_reaches_done_state":               reachesDone,
		"invalid_transition_returns_error":          invalidTransition,
		"trace_records_all_steps":                   traceRecords,
		"tool_registry_execute_unknown_returns_err": registryUnknown,
		"mock_llm_call_count":                       callCount,
		"agent_config_respected":                    configRespected,
		"builder_requires_llm":                      requiresLLM,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

type query struct {
	Q string `json:"q"`
}

func searchTool(t *testing.T) tool.Tool {
	t.Helper()
	return textTool(t, "search", "found it")
}

func textTool(t *testing.T, name, result string) tool.Tool {
	t.Helper()
	made, err := typed.New(tool.Definition{Name: name, Description: name, Effect: tool.Pure},
		func(context.Context, query) (string, error) { return result, nil })
	require.NoError(t, err)
	return made
}

// task is what the tests' runs are for, if it does not matter.
const task = "find the answer"

// watched is an agent whose last finished run can be looked at.
type watched struct {
	*agent.Agent
	last *agent.Run
}

// Run is [agent.Agent.Run], and keeps the run.
func (w *watched) Run(ctx context.Context, task string) (answer string, err error) {
	if w.last, err = w.Start(ctx, agent.Task(task)); err != nil {
		return "", err
	}
	defer func() { err = cmp.Or(err, w.last.Release()) }()
	return w.last.Wait(ctx)
}

func (w *watched) Memory() *agent.Memory { return w.last.Memory() }
func (w *watched) State() events.State   { return w.last.State() }
func (w *watched) Trace() reducer.Trace  { return w.last.Trace() }

// build makes an agent with the tools search and calculator.
func build(t *testing.T, mock llm.Caller, change func(*agent.Builder)) *watched {
	t.Helper()
	return buildNamed(t, "agent", mock, change)
}

func buildNamed(t *testing.T, name string, mock llm.Caller, change func(*agent.Builder)) *watched {
	t.Helper()
	b := agent.New(name).LLM(mock).Tool(searchTool(t)).Tool(textTool(t, "calculator", "42")).
		ReflectEvery(0)
	if change != nil {
		change(b)
	}
	return built(t, b)
}

func built(t *testing.T, b *agent.Builder) *watched {
	t.Helper()
	a, err := b.Build()
	require.NoError(t, err)
	return &watched{Agent: a}
}

func eventsOf(trace reducer.Trace) []string {
	var types []string
	for _, entry := range trace {
		types = append(types, entry.Event)
	}
	return types
}

func idleToPlanning(t *testing.T) {
	to, ok := reducer.DefaultTable().Next(events.Idle, events.TypeStart)
	require.True(t, ok)
	require.Equal(t, events.Planning, to)

	a := build(t, scripted.NewMock(scripted.Say("an answer")), nil)
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	first := a.Trace()[0]
	require.Equal(t, "Start", first.Event)
	require.Equal(t, string(events.Idle), first.State)
}

func maxStepsGuard(t *testing.T) {
	mock := scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Ask("search", `{"q":"b"}`), scripted.Say("never asked"))
	a := build(t, mock, func(b *agent.Builder) { b.MaxSteps(2) })
	_, err := a.Run(t.Context(), task)
	var failed *agent.Failed
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "max steps 2 exceeded", failed.Message)
	require.Equal(t, events.Errored, a.State())
	require.Equal(t, 2, a.Memory().Step)
	require.Equal(t, 2, mock.CallCount())
	require.Contains(t, eventsOf(a.Trace()), "MaxSteps")
}

func toolBlacklist(t *testing.T) {
	mock := scripted.NewMock(scripted.Ask("calculator", `{"q":"1"}`), scripted.Say("without it then"))
	a := build(t, mock, func(b *agent.Builder) { b.Blacklist("calculator") })
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "without it then", answer)
	require.Equal(t, []string{"Start", "ToolBlacklisted", "LlmFinalAnswer"}, eventsOf(a.Trace()))
	require.Nil(t, a.Memory().Error)
	second := mock.Requests()[1].Messages
	require.Equal(t, llm.RoleTool, second[len(second)-1].Role)
	require.Contains(t, second[len(second)-1].Content, "blacklisted")
	for _, offered := range mock.Requests()[0].Tools {
		require.NotEqual(t, "calculator", offered.Name)
	}
}

func unknownTool(t *testing.T) {
	mock := scripted.NewMock(scripted.Ask("no_such_tool", `{}`), scripted.Say("then not"))
	a := build(t, mock, nil)
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, events.Done, a.State())
	last := mock.Requests()[1].Messages
	require.Equal(t, `ERROR: tool "no_such_tool" not found`, last[len(last)-1].Content)
}

func reflectionAtStep5(t *testing.T) {
	replies := []any{}
	for range 5 {
		replies = append(replies, scripted.Ask("search", `{"q":"x"}`))
	}
	replies = append(replies, scripted.Say("all that was found, in short"), scripted.Say("the answer"))
	mock := scripted.NewMock(replies...)
	a := build(t, mock, func(b *agent.Builder) { b.ReflectEvery(5) })
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	var reflected []reducer.TraceEntry
	for _, entry := range a.Trace() {
		if entry.Event == "NeedsReflection" {
			reflected = append(reflected, entry)
		}
	}
	require.Len(t, reflected, 1)
	require.Equal(t, 5, reflected[0].Step)
	require.Equal(t, llm.PurposeReflect, mock.Requests()[5].Purpose)
	require.Len(t, a.Memory().History, 1)
	require.Equal(t, "[SUMMARY]", a.Memory().History[0].Tool.Name)
	require.Equal(t, "all that was found, in short", a.Memory().History[0].Observation)
}

func commitsToHistory(t *testing.T) {
	a := build(t, scripted.NewMock(scripted.Ask("search", `{"q":"moore"}`), scripted.Say("the answer")), nil)
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	mem := a.Memory()
	require.Len(t, mem.History, 1)
	entry := mem.History[0]
	require.Equal(t, 1, entry.Step)
	require.Equal(t, "search", entry.Tool.Name)
	require.JSONEq(t, `{"q":"moore"}`, entry.Tool.Arguments)
	require.Equal(t, "SUCCESS: found it", entry.Observation)
	require.True(t, entry.Success)
	require.Nil(t, mem.CurrentToolCall)
	require.Nil(t, mem.LastObservation)
}

func fullRun(t *testing.T) {
	mock := scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Ask("calculator", `{"q":"6*7"}`), scripted.Say("it is 42"))
	answer, err := build(t, mock, nil).Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "it is 42", answer)
}

func reachesDone(t *testing.T) {
	a := build(t, scripted.NewMock(scripted.Say("at once")), nil)
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, events.Done, a.State())
}

func invalidTransition(t *testing.T) {
	machine := reducer.NewMachine(reducer.MachineOptions{})
	mem := machine.Initial("018f0000-0000-7000-8000-000000000000")
	mem.State, mem.N = events.Done, 3
	_, _, err := machine.Draft(mem, events.Run{ID: mem.RunID}, events.Done, &events.Continue{}, reducer.Stamp{})
	var invalid *reducer.TransitionError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, events.Done, invalid.From)
	require.Equal(t, events.TypeContinue, invalid.Event)
}

func traceRecords(t *testing.T) {
	a := build(t, scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Say("the answer")), nil)
	_, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	trace := a.Trace()
	require.Equal(t, []string{"Start", "LlmToolCall", "ToolSuccess", "Continue", "LlmFinalAnswer"}, eventsOf(trace))
	require.Len(t, trace, 5)
	require.Len(t, trace.ForState(events.Planning), 2)
	require.Len(t, trace.ForState(events.Acting), 1)
	text, err := trace.JSON()
	require.NoError(t, err)
	var back []reducer.TraceEntry
	require.NoError(t, json.Unmarshal([]byte(text), &back))
	require.Len(t, back, 5)
}

func registryUnknown(t *testing.T) {
	registry, err := toolset.New(searchTool(t))
	require.NoError(t, err)
	out := registry.Execute(t.Context(), tool.Call{Name: "nonexistent", Arguments: "{}"})
	require.NotNil(t, out.Failure)
	require.Equal(t, tool.CodeNotFound, out.Failure.Code)
	require.Contains(t, out.Failure.Message, "not found")
}

func callCount(t *testing.T) {
	mock := scripted.NewMock(scripted.Ask("search", `{"q":"a"}`), scripted.Ask("search", `{"q":"b"}`), scripted.Say("the answer"))
	a := build(t, mock, func(b *agent.Builder) { b.Model("large").ModelFor("calculation", "small") })
	_, err := a.Agent.Run(t.Context(), task, agent.TaskType("calculation"))
	require.NoError(t, err)
	require.Equal(t, 3, mock.CallCount())
	require.Equal(t, "small", mock.ModelForCall(0))
}

func configRespected(t *testing.T) {
	mock := scripted.NewMock(scripted.Say("ab"), scripted.Say("abc"), scripted.Say("abcd"))
	a := build(t, mock, func(b *agent.Builder) {
		b.MaxSteps(2).MinAnswerLength(4)
	})
	_, err := a.Run(t.Context(), task)
	require.Error(t, err)
	require.Equal(t, []string{"Start", "AnswerTooShort", "AnswerTooShort", "MaxSteps"}, eventsOf(a.Trace()))
}

func requiresLLM(t *testing.T) {
	_, err := agent.New("agent").Build()
	var build *agent.BuildError
	require.ErrorAs(t, err, &build)
}

func authenticationFailsFast(t *testing.T) {
	mock := scripted.NewMock(&llm.Error{Kind: llm.KindAuth, Message: "bad key"}, scripted.Say("never"))
	_, err := build(t, mock, nil).Run(t.Context(), task)
	var failed *agent.LLMError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "bad key", failed.Message)
	require.Equal(t, 1, mock.CallCount())
}

func retryRecovers(t *testing.T) {
	mock := scripted.NewMock(&llm.Error{Kind: llm.KindOverloaded, Message: "busy", RetryAfter: 1}, scripted.Say("now it works"))
	a := build(t, mock, nil)
	answer, err := a.Run(t.Context(), task)
	require.NoError(t, err)
	require.Equal(t, "now it works", answer)
	require.Equal(t, []string{"Start", "LlmAttemptFailed", "LlmFinalAnswer"}, eventsOf(a.Trace()))
}

func TestCancelledContextCancelsTheRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	asked := llm.CallerFunc(func(ctx context.Context, _ llm.Request, _ func(llm.Chunk)) (llm.Response, error) {
		cancel(errors.New("enough"))
		<-ctx.Done()
		return nil, ctx.Err()
	})
	_, err := build(t, asked, nil).Agent.Run(ctx, task)
	require.ErrorIs(t, err, context.Canceled)
}
